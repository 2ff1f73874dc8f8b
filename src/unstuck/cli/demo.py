"""``unstuck demo``: both main promises, tried on a real cloud with real guests, every claim checked."""

from __future__ import annotations

import signal
import time
from typing import Any

from unstuck.cli.demo_database import DatabaseStory
from unstuck.cli.demo_teller import Teller
from unstuck.cli.demo_world import Failed, World, ask, links, say, show, wait_for

BARRIER = "control.report.running#2"
"""The guest runs, and the agent is just about to say so: here creates used to get stuck for ever.

The second time: a new agent first reports demo-1, which it has adopted."""
NOTE_1, NOTE_2 = "kept across a reboot", "written while nobody was in charge"
CREATE = ("--image", "tiny", "--flavor", "t.micro", "--nic", "auto", "-f", "json")
EXPLAINED = ("reason:", "since:", "holder:", "next:", "by seconds:")
WORTH_SAYING = ("status:", "host status:", *EXPLAINED, "  - code=host-")


class Story:
    """The steps, in order; each leaves what the next ones need."""

    def __init__(self, world: World, tell: Teller) -> None:
        self.world = world
        self.tell = tell
        self.first = self.second = ""  # ids
        self.first_at = self.second_at = ""  # addresses
        self.before: dict[str, Any] = {}

    def run(self) -> None:
        for step in (
            self.start, self.boot, self.talk, self.arm, self.crash, self.truth, self.recover, self.reboot,
            self.databases, self.delete, self.leave,
        ):  # fmt: skip
            step()

    def start(self) -> None:
        self.tell.step("1  A cloud, from nothing")
        self.tell.line(f"$ unstuck up --detach    (state: {self.world.state.root})")
        took = self._timed(lambda: self.world.unstuck("up", "--detach", "--driver", "qemu"))
        running = self.world.processes()
        self.tell.check("supervisor, control plane and host agent run", len(running) == 3, list(running))
        self.tell.figure("start of the cloud, image upload included", f"{took:.1f} s")

    def boot(self) -> None:
        self.tell.step("2  A server, with the stock OpenStack client")
        began = time.monotonic()
        made = self._create("demo-1", "--wait")
        self.first = str(made["id"])
        self.tell.check("the client saw demo-1 become ACTIVE", made["status"] == "ACTIVE", made["status"])
        self.first_at = self.world.address(self.first)
        say(self.first_at, "uptime")
        self.tell.figure("create to a guest that answers", f"{time.monotonic() - began:.1f} s")

    def talk(self) -> None:
        self.tell.step("3  It is a real machine")
        self.tell.line("$ openstack console log show demo-1")
        console = self.world.openstack("console", "log", "show", "demo-1")
        self.tell.quote(console)
        self.tell.check("its console can be read", "hostname demo-1" in console, console[-200:])
        name = say(self.first_at, "hostname")
        self.tell.check(f"at {self.first_at} it says its name: {name}", name == "demo-1", name)
        wrote = say(self.first_at, f"write {NOTE_1}")
        self.tell.check("it wrote a line to its disk", wrote == "ok", wrote)

    def arm(self) -> None:
        self.tell.step("4  A create, and kill -9 of everything at its worst moment")
        self.tell.line(f"$ unstuck down; UNSTUCK_STOP_AT={BARRIER} unstuck up --detach")
        pids = self.world.guest_pids(self.first)
        self.world.unstuck("down")
        self.world.unstuck("up", "--detach", barrier=BARRIER)
        now = self.world.guest_pids(self.first)
        self.tell.check("demo-1 did not notice the restart", len(now) == 1 and now == pids, (pids, now))
        agent = self.world.processes()["host agent"]
        made = self._create("demo-2")
        self.second = str(made["id"])
        self.second_at = self.world.address(self.second)
        marker = self.world.state.run / f"stopped-{agent.pid}"
        wait_for("the agent comes to the barrier", 60.0, marker.exists)
        self.tell.line(f"the agent (process {agent.pid}) is frozen where it would report that the guest runs")
        uptime = say(self.second_at, "uptime")
        self.tell.check(f"demo-2 runs and answers at {self.second_at} (up {uptime} s)", True)
        wrote = say(self.second_at, f"write {NOTE_2}")
        self.tell.check("it writes to its disk", wrote == "ok", wrote)

    def crash(self) -> None:
        self.before = self._guest()
        killed = self.world.kill_all()
        words = ", ".join(f"{name} {pid}" for name, pid in killed.items())
        self.tell.check(f"kill -9: {words}", len(killed) == 3, words)

    def truth(self) -> None:
        self.tell.step("5  Only the control plane is back: what does it say?")
        self.tell.line("$ unstuck serve")
        self.world.start_control()
        told = self._explained()
        missing = [word for word in EXPLAINED if f"\n{word}" not in told]
        self.tell.check(
            "it says why, since when, who has it, what comes next and by when", not missing, missing
        )
        self.tell.line("$ openstack server list")
        rows = self.world.openstack("server", "list", "-f", "json")
        self._not_a_lie({row["Name"]: row["Status"] for row in rows})
        self.tell.line("now the agent stays away for half a minute, and its host is not UP any more ...")
        with self.world.cloud() as cloud:
            path = f"/unstuck/v1/explain/server/{self.second}"
            wait_for("the host's state is UNKNOWN", 60.0, lambda: cloud.get(path)["host_status"] == "UNKNOWN")
            told = self._explained()
            self.tell.check("it says that the host is silent", "has been silent for" in told, told)
            servers = [show(cloud, server_id) for server_id in (self.first, self.second)]
        self._not_a_lie({server["name"]: server["status"] for server in servers})
        uptime = say(self.second_at, "uptime")
        self.tell.check(f"and demo-2 simply runs on (up {uptime} s)", True)

    def recover(self) -> None:
        self.tell.step("6  Everything is back; nobody touches demo-2")
        self.tell.line("$ unstuck up --detach")
        began = time.monotonic()
        self.world.unstuck("up", "--detach")
        with self.world.cloud() as cloud:
            status = wait_for(
                "demo-2 becomes ACTIVE by itself", 60.0,
                lambda: (s if (s := show(cloud, self.second)["status"]) in ("ACTIVE", "ERROR") else None),
            )  # fmt: skip
        took = time.monotonic() - began
        self.tell.check(
            f"demo-2 became ACTIVE by itself, {took:.1f} s after `up`", status == "ACTIVE", status
        )
        self.tell.figure("`up` to the interrupted create being ACTIVE", f"{took:.1f} s")
        now, old = self._guest(), self.before
        same = now["boot_id"] == old["boot_id"] and now["boots"] == old["boots"]
        self.tell.check(
            f"the same boot: {now['boot_id']}, number {now['boots']} of its disk", same, (old, now)
        )
        up = f"its uptime went on: {old['uptime']:.0f} s, then {now['uptime']:.0f} s"
        self.tell.check(up, now["uptime"] > old["uptime"], (old, now))
        one = len(now["pids"]) == 1 and now["pids"] == old["pids"]
        self.tell.check(f"one QEMU process, the same as before: {now['pids'][:1]}", one, (old, now))

    def reboot(self) -> None:
        self.tell.step("7  It takes orders as any other")
        self.tell.line("$ openstack server reboot --hard --wait demo-2")
        old = self._guest()
        began = time.monotonic()
        self.world.openstack("server", "reboot", "--hard", "--wait", "demo-2")
        fresh = wait_for("demo-2 boots again", 60.0, lambda: self._other_boot(str(old["boot_id"])))
        self.tell.figure("hard reboot to a guest that answers", f"{time.monotonic() - began:.1f} s")
        now = self._guest()
        boots = f"a new boot: {fresh}, number {now['boots']} of its disk"
        self.tell.check(boots, now["boots"] == old["boots"] + 1, (old, now))
        note = say(self.second_at, "read")
        self.tell.check(f"its disk kept what it wrote: {note!r}", note == NOTE_2, note)

    def databases(self) -> None:
        DatabaseStory(self.world, self.tell, self.second_at).run()

    def delete(self) -> None:
        self.tell.step("13  The end of it")
        self.tell.line("$ openstack server delete --wait demo-1 demo-2")
        note = say(self.first_at, "read")
        self.tell.check(f"demo-1 lived through all of it: {note!r}", note == NOTE_1, note)
        took = self._timed(lambda: self.world.openstack("server", "delete", "--wait", "demo-1", "demo-2"))
        with self.world.cloud() as cloud:
            left = cloud.get("/compute/v2.1/servers")["servers"]
        self.tell.check("both are gone", not left, left)
        self.tell.figure("delete of both, with the client", f"{took:.1f} s")

    def leave(self) -> None:
        self.tell.step("14  Nothing is left")
        self.tell.line("$ unstuck doctor")
        told = self.world.unstuck("doctor", expect=None)
        self.tell.quote(told.strip().splitlines()[-1])
        bad = [line for line in told.splitlines() if line.startswith(("FAULT", "DIFF"))]
        self.tell.check("no difference between the store and this machine", bool(told) and not bad, bad)
        self.tell.line("$ unstuck down")
        self.world.unstuck("down")
        real = self.world.reality()
        left = [*self.world.processes().values(), *self.world.named()]
        self.tell.check("no process of ours", not left, left)
        self.tell.check("no QEMU, no container", not real.guests, real.guests)
        self.tell.check("no tap, no bridge", real.taps == () and not links(), links())
        self.tell.check("no server folder", not real.folders, real.folders)

    # --- helpers

    def _not_a_lie(self, found: dict[str, str]) -> None:
        held = found == {"demo-1": "ACTIVE", "demo-2": "BUILD"}
        self.tell.check("demo-1 is ACTIVE, demo-2 is BUILD: neither ERROR nor a lie", held, found)

    def _explained(self) -> str:
        self.tell.line("$ unstuck explain server demo-2")
        told = self.world.unstuck("explain", "server", "demo-2")
        self.tell.quote("\n".join(line for line in told.splitlines() if line.startswith(WORTH_SAYING)))
        return told

    def _create(self, name: str, *more: str) -> dict[str, Any]:
        words = " ".join(("--image tiny --flavor t.micro --nic auto", *more, name))
        self.tell.line(f"$ openstack server create {words}")
        made: dict[str, Any] = self.world.openstack("server", "create", *CREATE, *more, name)
        return made

    def _guest(self) -> dict[str, Any]:
        """Who demo-2 is, from the guest itself and from the kernel."""
        return {
            "boot_id": say(self.second_at, "boot_id"),
            "boots": int(say(self.second_at, "boots")),
            "uptime": float(say(self.second_at, "uptime")),
            "pids": self.world.guest_pids(self.second),
        }

    def _other_boot(self, old: str) -> str | None:
        found = ask(self.second_at, "boot_id")
        return found if found != old else None

    def _timed(self, work: Any) -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began


def demo() -> int:
    """Break a real cloud at the worst moment and watch it mend itself; needs root, leaves nothing behind.

    It makes a cloud in a temporary folder, boots servers under QEMU with the stock OpenStack client, kills
    everything in the middle of a create, kills the agent of a database in the middle of a backup, and checks
    every claim. Exit code 1 names the one that failed.
    """
    tell = Teller()
    world = World()
    world.environment["UNSTUCK_ARCHIVE_SECONDS"] = "5"  # a moment can be restored that much sooner
    old = signal.signal(signal.SIGTERM, _interrupt)
    try:
        Story(world, tell).run()
        failed = ""
    except Failed as error:
        failed = str(error)
    finally:
        world.clean_up()
        signal.signal(signal.SIGTERM, old)
    if failed:
        tell.line(f"FAILED: {failed}", "bold red")
        return 1
    tell.figure("checks that held", str(tell.checks))
    tell.figure("the whole demonstration", f"{tell.elapsed():.0f} s")
    tell.step("Summary")
    tell.table()
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
