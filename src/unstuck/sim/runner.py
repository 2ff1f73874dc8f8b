"""One run: a scenario, a schedule, its faults, and the verdict."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.control.loop import Controller
from unstuck.core.errors import Conflict, Invalid, NotFound, Unavailable
from unstuck.core.server.data import Flavor, Power, Spec
from unstuck.core.server.status import status
from unstuck.host.agent import Agent
from unstuck.host.control import Superseded, Unreachable
from unstuck.runtime.marks import Forgetful
from unstuck.sim.engine import NETWORK, Engine, Fault, Process, Task, run_now
from unstuck.sim.invariants import Truth, differences, fingerprint, unfinished_images, unsettled
from unstuck.sim.scenarios import SCENARIOS, SETBACK_ONLY, TWO_HOSTS
from unstuck.sim.setback import Jump, Setback, aftermath
from unstuck.sim.world import MemoryStore, SimControl, SimDriver, SimHost, SimStore
from unstuck.store import (
    agents,
    captures,
    clock,
    generation,
    host_loss,
    networks,
    server_actions,
    server_rebuild,
    server_resize,
    server_shelve,
    servers,
)
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow, create_flavor
from unstuck.store.rows import load_server
from unstuck.store.schema import metadata
from unstuck.store.schema.compute import servers as server_table
from unstuck.store.schema.identity import projects
from unstuck.store.schema.images import images

P = ParamSpec("P")
T = TypeVar("T")

BOUND = 180.0
"""Virtual seconds after the last fault within which everything has to be at rest (decisions: numbers)."""
PATIENCE = 1800.0
"""Virtual seconds after which a user's script that still waits counts as a violation."""

FaultPlan = dict[int, Fault | None]
"""Faults by the number of the effect they hit; None: any that can happen there, by the seed."""

AGENT_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FREEZE, Fault.FREEZE_REPLACED, Fault.HOST_REBOOT)
CONTROL_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FREEZE)


class Verdict(msgspec.Struct, frozen=True):
    """What one run showed."""

    scenario: str
    effects: int
    violations: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    trace: tuple[str, ...] = ()
    seconds: float = 0.0
    commits: int = 0
    incarnations: tuple[int, ...] = ()


