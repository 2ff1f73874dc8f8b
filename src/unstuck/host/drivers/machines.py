"""One driver out of two: virtual machines here, containers there, each server by what is wanted of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from unstuck.core.agents import Holding
from unstuck.core.server.data import Machine, Thing, View, Want
from unstuck.host.driver import Driver
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.images import Wanted
from unstuck.host.networks.bridge import Bridges


class ClosingDriver(Driver, Protocol):
    """A driver that has something to close when the process ends."""

    def keep(self, wanted: Callable[[], Wanted | None]) -> None:
        """Whom to ask which images have to stay."""
        ...

    async def close(self) -> None: ...


class Machines:
    """Both share the state folder, the image cache and the networks; a server is never in both."""

    def __init__(
        self, host_dir: Path, vms: ClosingDriver, containers: ClosingDriver, networks: Bridges
    ) -> None:
        self._host_dir = host_dir
        self._vms = vms
        self._containers = containers
        self.networks = networks

    def _of(self, want: Want) -> ClosingDriver:
        return self._containers if want.spec.machine is Machine.CONTAINER else self._vms

    def keep(self, wanted: Callable[[], Wanted | None]) -> None:
        for driver in (self._vms, self._containers):
            driver.keep(wanted)

    async def close(self) -> None:
        for driver in (self._vms, self._containers):
            await driver.close()

    async def look(self, want: Want) -> View:
        return await self._of(want).look(want)

    async def fetch(self, want: Want) -> None:
        await self._of(want).fetch(want)

    async def make_disk(self, want: Want) -> None:
        await self._of(want).make_disk(want)

    async def drop_disks(self, want: Want) -> None:
        await self._of(want).drop_disks(want)

    async def grow_disk(self, want: Want) -> None:
        await self._of(want).grow_disk(want)

    async def capture(self, want: Want) -> None:
        await self._of(want).capture(want)

    async def drop_copies(self, want: Want) -> None:
        await self._of(want).drop_copies(want)

    async def make_nics(self, want: Want) -> None:
        await self._of(want).make_nics(want)

    async def start(self, want: Want) -> None:
        await self._of(want).start(want)

    async def pause(self, want: Want) -> None:
        await self._of(want).pause(want)

    async def resume(self, want: Want) -> None:
        await self._of(want).resume(want)

    async def save(self, want: Want) -> None:
        await self._of(want).save(want)

    async def drop_memory(self, want: Want) -> None:
        await self._of(want).drop_memory(want)

    async def power_down(self, want: Want) -> None:
        await self._of(want).power_down(want)

    async def quit(self, want: Want) -> None:
        await self._of(want).quit(want)

    async def remove_nics(self, want: Want) -> None:
        await self._of(want).remove_nics(want)

    async def remove_folder(self, want: Want) -> None:
        await self._of(want).remove_folder(want)

    async def found(self) -> frozenset[str]:
        return await self._vms.found() | await self._containers.found()

    async def holdings(self) -> tuple[Holding, ...]:
        """Folders are seen by both; whose guest it is, the living one tells."""
        mine = {held.server_id: held for held in await self._containers.holdings()}
        merged = []
        for held in await self._vms.holdings():
            other = mine.pop(held.server_id, held)
            merged.append(msgspec.structs.replace(held, guest=_either(held.guest, other.guest)))
        return (*merged, *mine.values())

    async def console(self, server_id: str, lines: int | None) -> str:
        grant = await asyncio.to_thread(ServerFolder(self._host_dir, server_id).read_grant)
        boxed = grant is not None and grant.spec is not None and grant.spec.machine is Machine.CONTAINER
        return await (self._containers if boxed else self._vms).console(server_id, lines)


def _either(one: Thing, other: Thing) -> Thing:
    for value in (Thing.PRESENT, Thing.UNKNOWN):
        if value in (one, other):
            return value
    return Thing.ABSENT
