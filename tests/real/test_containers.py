"""The driver for containers on the real thing: podman, a tiny system tree, loop devices, control groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.real.container_stage import build_tree, inside, said, staged, why_not
from tests.real.driving import settle, until
from unstuck.cli import boxes
from unstuck.cli.reality import Expected, compare, look
from unstuck.core.server.data import Gone, Machine, Mute, Paused, Power, Running, Step, Thing, Unclear, Want
from unstuck.core.server.host import Act, Do, plan_host
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import write_identity
from unstuck.host.drivers.instant import InstantDriver
from unstuck.host.drivers.machines import Machines
from unstuck.host.drivers.podman import cgroups
from unstuck.host.drivers.podman.driver import CopyError, PodmanDriver
from unstuck.host.drivers.process import run
from unstuck.host.images import ImageCache

pytestmark = [
    pytest.mark.xdist_group("containers"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers"),
]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tree(tmp_path_factory.mktemp("tree"))


def pid_of(driver: PodmanDriver, want: Want) -> int:
    seen = driver._containers.known(want.server_id)
    assert seen is not None
    return seen.pid


def test_a_guest_from_nothing_to_gone(tmp_path: Path, image: Path) -> None:
    """Starts, is adopted by another driver with the same process, ends in order, starts again, is removed."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            want, first = stage.want(), stage.driver()
            assert await settle(first, want) is Step.AT_REST
            assert "ready: start 1 as 0" in await said(first, want, "ready")
            assert (await first.look(want)).guest == Running(1)
            pid = pid_of(first, want)
            await first.close()
            second = stage.driver()
            assert (await second.look(want)).guest == Running(1)
            assert pid_of(second, want) == pid
            began = time.perf_counter()
            assert (await second.look(want)).guest == Running(1)
            assert time.perf_counter() - began < 0.2  # 2 ms: no process is started for it
            assert await second.found() == {want.server_id}
            off = msgspec.structs.replace(want, power=Power.OFF, patience=10.0, disk_recorded=True)
            assert await settle(second, off) is Step.AT_REST
            assert "ended in order" in await second.console(want.server_id, None)
            assert want.server_id in stage.events
            assert (await second.look(off)).guest == Gone()
            assert stage.left_over(second) == []
            again = msgspec.structs.replace(want, edge=2, disk_recorded=True)
            assert await settle(second, again) is Step.AT_REST
            assert "ready: start 2" in await said(second, again, "start 2")
            gone = msgspec.structs.replace(again, gone=True)
            assert await settle(second, gone) is Step.REMOVED
            assert await second.found() == frozenset()
            assert not stage.folder(want).path.exists()
            assert stage.left_over(second) == []

    asyncio.run(scene())


AGENT = """
import asyncio, sys
from pathlib import Path
import msgspec
from unstuck.core.server.data import Want
from unstuck.host.drivers.folder import write_identity
from unstuck.host.drivers.instant import InstantDriver
from unstuck.host.drivers.machines import Machines
from unstuck.host.drivers.podman import cgroups
from unstuck.host.drivers.podman.driver import CopyError, PodmanDriver
from unstuck.host.images import FolderSource, ImageCache
from unstuck.host.networks.bridge import Bridges

async def main():
    want = msgspec.json.decode(sys.stdin.buffer.read(), type=Want)
    folder, host = Path(sys.argv[1]), sys.argv[2]
    driver = PodmanDriver(folder, host, ImageCache(folder, FolderSource(Path(sys.argv[3]))), Bridges(host))
    print("go", flush=True)
    await driver.start(want)

asyncio.run(main())
"""


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def gone(driver: PodmanDriver, want: Want) -> Gone:
    seen = await until(driver, want, Gone)
    assert isinstance(seen, Gone)
    return seen


def client_of(agent: int) -> int | None:
    """The ``podman run`` that an agent has started."""
    listing = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(agent)], capture_output=True, text=True)
    return next((int(line.split()[0]) for line in listing.stdout.splitlines() if "podman" in line), None)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["client", "agent", "both"])
