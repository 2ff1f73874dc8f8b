"""The host agent's process: ``unstuck host``. It may die at any moment; guests do not notice."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from unstuck.core.agents import PROTOCOL, HostFacts, Registered
from unstuck.host.agent import Agent, Guests
from unstuck.host.client import HttpControl, Rejected
from unstuck.host.control import Superseded
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import knows, sweep_records
from unstuck.host.drivers.machines import ClosingDriver, Machines
from unstuck.host.eviction import room_for_guests
from unstuck.host.identity import MachineLock, refuse_a_copy
from unstuck.host.images import ImageCache
from unstuck.host.networks.bridge import unfit
from unstuck.host.serials import Serials
from unstuck.host.space import RESERVE
from unstuck.runtime import logs
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.files import write_whole
from unstuck.runtime.locks import FileLock, Held
from unstuck.runtime.marks import MarkFile
from unstuck.runtime.port import EXIT_REJECTED, EXIT_SUPERSEDED, AsyncPort
from unstuck.runtime.processes import boot_id, myself
from unstuck.runtime.service import Service
from unstuck.runtime.state import FORMAT, HostFile, State, StateError, default_state, machine_id

EXIT_STATE = 78
GUARD = 10.0
"""Seconds between two looks at the packet filter."""

CONTAINERS: Final = "UNSTUCK_CONTAINERS"
"""``off``: databases that come to this host run in virtual machines, also where containers could."""

log = structlog.get_logger(__name__)


class Ready(msgspec.Struct, frozen=True):
    """``run/host.json``: the agent has registered."""

    pid: int
    start: int
    incarnation: int


class Identity(msgspec.Struct, frozen=True):
    host_id: str
    machine_id: str
    secret: str


def read_identity(folder: Path) -> Identity:
    """Who this host is. Raises :class:`StateError`: a folder of another machine is refused."""
    try:
        found = msgspec.json.decode((folder / "host.json").read_bytes(), type=HostFile)
        secret = (folder / "secret").read_text().strip()
    except FileNotFoundError as error:
        raise StateError(
            f"{error.filename} is missing: is the state folder's file system mounted? "
            "On a new host `unstuck up` makes it."
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise StateError(f"The host's identity in {folder} cannot be read: {error}") from error
    if found.format != FORMAT:
        raise StateError(f"{folder} has format {found.format}, this version of Unstuck knows {FORMAT}.")
    mine = machine_id()
    if found.machine_id and found.machine_id != mine:
        raise StateError(
            f"{folder} belongs to another machine (it was copied, or this machine's id has changed): two "
            "hosts with one identity would fight over its servers. Use a folder of its own (--state), or, if "
            f"the other machine is gone for good, write {mine!r} as machine_id into host.json."
        )
    return Identity(found.host_id, mine, secret)


def facts(
    folder: Path, machine: str, driver: str, accelerator: str, version: str, no_networks: str = "",
    no_containers: str = "not asked",
) -> HostFacts:  # fmt: skip
    """What this host is and has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostFacts(
        hostname=socket.gethostname(),
        machine_id=machine,
        boot_id=boot_id(),
        vcpus=len(os.sched_getaffinity(0)),
        ram_mb=memory >> 20,
        disk_gb=room_for_guests(folder, RESERVE) >> 30,
        accelerator=accelerator,
        driver=driver,
        driver_version=version,
        no_networks=no_networks,
        machines=("vm",) if no_containers else ("vm", "container"),
        no_containers=no_containers,
        protocol=PROTOCOL,
    )


