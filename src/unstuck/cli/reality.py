"""What is on this machine, compared with what the store says should be: processes, folders, links, files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from unstuck.cli import guests
from unstuck.host.drivers.folder import server_ids
from unstuck.runtime.state import State


class Expected(msgspec.Struct, frozen=True):
    """What the store says of one server on this host."""

    server_id: str
    name: str
    status: str
    power: str
    """``on`` or ``off``: what is wanted."""
    settled: bool
    disk: bool
    """Its disk was made and must be there."""
    gone: bool = False
    """Wanted gone, and the host has not cleaned up yet."""


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as the store says. Nothing is changed: the remedy is for a person."""

    kind: str
    what: str
    detail: str
    remedy: str


class Reality(msgspec.Struct, frozen=True):
    """What was found."""

    folders: frozenset[str]
    guests: tuple[guests.GuestProcess, ...]
    instant: frozenset[str]
    links: tuple[str, ...]
    link_servers: frozenset[str]


def look(state: State) -> Reality:
    """Read only; what cannot be read is left out by its reader and said elsewhere."""
    links = asyncio.run(_links())
    return Reality(
        folders=server_ids(state.host),
        guests=tuple(guests.running(state)),
        instant=frozenset(path.parent.name for path in state.host.glob("servers/*/guest.json")),
        links=tuple(link.name for link in links),
        link_servers=frozenset(link.server_id for link in links if link.server_id is not None),
    )


async def _links() -> Iterable[Any]:
    from unstuck.host.driver import DriverError
    from unstuck.host.networks.bridge import Bridges

    try:
        return await Bridges().found_links()
    except (DriverError, OSError):
        return ()


def compare(expected: list[Expected], real: Reality, driver: str) -> list[Difference]:
    """Everything that is too much, too little, or different."""
    known = {item.server_id: item for item in expected}
    alive = {guest.server_id for guest in real.guests} | (real.instant if driver == "instant" else set())
    found = [*_twins(real), *_strangers(known, real, alive)]
    for item in expected:
        found += _one(item, real, alive)
    return found


def _twins(real: Reality) -> list[Difference]:
    counts: dict[str, list[int]] = {}
    for guest in real.guests:
        counts.setdefault(guest.server_id, []).append(guest.pid)
    return [
        Difference(
            "two-processes", server_id, f"processes {pids} are both its guest",
            "end the newer one by hand; this must never happen: please report it",
        )
        for server_id, pids in counts.items() if len(pids) > 1
    ]  # fmt: skip


def _strangers(known: dict[str, Expected], real: Reality, alive: set[str]) -> list[Difference]:
    """What the store does not know is never destroyed, only reported (law 7)."""
    places = (("guest", alive), ("folder", set(real.folders)), ("tap", set(real.link_servers)))
    return [
        Difference(
            f"unknown-{what}", server_id, f"the store knows no server {server_id} on this host",
            "if it is not wanted any more, remove it by hand; if the store is an older copy, recover it",
        )
        for what, ids in places for server_id in sorted(ids - known.keys())
    ]  # fmt: skip


def _one(item: Expected, real: Reality, alive: set[str]) -> list[Difference]:
    found = []

    def add(kind: str, detail: str, remedy: str) -> None:
        found.append(Difference(kind, f"{item.name} ({item.server_id})", detail, remedy))

    wait = "wait: work on it goes on; unstuck explain server says what is next"
    if item.gone:
        left = alive | real.folders | real.link_servers
        if item.settled and item.server_id in left:
            add("not-removed", "it is deleted and something of it is still here", wait)
        return found
    if item.disk and item.server_id not in real.folders:
        add("disk-missing", "its folder with the disk is not here", "restore it, or delete the server")
    if not item.settled:
        return found  # on its way: the agent is at work, and what is seen now is no fault
    if item.power == "on" and item.status == "ACTIVE" and item.server_id not in alive:
        add("guest-missing", "it should run, and there is no process", wait)
    if item.power == "off" and item.server_id in alive:
        add("guest-too-much", "it should be off, and its process runs", wait)
    stopped = [guest.pid for guest in real.guests if guest.server_id == item.server_id and guest.stopped]
    if stopped:
        add("guest-frozen", f"somebody stopped process {stopped[0]}", f"kill -CONT {stopped[0]}")
    return found