def test_a_start_that_is_killed_at_any_moment_heals(tmp_path: Path, image: Path, who: str) -> None:
    """What the next agent finds is kept only where it runs; everything else is wiped, and started again."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want()
            await driver.fetch(want)
            await driver.make_disk(want)
            outcomes = []
            for edge in range(1, 11):
                want = msgspec.structs.replace(want, edge=edge, disk_recorded=True)
                words = [sys.executable, "-c", AGENT, stage.dir, stage.host_id, image.parent]
                with subprocess.Popen(  # noqa: ASYNC220
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                ) as agent:
                    assert agent.stdin is not None
                    assert agent.stdout is not None
                    agent.stdin.write(msgspec.json.encode(want))
                    agent.stdin.close()
                    agent.stdout.readline()
                    end = time.monotonic() + 20
                    while (client := client_of(agent.pid)) is None and agent.poll() is None:
                        assert time.monotonic() < end
                    await asyncio.sleep((edge - 1) * 0.018)
                    if who in ("agent", "both"):
                        agent.kill()
                    if who in ("client", "both") and client is not None:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(client, signal.SIGKILL)
                heir = stage.driver()
                outcomes.append(type((await heir.look(want)).guest).__name__)
                assert await settle(heir, want) is Step.AT_REST
                assert (await heir.look(want)).guest == Running(edge)
                await said(heir, want, "ready")
                off = msgspec.structs.replace(want, power=Power.OFF)
                assert await settle(heir, off) is Step.AT_REST
                assert stage.left_over(heir) == [], outcomes
            print(outcomes)

    asyncio.run(scene())


def test_a_guest_stands_still_and_goes_on(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            want, driver = stage.want(), stage.driver()
            await settle(driver, want)
            paused = msgspec.structs.replace(want, power=Power.PAUSED, disk_recorded=True)
            assert await settle(driver, paused) is Step.AT_REST
            assert (await driver.look(paused)).guest == Paused(1)
            assert (await stage.driver().look(paused)).guest == Paused(1)
            with pytest.raises(DriverError, match="cannot be suspended") as refused:
                await driver.save(want)
            assert refused.value.lasting
            assert await settle(driver, want) is Step.AT_REST
            assert (await driver.look(want)).guest == Running(1)
            await driver.pause(want)
            await driver.quit(want)  # a frozen one can be ended, too
            assert stage.left_over(driver) == []

    asyncio.run(scene())


def test_the_first_process_stopped_by_a_signal_is_mute_and_not_gone(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            want, driver = stage.want(), stage.driver()
            await settle(driver, want)
            os.kill(pid_of(driver, want), signal.SIGSTOP)
            await until(driver, want, Mute)
            os.kill(pid_of(driver, want), signal.SIGCONT)
            assert await until(driver, want, Running) == Running(1)

    asyncio.run(scene())


@pytest.mark.slow
def test_a_guest_that_ends_by_itself_is_started_again_until_the_budget_is_used_up(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            want, driver = stage.want(), stage.driver()
            await settle(driver, want)
            pid = pid_of(driver, want)
            await said(driver, want, "ready")
            inside(pid, "touch", "/var/lib/unstuck/fail")
            os.kill(pid, signal.SIGKILL)
            seen = await gone(driver, want)
            assert seen.starts == 1
            assert "status 137" in seen.last_error
            for count in range(2, 6):
                with contextlib.suppress(DriverError):  # it may have ended before it was looked at
                    await driver.start(want)
                seen = await gone(driver, want)
                assert seen.starts == count
                assert seen.last_error.startswith("it ended with status 7: ")
                assert seen.last_error.endswith("cannot go on")
            decision = plan_host(msgspec.structs.replace(want, disk_recorded=True), await driver.look(want))
            assert not isinstance(decision, Act)
            again = msgspec.structs.replace(want, edge=2, disk_recorded=True)
            decision = plan_host(again, await driver.look(again))
            assert isinstance(decision, Act)
            assert decision.do is Do.START

    asyncio.run(scene())


def test_a_guest_is_nobody_on_the_host_and_can_do_little(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            want, driver = stage.want(), stage.driver()
            await settle(driver, want)
            await said(driver, want, "ready")
            pid = pid_of(driver, want)
            facts = status_of(pid)
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            assert int(facts["CapBnd"], 16) == 0xFB  # what process 1 needs, see command.py
            if driver.abilities.users:
                assert int(facts["Uid"].split()[0]) >= 0x70000000
            else:
                assert "users" in driver.abilities.missing
            assert "Read-only file system" in inside(pid, "touch", "/usr/lib/unstuck/init")
            assert "Read-only file system" in inside(pid, "touch", "/run/unstuck-host/x")
            assert inside(pid, "touch", "/run/x", "/tmp/x", "/var/lib/unstuck/x") == ""
            assert "drwxrwxrwt" in inside(pid, "ls", "-ld", "/tmp")
            assert inside(pid, "touch", "/dev/shm/x") == ""  # where a datastore's processes share memory
            assert "eth" not in inside(pid, "cat", "/proc/net/dev")

    asyncio.run(scene())


@pytest.mark.slow
def test_a_full_volume_hurts_its_own_guest_only_and_data_outlives_every_start(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, full, other = stage.driver(), stage.want(), stage.want()
            for want in (full, other):
                await settle(driver, want)
                await said(driver, want, "ready")
            pid = pid_of(driver, full)
            told = inside(pid, "dd", "if=/dev/zero", "of=/var/lib/unstuck/all", "bs=1M", "count=2000")
            assert "No space left on device" in told
            inside(pid_of(driver, other), "sh", "-c", "echo precious > /var/lib/unstuck/row; sync")
            for want in (full, other):
                await driver.quit(want)
                assert await settle(driver, msgspec.structs.replace(want, disk_recorded=True)) is Step.AT_REST
            assert "precious" in inside(pid_of(driver, other), "cat", "/var/lib/unstuck/row")
            assert (await driver.look(full)).guest == Running(1)
            spec = msgspec.structs.replace(
                full.spec, flavor=msgspec.structs.replace(full.spec.flavor, disk_gb=3)
            )
            larger = msgspec.structs.replace(full, edge=2, spec=spec, disk_recorded=True)
            assert await settle(driver, larger) is Step.AT_REST
            told = inside(
                pid_of(driver, larger), "dd", "if=/dev/zero", "of=/var/lib/unstuck/more", "bs=1M", "count=500"
            )
            assert "500+0 records out" in told
            assert stage.folder(full).disk_of(full).stat().st_size == 3 << 30

    asyncio.run(scene())


def test_a_volume_grows_under_a_guest_that_ended_when_it_was_asked(tmp_path: Path, image: Path) -> None:
    """Found with a resize of an instance: its last container's mounts were in the way for ever."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            small, driver = stage.want(), stage.driver()
            assert await settle(driver, small) is Step.AT_REST
            folder = stage.folder(small)
            before = folder.disk_of(small).stat().st_size
            flavor = msgspec.structs.replace(small.spec.flavor, disk_gb=small.spec.flavor.disk_gb + 1)
            spec = msgspec.structs.replace(small.spec, flavor=flavor)
            large = msgspec.structs.replace(
                small, spec=spec, edge=2, intent=2, soft=True, patience=10.0, disk_recorded=True
            )
            assert await settle(driver, large) is Step.AT_REST
            assert folder.disk_of(large).stat().st_size == before + (1 << 30)
            assert "ready: start 2" in await said(driver, large, "start 2")

    asyncio.run(scene())