def _qemu_version() -> str:
    """The version line of QEMU; empty when it is not there, which `unstuck doctor` explains."""
    try:
        done = subprocess.run(
            ["qemu-system-x86_64", "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].removeprefix("QEMU emulator version ").split(" ")[0]


def no_containers_here() -> str:
    """Why no database runs in a container on this host; empty where they do."""
    from unstuck.host.drivers.podman.engine import unfit as unfit_for_containers

    return unfit_for_containers()


def not_wanted() -> str:
    """The operator's word against containers: what comes to this host from now on runs in machines."""
    return f"{CONTAINERS}=off" if os.environ.get(CONTAINERS, "").lower() in ("off", "no", "0") else ""


def _accelerator() -> str:
    from unstuck.host import kvm

    return kvm.accelerator().value


def make_driver(
    name: str, folder: Path, host_id: str, accelerator: str, control: HttpControl,
    port: AsyncPort, barriers: Barriers, *, containers: bool = False,
) -> ClosingDriver:  # fmt: skip
    """The driver by name; its events wake the loop of the server they are about."""
    from unstuck.host.networks.bridge import Bridges

    networks = Bridges(host_id, knows=knows(Path(os.path.realpath(folder))))
    cache = ImageCache(Path(os.path.realpath(folder)), control, barriers.reach)
    with contextlib.suppress(OSError):  # no reason not to look after guests
        # Now, not at the next fetch: on a host that has all its images there may never be one.
        cache.sweep()
    vms: ClosingDriver
    if name == "instant":
        from unstuck.host.drivers.instant import InstantDriver

        vms = InstantDriver(folder, host_id, on_event=port.wake)
    else:
        from unstuck.host.drivers.qemu import QemuDriver

        vms = QemuDriver(
            folder, host_id, accelerator, control, networks=networks, cache=cache, on_event=port.wake,
            barrier=barriers.reach, sink=control,
        )  # fmt: skip
    if not containers:
        return vms
    from unstuck.host.drivers.podman.driver import CopyError, PodmanDriver

    boxes = PodmanDriver(folder, host_id, cache, networks, on_event=port.wake, barrier=barriers.reach)
    try:
        boxes.claim()
    except CopyError as error:
        raise StateError(str(error)) from None
    if boxes.abilities.missing:
        log.warning("containers have to do without", missing=boxes.abilities.missing)
    return Machines(folder, vms, boxes, networks)


async def run(state: State, url: str, driver_name: str) -> int:
    """Run one incarnation of the agent; returns the process's exit code."""
    identity = read_identity(state.host)
    name = MachineLock(identity.host_id)
    name.acquire()
    try:
        return await work(state, identity, url, driver_name)
    finally:
        name.release()


async def work(state: State, identity: Identity, url: str, driver_name: str) -> int:
    """What :func:`run` does once it is certain that no other process is this host."""
    refuse_a_copy(state.host)
    with contextlib.suppress(OSError):
        sweep_records(state.host)
    barriers = Barriers.from_environment(state.run)
    port = AsyncPort(barriers, {Superseded: EXIT_SUPERSEDED, Rejected: EXIT_REJECTED})
    control = HttpControl(url, identity.host_id, identity.secret, on_registered=_tell(state))
    accelerator, version, no_networks = "none", "1", ""
    if driver_name == "qemu":
        accelerator, version = await asyncio.gather(
            asyncio.to_thread(_accelerator), asyncio.to_thread(_qemu_version)
        )
        no_networks = unfit()
    unfit_for_containers = await asyncio.to_thread(no_containers_here)
    driver = make_driver(
        driver_name, state.host, identity.host_id, accelerator, control, port, barriers,
        containers=not unfit_for_containers,  # also where they are not wanted: some may be there
    )  # fmt: skip
    no_containers = unfit_for_containers or not_wanted()
    known = facts(
        state.host, identity.machine_id, driver_name, accelerator, version, no_networks, no_containers
    )
    marks = MarkFile(state.host / "mark.json")
    agent = Agent(port, control, driver, known, secrets.token_hex(16), marks, time.time)
    driver.keep(agent.images_wanted)
    agent.serve(lambda: _serve_guests(port, control, agent, state.host))
    agent.show(Serials(port, control, agent, state.host))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, port.end, 0)
    log.info("host agent starts", host=identity.host_id, url=url, driver=driver_name, accelerator=accelerator)
    service = Service.of_this_process()
    # Ready is who holds its locks: a control plane that is away is no reason to be started again.
    service.say("READY=1", f"STATUS=agent of host {identity.host_id}")
    works = {"agent": agent.run(), "guard": guard_forever(port, driver), "watchdog": service.watch(port)}
    try:
        return await port.run(works)
    finally:
        service.say("STOPPING=1")
        await driver.close()
        await control.close()
        log.info("host agent ends; guests go on running")


def _serve_guests(port: AsyncPort, control: HttpControl, agent: Agent, folder: Path) -> Guests:
    from unstuck.host.serving import serve_guests  # keys and object stores: needed by databases only

    return serve_guests(port, control, agent, folder)


async def guard_forever(port: AsyncPort, driver: ClosingDriver) -> None:
    """Put the packet filter back where somebody flushed it: until then guests could reach this host."""
    networks = getattr(driver, "networks", None)
    if networks is None:
        return
    while True:
        try:
            if await port.effect("networks.guard", networks.guard):
                log.warning("the packet filter was gone and is there again")
        except (DriverError, OSError) as error:
            log.warning("packet filter unclear", error=str(error))
        await port.pause(GUARD, "guard")


def _tell(state: State) -> Callable[[Registered], None]:
    def registered(answer: Registered) -> None:
        me = myself()
        ready = Ready(me.pid, me.start, answer.incarnation)
        write_whole(state.host_ready, msgspec.json.encode(ready), durable=False)

    return registered


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="unstuck host", description="Run the agent of this host.")
    parser.add_argument("--state", type=Path, default=None, help="state folder")
    parser.add_argument("--url", default=None, help="URL of the control plane, or several with commas")
    parser.add_argument("--driver", choices=("qemu", "instant"), default=None)
    parser.add_argument("--join", default=None, metavar="TOKEN", help="become a member first; @FILE reads it")
    parser.add_argument("--name", default=None, help="this host's name in the cloud, with --join")
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    logs.set_up("host")
    state = State(arguments.state or default_state())
    try:
        url = arguments.url or os.environ.get("UNSTUCK_URL") or state.url()
        driver = arguments.driver or state.read().driver
        if arguments.join is not None:
            from unstuck.host.join import join, token_from

            join(state, url, token_from(arguments.join), arguments.name)
        lock = FileLock(state.host_lock)
        lock.acquire(take_over=True)
    except (StateError, Held) as error:
        return _refuse(str(error))
    except FileNotFoundError:
        return _refuse(f"{state.host} is missing; `unstuck up` makes it")
    except PermissionError as error:
        return _refuse(f"{error.filename} may not be opened by this user")
    try:
        # Not uvloop: it breaks on a helper that ends before it has read its input.
        return asyncio.run(run(state, url, driver))
    except StateError as error:
        return _refuse(str(error))
    finally:
        lock.release()


def _refuse(reason: str) -> int:
    logs.refuse("host", "host agent cannot start", reason)
    return EXIT_STATE


if __name__ == "__main__":
    raise SystemExit(main())
