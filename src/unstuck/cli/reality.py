"""What is on this machine, compared with what the store says should be: processes, folders, links, files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unstuck.cli import boxes, guests
from unstuck.host.drivers.folder import DISKS, knows, server_ids
from unstuck.runtime.locks import holder
from unstuck.runtime.state import HostFile, State

if TYPE_CHECKING:
    from unstuck.host.networks.bridge import Bridges


class Port(msgspec.Struct, frozen=True):
    id: str
    address: str = ""


class Expected(msgspec.Struct, frozen=True):
    """What the store says of one server on this host: a part of ``store.overview.Expected``."""

    server_id: str
    name: str
    state: str
    deleted: bool
    power: str
    disk_id: str | None
    ports: tuple[Port, ...] = ()

    @property
    def gone(self) -> bool:
        """Wanted gone, and the host has not cleaned up yet."""
        return self.deleted or self.state == "tombstone"


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as the store says. Nothing is changed: the remedy is for a person."""

    kind: str
    what: str
    detail: str
    remedy: str


class Tap(msgspec.Struct, frozen=True):
    name: str
    server_id: str
    port_id: str
    joined: bool
    """It is up and on a bridge."""


class Reality(msgspec.Struct, frozen=True):
    """What was found. ``taps`` is None where they could not be listed."""

    folders: frozenset[str]
    guests: tuple[guests.GuestProcess, ...]
    instant: frozenset[str]
    taps: tuple[Tap, ...] | None
    parts: tuple[str, ...]
    sockets: frozenset[str] | None = None
    """Servers whose guest can be asked (QMP); None where nobody looked."""
    disks: frozenset[str] | None = None
    """Servers with a root disk; None where nobody looked."""
    mounts: frozenset[str] = frozenset()
    """Servers that something is mounted for, as it is for a guest in a container."""

    def alive(self, driver: str) -> set[str]:
        """Servers with a guest."""
        found = {guest.server_id for guest in self.guests}
        return found | self.instant if driver == "instant" else found


def look(state: State) -> Reality:
    """Read only."""
    running = holder(state.host_lock) is not None
    contained = boxes.running(state)
    return Reality(
        folders=server_ids(state.host),
        guests=(*guests.running(state), *contained),
        instant=frozenset(path.parent.name for path in state.host.glob("servers/*/guest.json")),
        taps=asyncio.run(_taps(state)),
        # While the agent runs, a part is a fetch under way; afterwards it is what a killed one left.
        parts=() if running else tuple(path.name for path in state.host.glob("images/*.part*")),
        # A container needs none to be asked.
        sockets=frozenset(path.parent.name for path in state.host.glob("servers/*/qmp.sock"))
        | {guest.server_id for guest in contained},
        disks=frozenset(
            path.parent.name for path in state.host.glob("servers/*/disk-*") if path.suffix in DISKS
        ),
        mounts=boxes.left(state),
    )


def bridges(state: State) -> Bridges:
    """This cloud's networks on this machine. Raises OSError or ``msgspec.DecodeError`` without a host."""
    from unstuck.host.networks.bridge import Bridges

    host = msgspec.json.decode((state.host / "host.json").read_bytes(), type=HostFile)
    return Bridges(host.host_id, knows=knows(state.host))


async def _taps(state: State) -> tuple[Tap, ...] | None:
    from unstuck.host.driver import DriverError

    try:
        links = await bridges(state).found_links()
    except (DriverError, OSError, msgspec.DecodeError):
        return None
    return tuple(
        Tap(link.name, link.server_id, link.port_id or "", link.up and link.master is not None)
        for link in links
        if link.server_id is not None
    )


def compare(expected: list[Expected], real: Reality, driver: str) -> list[Difference]:
    """Everything that is too much, too little, or different."""
    known = {item.server_id: item for item in expected}
    alive = real.alive(driver)
    found = [*_twins(real), *_strangers(known, real, alive), *_parts(real), *_mounts(real, alive)]
    for item in expected:
        found += _gone(item, real, alive) if item.gone else _one(item, real, alive)
        if driver == "qemu" and item.server_id in alive and not item.gone:
            found += _ports(item, real)
        if driver == "qemu" and not item.gone:
            found += _files(item, real, alive)
    return found