def test_a_volume_that_something_else_has_mounted_is_left_alone(tmp_path: Path, image: Path) -> None:
    """Two datastores on one volume would destroy it: whoever it is, the start waits for him."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want()
            await driver.fetch(want)
            await driver.make_disk(want)
            point = tmp_path / "elsewhere"
            point.mkdir()
            await run(["mount", "-o", "loop", str(stage.folder(want).disk_of(want)), str(point)], 10)
            try:
                with pytest.raises(DriverError, match="still in use on this host"):
                    await driver.start(want)
            finally:
                await run(["umount", str(point)], 10)
            assert await settle(driver, want) is Step.AT_REST

    asyncio.run(scene())


def test_a_volume_that_was_recorded_and_is_gone_is_shown_and_never_made_again(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want(disk_recorded=True)
            await driver.fetch(want)
            view = await driver.look(want)
            assert view.disk is Thing.ABSENT
            assert not isinstance(plan_host(want, view), Act)
            unmounted = stage.dir / "host.json"
            unmounted.rename(stage.dir / "away")
            assert isinstance((await driver.look(want)).guest, Unclear)
            (stage.dir / "away").rename(unmounted)

    asyncio.run(scene())


def test_one_driver_for_both_knows_whose_guest_is_which(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            boxes = stage.driver()
            vms = InstantDriver(stage.dir, stage.host_id, on_event=stage.events.append)
            both = Machines(stage.dir, vms, boxes, boxes.networks)
            box = stage.want()
            vm = stage.want()
            vm = msgspec.structs.replace(
                vm, spec=msgspec.structs.replace(vm.spec, machine=Machine.VM, data=False)
            )
            for want in (box, vm):
                assert await settle(both, want) is Step.AT_REST
                assert (await both.look(want)).guest == Running(1)
            await said(boxes, box, "ready")
            assert await both.found() == {box.server_id, vm.server_id}
            held = {item.server_id: item for item in await both.holdings()}
            assert {item.guest for item in held.values()} == {Thing.PRESENT}
            assert {item.disk for item in held.values()} == {Thing.PRESENT}
            assert held[box.server_id].spec == box.spec
            assert "ready" in await both.console(box.server_id, 1)
            assert "instant guest" in await both.console(vm.server_id, None)
            await both.quit(box)
            held = {item.server_id: item for item in await both.holdings()}
            assert held[box.server_id].guest is Thing.ABSENT
            assert held[vm.server_id].guest is Thing.PRESENT
            for want in (box, vm):
                assert await settle(both, msgspec.structs.replace(want, gone=True)) is Step.REMOVED
            assert await both.found() == frozenset()
            assert await both.holdings() == ()

    asyncio.run(scene())


def test_doctor_sees_containers_and_down_ends_them(tmp_path: Path, image: Path) -> None:
    """Everything is ended in order, and nothing is left mounted."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, one, other = stage.driver(), stage.want(), stage.want()
            for want in (one, other):
                await settle(driver, want)
                await said(driver, want, "ready")
            expected = [Expected(want.server_id, "db", "live", False, "on", "disk") for want in (one, other)]
            assert {guest.pid for guest in boxes.running(stage.state)} == {
                pid_of(driver, one),
                pid_of(driver, other),
            }
            real = await asyncio.to_thread(look, stage.state)
            assert compare(expected, real, "qemu") == []
            off = [msgspec.structs.replace(item, power="off") for item in expected]
            assert [item.kind for item in compare(off, real, "qemu")] == ["guest-too-much"] * 2
            gone = [msgspec.structs.replace(item, deleted=True) for item in expected]
            assert [item.kind for item in compare(gone, real, "qemu")] == ["not-removed"] * 2
            assert await boxes.end_all(stage.state, 10.0) == 2
            assert not driver.places.path.exists()
            assert not cgroups.servers(driver.places.group)
            for want in (one, other):
                assert "ended in order" in await driver.console(want.server_id, None)
            real = await asyncio.to_thread(look, stage.state)
            assert compare(off, real, "qemu") == []

    asyncio.run(scene())