class Cloud:
    """A database in memory that is put back to its template before each run."""

    def __init__(self, hosts: int = 1) -> None:
        self.time = 1_000_000.0
        self.store = MemoryStore(lambda: self.time)
        self.host_ids = [f"host-{n}" for n in range(hosts)]
        self.store.transact(_populate, self.host_ids)
        self._clear = [f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)]  # noqa: S608
        self.template = self.dump()

    def dump(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """All rows, as statements that put them back."""
        found = []
        for table in metadata.sorted_tables:
            rows = self.store.driver.execute(f"SELECT * FROM {table.name}").fetchall()  # noqa: S608
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                found.append((f"INSERT INTO {table.name} VALUES ({marks})", rows))  # noqa: S608
        return found

    def reset(self) -> None:
        """Rows, not pages: the prepared statements stay valid, which makes a run twice as fast."""
        self.time = 1_000_000.0
        self.fill(self.template)

    def fill(self, copy: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        """Put a copy back."""
        driver = self.store.driver
        driver.execute("BEGIN")
        for text in self._clear:
            driver.execute(text)
        for text, rows in copy:
            driver.executemany(text, rows)
        driver.execute("COMMIT")


def _populate(tx: Tx, host_ids: list[str]) -> None:
    clock.init_clock(tx, generation_id="g")
    networks.ensure_default_network(tx, project_id="p", cidr="10.77.0.0/24")
    tx.execute(sa.insert(projects).values(id="p", name="p", description="", enabled=True, extra="{}"))
    for host_id in host_ids:
        agents.add_host(tx, host_id=host_id, hostname=host_id, secret_hash=host_id, machine_id=host_id)


@functools.cache
def cloud(hosts: int = 1) -> Cloud:
    return Cloud(hosts)


class Run:
    """The processes and the world of one run."""

    def __init__(
        self,
        scenario: str,
        *,
        seed: int | None,
        faults: FaultPlan,
        tracing: bool,
        hosts: int = 1,
        setback: Setback | None = None,
        jump: Jump | None = None,
    ) -> None:
        self.cloud = cloud(2 if scenario in TWO_HOSTS else hosts)
        self.cloud.reset()
        self.store = self.cloud.store
        self.scenario = scenario
        self.engine = Engine(seed)
        self.engine.tracing = tracing
        self.faults = faults
        self.names: list[tuple[str, str]] = []
        self.marks: list[int] | None = None
        self.hosts = [SimHost(self.engine, host_id) for host_id in self.cloud.host_ids]
        self.truth = Truth(self.store, self.hosts)
        self.expected: dict[str, str] = {}
        self.images: dict[str, bool] = {}
        """Images that users asked for, and whether they still want them."""
        self.control: Process | None = None
        self.agents: dict[str, Process] = {}
        self.down_until: dict[str, float] = {}
        self.drivers: dict[Process, SimDriver] = {}
        self.minds: dict[str, Agent] = {}
        self.scripts = 0
        self.running = False
        self.user: SimUser
        self.setback = setback
        self.jump = jump
        self.shift = 0.0
        self.patience = PATIENCE
        self.commits = 0
        self.sessions = 0
        self.copied = self.cloud.template
        self.marks_kept = Forgetful()
        self.store.on_commit = self._committed
        if setback is not None:
            self.truth.wishes = {}
        self.rng = self.engine.random
        self.engine.fault_at = self._fault_at
        self.engine.apply_fault = self._apply
        self.engine.half = self._half
        self.engine.lost = lambda: Unreachable("no answer")
        self.engine.ended = self._ended
        self.lose_wakes = seed is not None and self.rng.random() < 0.3
        self.truth.late = 25.0 if self.lose_wakes else 0.0

    # processes

    def boot_control(self) -> None:
        self.sessions += 1
        self.store.reopen(f"session-{self.sessions}")
        process = self.control = self.engine.process("control")
        self.store.transact(generation.notice, self.marks_kept.mark, "the control plane's own record")
        controller = Controller(
            process.port, SimStore(self.store), self._notify, tick=4.0, marks=self.marks_kept
        )
        process.spawn("servers", controller.servers_forever())
        process.spawn("tick", controller.tick_forever())

    def host_down(self, host: SimHost, seconds: float) -> None:
        """Its agent ends and nothing starts one there, neither who replaces a frozen one, until then."""
        self.agents[host.id].kill()
        self.down_until[host.id] = self.engine.now + seconds
        self.engine.at(seconds, functools.partial(self.boot_agent, host))

    def boot_agent(self, host: SimHost) -> None:
        if self.engine.now < self.down_until.get(host.id, 0.0):
            return
        old = self.agents.get(host.id)
        if old is not None:
            old.kill()  # the host's lock: whoever takes over ends the holder first
        process = self.agents[host.id] = self.engine.process(f"agent-{host.id}")
        client = SimControl(self.store, host.id, self._control_up, lambda: self._wake("control"))
        driver = SimDriver(host, self.truth, client, process)
        self.drivers[process] = driver
        agent = Agent(process.port, client, driver, host.facts(), self.engine.nonce(), host.marks, self._wall)
        self.minds[host.id] = agent
        host.wake = process.wake
        process.spawn("main", agent.run())

    def _wall(self) -> float:
        return self.engine.now

    # the store is set back

    def _committed(self) -> None:
        self.commits += 1
        plan = self.setback
        if plan is None or not self.running:
            return
        if self.commits == plan.copy:
            self.copied = self.cloud.dump()
            self.engine.log(f"    *** commit {self.commits}: a copy is made")
        if self.commits == plan.back:
            # The record is written once a tick: a copy that is put back within the second in which it was
            # made is noticed by hosts only.
            self.engine.at(5.0 if plan.record else 0.0, self._put_back)

    def _put_back(self) -> None:
        """The operator stops the control plane, puts the copy back, and starts it again."""
        plan = self.setback
        assert plan is not None
        self.engine.log(f"    *** after commit {self.commits}: the copy of commit {plan.copy} is put back")
        self.setback = None
        if self.control is not None:
            self.control.kill()
        self.control = None
        self.user.abandon()
        self.cloud.fill(self.copied)
        if not plan.record:
            self.marks_kept = Forgetful()
        self.engine.at(1.0, self.boot_control)
        if plan.silent:
            self.agents[self.hosts[0].id].kill()
        for host in self.hosts:
            if self.agents[host.id].dead:
                self.engine.at(1.5 + plan.silent, functools.partial(self._revive, host))
        self.user.beside(aftermath(self.user, plan))

    def _revive(self, host: SimHost) -> None:
        if self.agents[host.id].dead:
            self.boot_agent(host)

    def _control_up(self) -> bool:
        return self.control is not None and self.control.frozen_until <= self.engine.now

    def _notify(self, key: str) -> None:
        for host_id, process in self.agents.items():
            if key == f"host:{host_id}" and not self.lose_wakes:
                process.wake("world")

    def _wake(self, key: str) -> None:
        if self.control is not None and not self.lose_wakes:
            self.control.wake(key)

    def _ended(self, error: Exception) -> None:
        if not isinstance(error, Superseded):
            self.truth.fail(f"a process ended: {error!r}")

    # faults

    def _fault_at(self, number: int, process: Process, name: str) -> Fault | None:
        self.names.append((process.name.split("-")[0], name))
        if self.jump is not None and number == self.jump.effect:
            self._jump(self.jump)
        if self.marks is not None:
            self._set_time()
            self.marks.append(self.store.read(fingerprint, self.hosts))
        if number not in self.faults:
            return None
        possible = applicable(process.name, name)
        fault = self.faults[number]
        if fault is None:
            return self.rng.choice(possible)
        return fault if fault in possible else None

    def _jump(self, jump: Jump) -> None:
        if not jump.asleep:
            self.shift += jump.seconds
            self._set_time()
        elif self.control is not None:
            self.control.frozen_until = self.engine.now + jump.seconds
            self.patience += jump.seconds

    def _set_time(self) -> None:
        self.cloud.time = self.engine.now + self.shift

    def _half(self, _name: str, work: Callable[[], Awaitable[Any]]) -> None:
        for process, driver in self.drivers.items():
            driver.cutting = not process.dead
        try:
            run_now(work())
        except Exception as error:
            self.engine.log(f"cut effect: {error!r}")
        for driver in self.drivers.values():
            driver.cutting = False

    def _apply(self, fault: Fault, process: Process, _task: Task) -> None:
        engine = self.engine
        again = self.rng.choice((0.2, 3.0, 20.0)) if not engine.fair else 1.0
        if fault is Fault.FREEZE:
            process.frozen_until = engine.now + (self.rng.choice((10.0, 45.0)) if not engine.fair else 45.0)
            return
        if process is self.control:
            process.kill()
            self.control = None
            engine.at(again, self.boot_control)
            return
        host = next(h for h in self.hosts if self.agents.get(h.id) is process)
        if fault is Fault.FREEZE_REPLACED:
            process.frozen_until = engine.now + 1e9
            engine.at(2.0, lambda: self.boot_agent(host))
            return
        process.kill()
        if fault is Fault.HOST_REBOOT:
            host.reboot()
        engine.at(again, lambda: self.boot_agent(host))

    # verdict

    def run(self) -> Verdict:
        engine = self.engine
        self.running = True
        self.boot_control()
        for host in self.hosts:
            self.boot_agent(host)
        user = self.user = SimUser(self)
        user.beside({**SCENARIOS, **SETBACK_ONLY}[self.scenario](user))  # type: ignore[arg-type]
        start = engine.now
        engine.after_step = self._after_step
        try:
            engine.run(start + self.patience, done=self._at_rest)
            if self.patience > PATIENCE:
                engine.run(start + self.patience, done=self._at_rest)
            if not self._at_rest():
                self.truth.fail(
                    f"not at rest after {self.patience:.0f} s: {self._unsettled()} rows, "
                    f"{self.scripts} scripts"
                )
            self.truth.violations.extend(self.store.read(differences, self.hosts, self.expected))
            self.truth.violations.extend(self.store.read(unfinished_images))
        except Broken:
            pass
        finally:
            for process in engine.processes:
                process.kill()
            self.user.close()
            self.store.on_commit = lambda: None
        return Verdict(
            scenario=self.scenario,
            effects=engine.effects,
            violations=tuple(self.truth.violations),
            names=tuple(self.names),
            trace=tuple(engine.trace),
            seconds=engine.now - start,
            commits=self.commits,
            incarnations=tuple(mind.incarnation for mind in self.minds.values()),
        )

    def _after_step(self) -> None:
        self._set_time()
        if self.truth.violations:
            raise Broken

    def _unsettled(self) -> int:
        self._set_time()
        return self.store.read(unsettled)

    def _at_rest(self) -> bool:
        """Nothing is left to do, and every agent has told what its host looks like since it started:
        a host that has rebooted unheard is not at rest, whatever the rows say (seed 504892)."""
        return not self.scripts and self.quiet()

    def quiet(self) -> bool:
        """Everybody follows the store as it is now, and no row waits for anything."""
        if self.engine.timers or self.control is None or self._unsettled():
            return False
        history = self.store.read(agents.terms).history
        return all(mind.caught_up and mind.history == history for mind in self.minds.values())


class Broken(Exception):
    """A safety invariant failed; the run ends here."""


def applicable(process: str, name: str) -> tuple[Fault, ...]:
    """The faults that can happen at an effect."""
    if process.startswith("agent"):
        crashes: tuple[Fault, ...] = AGENT_FAULTS
        if name in ("driver.make_disk", "driver.start", "driver.save", "driver.remove_folder"):
            crashes += (Fault.CRASH_HALF,)
        return crashes + NETWORK if name.startswith("control.") else crashes
    return CONTROL_FAULTS


class SimUser:
    """A user with the compute API; requests go to the store functions that the API calls."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process = run.engine.process("user")
        self._process.faultable = False
        self._requests = 0
        self._scripts: list[Coroutine[Any, Any, None]] = []
        self._lost = ""
        self._before: dict[str, str] = {}
        """What a server that was resized is shown as when that is over."""

    def abandon(self) -> None:
        """Whoever was at work finds that the cloud has forgotten things, and gives up."""
        self._process.kill()
        self.close()
        self._process = self._run.engine.process("user")
        self._process.faultable = False
        self._run.scripts = 0
        self._run.expected.clear()

    def close(self) -> None:
        """Scripts that never began would warn of it when they are collected."""
        for script in self._scripts:
            script.close()
        self._scripts.clear()

    def transact(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run.store.transact(tx, *args, **kwargs)

    def log(self, text: str) -> None:
        self._run.engine.log(text)

    def fail(self, text: str) -> None:
        self._run.truth.fail(text)

    async def quiet(self) -> None:
        """Until everything that is not in dispute has come to rest."""
        quiet = 0
        for _ in range(150):
            quiet = quiet + 1 if self._run.quiet() else 0
            if quiet == 2:
                return
            await self.wait(2.0)
        self.fail(f"not quiet within 300 s: {self._run._unsettled()} rows")

    async def delete_all(self) -> None:
        for name in self.transact(_names):
            await self.delete(name)

    async def check_nothing_lost(self) -> None:
        """Every disk with data is still there, unless its user deleted it."""
        held = {name for host in self._run.hosts for name, folder in host.folders.items() if folder.disk}
        for name in self._run.truth.had_data - held:
            if not self._run.truth._asked(name, 0.0, "delete"):
                self.fail(f"the data of {name} is gone, and its user never deleted it")

    async def check_agreement(self) -> None:
        """After the accepted diff the store and the world say the same."""
        for text in self.transact(differences, self._run.hosts, {}):
            self.fail(f"after the accepted diff: {text}")

    def beside(self, script: Coroutine[Any, Any, None]) -> None:
        self._run.scripts += 1
        self._scripts.append(script)
        self._process.spawn("script", self._counted(script))

    async def _counted(self, script: Coroutine[Any, Any, None]) -> None:
        await script
        self._run.scripts -= 1

    async def wait(self, seconds: float) -> None:
        await self._process.port.pause(seconds, "never")

    def _caller(self) -> servers.Caller:
        self._requests += 1
        return servers.Caller(f"req-{self._requests}", "u", "p")

    async def _request(
        self, name: str, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """One request, repeated while the control plane is down or says that it has to wait."""
        while True:
            if self._run.control is not None:

                async def work() -> T:
                    return self._run.store.transact(tx, *args, **kwargs)

                try:
                    answer = await self._process.port.effect(f"api.{name}", work)
                except (servers.Conflict, Unavailable) as error:
                    self._run.engine.log(f"{error.status}: {error}")
                except servers.NotFound:
                    return None
                else:
                    self._run._wake("control")
                    self._run._notify(f"host:{answer}")
                    return answer
            await self.wait(1.0)

    async def create(self, name: str) -> None:
        caller = self._caller()
        await self._request("create", _create, name, caller)
        self._run.expected[name] = "ACTIVE"

    def _wish(self, name: str, kind: str) -> None:
        if self._run.truth.wishes is not None:
            self._run.truth.wishes.setdefault(name, []).append((self._run.engine.now, kind))

    async def delete(self, name: str) -> None:
        self._wish(name, "delete")
        await self._request("delete", servers.delete_server, name, self._caller())
        self._run.expected[name] = "DELETED"

    async def stop(self, name: str) -> None:
        self._wish(name, "stop")
        await self._request("stop", servers.stop_server, name, self._caller())
        self._run.expected[name] = "SHUTOFF"

    async def start(self, name: str) -> None:
        await self._request("start", servers.start_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def reboot(self, name: str, *, soft: bool) -> None:
        self._wish(name, "reboot")
        await self._request("reboot", servers.reboot_server, name, self._caller(), soft=soft)
        self._run.expected[name] = "ACTIVE"

    async def break_image(self) -> None:
        """It is whole and has the right digest, and no disk can be made of it."""
        for host in self._run.hosts:
            host.image_usable = False

    async def pause(self, name: str) -> None:
        await self._request("pause", server_actions.pause_server, name, self._caller())
        self._run.expected[name] = "PAUSED"

    async def unpause(self, name: str) -> None:
        await self._request("unpause", server_actions.unpause_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def suspend(self, name: str) -> None:
        await self._request("suspend", server_actions.suspend_server, name, self._caller())
        self._run.expected[name] = "SUSPENDED"

    async def resume(self, name: str) -> None:
        await self._request("resume", server_actions.resume_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def suspended(self, name: str) -> bool:
        """Wait for the end of a suspend; where the guest died first, do as the remedy says."""
        await self.until(name, "SUSPENDED", "ERROR")
        if self._status(name) == "SUSPENDED":
            return True
        await self.reboot(name, soft=False)
        return False

    async def rebuild(self, name: str) -> None:
        expected = self._run.expected[name]
        await self._request("rebuild", _rebuild, name, self._run.engine.nonce(), self._caller())
        self._run.expected[name] = "SHUTOFF" if expected == "SHUTOFF" else "ACTIVE"

    async def resize(self, name: str, *, ram_mb: int = 128, disk_gb: int = 2) -> bool:
        """False where there is no room for it."""
        self._wish(name, "reboot")
        flavor = FlavorRow(id=f"f-{ram_mb}-{disk_gb}", name="f", vcpus=1, ram_mb=ram_mb, disk_gb=disk_gb)
        expected = self._run.expected[name]
        try:
            await self._request("resize", _resize, name, self._caller(), flavor)
        except Invalid as error:
            self.log(f"refused: {error}")
            return False
        self._run.expected[name] = "VERIFY_RESIZE"
        self._before[name] = expected
        return True

    async def confirm(self, name: str) -> None:
        await self._request("confirm", server_resize.confirm_resize, name, self._caller())
        self._run.expected[name] = self._before[name]

    async def revert(self, name: str) -> None:
        self._wish(name, "reboot")
        await self._request("revert", server_resize.revert_resize, name, self._caller())
        self._run.expected[name] = self._before[name]

    async def create_image(self, name: str, image: str) -> None:
        self._run.images[image] = True
        asked = captures.Capture(image_id=image, name=image, properties={}, most=100)
        await self._request("create_image", captures.create_image_of, name, None, asked, self._caller())

    async def image_ends(self, image: str) -> bool:
        """Wait until it is active, or gone; which."""
        for _ in range(900):
            state = self._run.store.read(_image_state, image)
            if state != "waiting":
                return state == "active"
            await self.wait(1.0)
        self.fail(f"image {image} came to no end")
        return False

    async def delete_image(self, image: str) -> None:
        self._run.images[image] = False
        await self._request("delete_image", _delete_image, image)

    async def shelve(self, name: str) -> None:
        self._wish(name, "stop")
        await self._request("shelve", server_shelve.shelve_server, name, self._caller())
        self._run.expected[name] = "SHELVED"

    async def offload(self, name: str) -> None:
        await self._request("offload", server_shelve.offload_server, name, self._caller())
        self._run.expected[name] = "SHELVED_OFFLOADED"

    async def unshelve(self, name: str) -> None:
        """Tried again while there is no room for it."""
        await self._request("unshelve", server_shelve.unshelve_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def lose_disk(self, name: str) -> None:
        """Somebody removes the disk (and ends the guest) behind our back."""
        for host in self._run.hosts:
            host.guests.pop(name, None)
            if name in host.folders:
                host.folders[name].disk = False
            self._run.agents[host.id].wake(name)

    async def reset(self, name: str) -> None:
        await self._request("reset", server_actions.reset_state, name, "active", self._caller())
        self._run.expected[name] = "ACTIVE"

    async def disk_full(self, name: str, *, full: bool) -> None:
        """The hosts' disks are full (or not any more); guests that run stop at their next write."""
        for host in self._run.hosts:
            host.full = full
            guest = host.guests.get(name)
            if full and guest is not None and guest.state == "running" and not guest.forked:
                guest.state = "io-error"
            self._run.agents[host.id].wake(name)
        if full:
            return
        for _ in range(600):
            guests = [host.guests.get(name) for host in self._run.hosts]
            if any(guest is not None and guest.state == "running" for guest in guests):
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the guest of {name} was not continued")

    async def break_starts(self, *, broken: bool) -> None:
        for host in self._run.hosts:
            host.broken = broken

    async def power_off_inside(self, name: str) -> None:
        self._wish(name, "power-off")
        self._run.expected[name] = "SHUTOFF"
        for _ in range(600):
            for host in self._run.hosts:
                guest = host.guests.get(name)
                if guest is not None and guest.state == "running" and not guest.forked:
                    guest.state = "off"
            if self._status(name) == "SHUTOFF":
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the power-off of {name} was not respected")

    async def power_off_resized(self, name: str) -> None:
        """The same before its user has confirmed or taken back a resize: that is still to be done then."""
        self._wish(name, "power-off")
        for _ in range(600):
            for host in self._run.hosts:
                guest = host.guests.get(name)
                if guest is not None and guest.state == "running" and not guest.forked:
                    guest.state = "off"
            if self._run.store.read(_wanted, name) is Power.OFF:
                self._before[name] = "SHUTOFF"
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the power-off of {name} was not respected")

    async def host_dies(self, seconds: float) -> None:
        """The agents end; their guests run on; ``seconds`` later the agents are started again."""
        run = self._run
        for host in run.hosts:
            run.host_down(host, seconds)

    async def host_of_dies(self, name: str, seconds: float) -> None:
        """The agent of the server's host ends, as soon as it has one; it is started again later."""
        run = self._run
        while (host_id := run.store.read(_host_of, name)) is None:
            await self.wait(0.5)
        self._lost = host_id
        run.host_down(next(host for host in run.hosts if host.id == host_id), seconds)

    async def lose(self) -> None:
        await self._request("lose", host_loss.force_down, self._lost, down=True)

    async def strike(self) -> None:
        await self._request("strike", _strike_once, self._lost)

    async def join_again(self, name: str) -> None:
        """The host that was struck off joins with a token, and gets back what nobody has deleted."""
        self._requests += 1
        token, host = f"token-{self._requests}", self._lost
        await self._request("token", host_loss.make_token, token, 1e9)
        await self._request(
            "join", host_loss.join, token, host_id=host, hostname=host, secret_hash=host, machine_id=host
        )

    def _status(self, name: str) -> str:
        return self._run.store.read(_shown, name)

    async def until(self, name: str, *statuses: str) -> None:
        began = self._run.engine.now
        while self._run.engine.now < began + 600.0 + self._run.patience - PATIENCE:
            if self._status(name) in statuses:
                return
            await self.wait(2.0)
        self._run.truth.fail(f"{name} did not become {'/'.join(statuses)} in time, but {self._status(name)}")


def _strike_once(tx: Tx, host_id: str) -> None:
    """An answer may be lost, and the request repeated."""
    with contextlib.suppress(NotFound):
        host_loss.strike_off(tx, host_id)


def _host_of(tx: Tx, server_id: str) -> str | None:
    loaded = load_server(tx, server_id)
    return None if loaded is None or loaded.server.place is None else loaded.server.place.host_id


def _image_state(tx: Tx, image_id: str) -> str:
    row = tx.execute(
        sa.select(images.c.data_name, images.c.deleted_wall).where(images.c.id == image_id)
    ).one()
    if row.deleted_wall is not None:
        return "gone"
    return "active" if row.data_name is not None else "waiting"


def _delete_image(tx: Tx, image_id: str) -> str | None:
    return captures.delete_image(tx, image_id, project_id="p")[1]


def _wanted(tx: Tx, server_id: str) -> Power:
    loaded = load_server(tx, server_id)
    assert loaded is not None
    return loaded.server.power


def _shown(tx: Tx, server_id: str) -> str:
    loaded = load_server(tx, server_id)
    assert loaded is not None
    return status(loaded.server, tx.now).status


def _names(tx: Tx) -> list[str]:
    return list(tx.execute(sa.select(server_table.c.id).where(sa.not_(server_table.c.removed))).scalars())


def _create(tx: Tx, name: str, caller: servers.Caller) -> None:
    if load_server(tx, name) is not None:
        return
    spec = Spec(
        name=name, hostname=name, project_id="p", availability_zone="nova", flavor=Flavor(1, 64, 1), images=()
    )
    new = servers.NewServer(
        id=name,
        name=name,
        description=None,
        image_id="i",
        flavor_id="f",
        flavor={"vcpus": 1, "ram": 64, "disk": 1},
        key_name=None,
        metadata={},
        tags=(),
        requested_zone=None,
        config_drive=True,
        disk_config="MANUAL",
        reservation_id="r",
        launch_index=0,
        access_ipv4="",
        access_ipv6="",
        spec=spec,
    )
    servers.insert_server(tx, new, caller)
    nic = networks.allot_port(tx, port_id=f"port-{name}", server_id=name, project_id="p", network_id=None)
    made_of = msgspec.json.encode(msgspec.structs.replace(spec, nics=(nic,))).decode()
    tx.execute(sa.update(server_table).where(server_table.c.id == name).values(spec=made_of))


def _rebuild(tx: Tx, name: str, nonce: str, caller: servers.Caller) -> str:
    """As the API's, without an image to look up."""
    return server_rebuild.replace_disk(tx, name, lambda _row, _server: {}, nonce, caller)


def _resize(tx: Tx, name: str, caller: servers.Caller, flavor: FlavorRow) -> str:
    """As the API's, with a flavor that is made on the way."""
    with contextlib.suppress(Conflict):
        create_flavor(tx, flavor)
    return server_resize.resize_server(tx, name, None, caller, flavor_id=flavor.id)


def unlike_effects(scenario: str) -> list[tuple[int, str, str]]:
    """The effects of a plain run that differ: (number, process, name).

    Where the same process comes to the same effect in the same world once more (it waits, and only time
    has passed), a crash there is the crash that was tried already.
    """
    run = Run(scenario, seed=None, faults={}, tracing=False)
    run.marks = []
    run.run()
    first: dict[tuple[str, str, int], int] = {}
    for number, ((process, name), mark) in enumerate(zip(run.names, run.marks, strict=True), start=1):
        first.setdefault((process, name, mark), number)
    return [(number, process, name) for (process, name, _), number in first.items()]


def simulate(
    scenario: str,
    *,
    seed: int | None = None,
    faults: FaultPlan | None = None,
    tracing: bool = False,
    setback: Setback | None = None,
    jump: Jump | None = None,
    hosts: int = 1,
) -> Verdict:
    """Run one scenario: by ``seed`` (random order), or fair; with the faults planned by effect number."""
    run = Run(
        scenario, seed=seed, faults=faults or {}, tracing=tracing, setback=setback, jump=jump, hosts=hosts
    )
    return run.run()