def _twins(real: Reality) -> list[Difference]:
    counts: dict[str, list[int]] = {}
    for guest in real.guests:
        counts.setdefault(guest.server_id, []).append(guest.pid)
    remedy = "this must never happen: look which one has the disk, end the other, and report it"
    return [
        Difference("two-processes", server_id, f"processes {pids} are both its guest", remedy)
        for server_id, pids in counts.items()
        if len(pids) > 1
    ]


def _strangers(known: Mapping[str, Expected], real: Reality, alive: set[str]) -> list[Difference]:
    """What the store does not know is never destroyed, only reported (law 7)."""
    taps = {tap.server_id for tap in real.taps or ()}
    remedy = "if it is not wanted, remove it by hand; if the store is an older copy, put back the newer one"
    return [
        Difference(f"unknown-{what}", server_id, "the store has no such server on this host", remedy)
        for what, ids in (("guest", alive), ("folder", set(real.folders)), ("tap", taps))
        for server_id in sorted(ids - known.keys())
    ]


def _parts(real: Reality) -> list[Difference]:
    remedy = "none needed: the agent removes it when it starts"
    return [Difference("image-part", name, "a fetch was cut off", remedy) for name in real.parts]


def _mounts(real: Reality, alive: set[str]) -> list[Difference]:
    detail = "its container is not there, and what was mounted for it is"
    remedy = "the host agent takes it away; is it running?"
    return [Difference("mounts-left", name, detail, remedy) for name in sorted(real.mounts - alive)]


def _gone(item: Expected, real: Reality, alive: set[str]) -> list[Difference]:
    left = [
        word
        for word, there in (
            ("guest", item.server_id in alive),
            ("folder", item.server_id in real.folders),
            ("tap", any(tap.server_id == item.server_id for tap in real.taps or ())),
        )
        if there
    ]
    if not left:
        return []
    detail = f"it is deleted, and its {' and '.join(left)} is still here"
    return [Difference("not-removed", _name(item), detail, "the host agent removes it; is it running?")]


def _one(item: Expected, real: Reality, alive: set[str]) -> list[Difference]:
    found = []
    why = f"unstuck explain server {item.server_id}"
    if item.disk_id is not None and item.server_id not in real.folders:
        detail = "its folder with the disk is not here"
        found.append(Difference("disk-missing", _name(item), detail, f"delete it or restore it; {why}"))
    elif item.disk_id is not None and item.power == "on" and item.server_id not in alive:
        found.append(Difference("guest-missing", _name(item), "it should run, and does not", why))
    if item.power == "off" and item.server_id in alive:
        found.append(Difference("guest-too-much", _name(item), "it should be off, and runs", why))
    for guest in real.guests:
        if guest.server_id == item.server_id and guest.stopped:
            detail = f"somebody stopped process {guest.pid}"
            found.append(Difference("guest-frozen", _name(item), detail, f"kill -CONT {guest.pid}"))
    return found


def _files(item: Expected, real: Reality, alive: set[str]) -> list[Difference]:
    found = []
    if real.sockets is not None and item.server_id in alive - real.sockets:
        detail = "its guest runs, and the socket to ask it is gone"
        found.append(Difference("socket-missing", _name(item), detail, "reboot the server hard"))
    if real.disks is not None and item.disk_id is not None and item.server_id in real.folders - real.disks:
        detail = "its folder is here, and the root disk in it is not"
        remedy = "bring the disk back, or delete the server"
        found.append(Difference("disk-missing", _name(item), detail, remedy))
    return found


def _ports(item: Expected, real: Reality) -> list[Difference]:
    """Only for guests that run: the taps of others may come and go."""
    if real.taps is None:
        return []
    joined = {tap.port_id for tap in real.taps if tap.server_id == item.server_id and tap.joined}
    remedy = "the host agent makes it again; is it running?"
    return [
        Difference("tap-missing", _name(item), f"no tap on a bridge for its address {port.address}", remedy)
        for port in item.ports
        if port.id not in joined
    ]


def _name(item: Expected) -> str:
    return f"{item.name} ({item.server_id})"