@pytest.mark.slow
def test_a_copied_folder_is_refused_while_the_containers_of_the_first_live(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want()
            driver.claim()
            await settle(driver, want)
            copy = tmp_path / "copy"
            write_identity(copy, stage.host_id)
            cache = ImageCache(copy, stage.source)
            second = PodmanDriver(copy, stage.host_id, cache, driver.networks)
            with pytest.raises(CopyError, match="is a copy"):
                second.claim()
            await driver.quit(want)
            second.claim()

    asyncio.run(scene())


def test_after_a_reboot_of_the_host_a_guest_starts_again_on_its_data(tmp_path: Path, image: Path) -> None:
    """What a start wrote into the server's folder is there, and nothing else of it is."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want()
            await settle(driver, want)
            await said(driver, want, "start 1")
            record = stage.folder(want).path / "container.json"
            kept = record.read_bytes()
            assert await boxes.end_all(stage.state, 10.0) == 1
            record.write_bytes(kept)
            heir = stage.driver()
            again = msgspec.structs.replace(want, disk_recorded=True)
            assert isinstance((await heir.look(again)).guest, Mute)
            assert await settle(heir, again) is Step.AT_REST
            await said(heir, again, "start 2")

    asyncio.run(scene())


def test_what_only_the_runtime_knows_of_is_removed_too(tmp_path: Path, image: Path) -> None:
    """Podman forgets a container that its runtime still has; the kernel's group tells its name."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want()
            await settle(driver, want)
            (stage.folder(want).path / "container.id").unlink()
            podman = driver.places.podman / "root"
            podman.rename(driver.places.podman / "lost")
            heir = stage.driver()
            assert isinstance((await heir.look(want)).guest, Mute)
            await heir.quit(want)
            assert list((driver.places.podman / "runtime").iterdir()) == []
            assert not cgroups.servers(driver.places.group)
            again = msgspec.structs.replace(want, disk_recorded=True)
            assert await settle(heir, again) is Step.AT_REST

    asyncio.run(scene())


class Killed(BaseException):
    """The agent dies here."""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["driver.disk.half", "driver.start.mounted", "driver.start.forked"])
def test_an_agent_that_dies_between_two_steps_leaves_nothing_that_its_heir_cannot_mend(
    tmp_path: Path, image: Path, point: str
) -> None:
    async def die(name: str) -> None:
        if name == point:
            raise Killed

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(barrier=die), stage.want()
            with pytest.raises(Killed):
                await settle(driver, want)
            heir = stage.driver()
            recorded = stage.folder(want).disks() != []
            again = msgspec.structs.replace(want, disk_recorded=recorded)
            assert await settle(heir, again) is Step.AT_REST
            await said(heir, again, "ready: start 1" if point != "driver.start.forked" else "ready")
            gone = msgspec.structs.replace(again, gone=True)
            assert await settle(heir, gone) is Step.REMOVED
            assert stage.left_over(heir) == []

    asyncio.run(scene())


@pytest.mark.slow
def test_a_start_that_hangs_is_waited_for_and_then_ended(tmp_path: Path, image: Path) -> None:
    """Its agent is dead, and podman's client stands still: first unclear, which leads to nothing; once its
    time is over it is certain that it gets nowhere."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver, want = stage.driver(), stage.want(disk_recorded=True)
            await driver.fetch(want)
            await driver.make_disk(want)
            words = [sys.executable, "-c", AGENT, stage.dir, stage.host_id, image.parent]
            with subprocess.Popen(  # noqa: ASYNC220
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as agent:
                assert agent.stdin is not None
                agent.stdin.write(msgspec.json.encode(want))
                agent.stdin.close()
                end = time.monotonic() + 20
                while (client := client_of(agent.pid)) is None:
                    assert time.monotonic() < end
                os.kill(client, signal.SIGSTOP)
                agent.kill()
            assert (await driver.look(want)).guest == Unclear("starting")
            os.utime(stage.folder(want).lock, (0, 0))
            seen = (await driver.look(want)).guest
            assert isinstance(seen, Mute)
            assert seen.reason.startswith("its start hangs since")
            assert await settle(driver, want) is Step.AT_REST
            assert (await driver.look(want)).guest == Running(1)
            await driver.quit(want)
            assert stage.left_over(driver) == []

    asyncio.run(scene())
