"""A driver whose guests are marker files: for benchmarks and for tests of what stands above a driver.

It keeps the real one's promises (names from id and nonce, a disk is never made twice, everything survives
the agent) and costs next to nothing, so that a bench measures Unstuck and not QEMU. A reboot of the host
ends its guests as it would real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from unstuck.core.agents import Holding
from unstuck.core.server.data import (
    CopyFailed,
    Gone,
    Guest,
    Missing,
    Off,
    Paused,
    Ready,
    Running,
    Thing,
    Unclear,
    View,
    Want,
)
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import drop_disks
from unstuck.host.drivers.folder import (
    FolderError,
    ServerFolder,
    boot_id,
    check_identity,
    holdings,
    server_ids,
)
from unstuck.host.images import Wanted
from unstuck.runtime.files import write_whole


class Marker(msgspec.Struct, frozen=True):
    """``guest.json``: a guest "runs" while it is there and of this boot."""

    edge: int
    boot_id: str
    off: bool = False
    paused: bool = False


class InstantDriver:
    """Implements :class:`unstuck.host.driver.Driver` with files in the state folder only."""

    def __init__(
        self, host_dir: Path, host_id: str, *, on_event: Callable[[str], None] = lambda _: None
    ) -> None:
        self._host_dir = host_dir
        self._host_id = host_id
        self._on_event = on_event
        self._boot_id = boot_id()

    def keep(self, wanted: Callable[[], Wanted | None]) -> None:
        """There are no images here."""

    async def close(self) -> None:
        """Nothing is open."""

    async def look(self, want: Want) -> View:
        try:
            return await asyncio.to_thread(self._see, want)
        except (DriverError, FolderError, OSError, msgspec.DecodeError) as error:
            unknown = Thing.UNKNOWN
            return View(Unclear(str(error)), Missing(), unknown, unknown, unknown, str(error))

    async def fetch(self, want: Want) -> None:
        """Images are always there."""

    async def make_disk(self, want: Want) -> None:
        def make(folder: ServerFolder) -> None:
            folder.ensure()
            folder.write_grant(want, durable=False)
            _make(folder, folder.disk_of(want))

        await self._do(want, make)

    async def drop_disks(self, want: Want) -> None:
        await self._do(want, lambda folder: drop_disks(folder, want))

    async def grow_disk(self, want: Want) -> None:
        """Its disks are of no size."""

    async def capture(self, want: Want) -> None:
        """Its disks hold nothing: that is said with the next look."""

    async def drop_copies(self, want: Want) -> None:
        """There are none."""

    async def make_nics(self, want: Want) -> None:
        await self._do(want, lambda folder: _make(folder, _nics(folder)))

    async def start(self, want: Want) -> None:
        def start(folder: ServerFolder) -> None:
            if not folder.disk_of(want).exists():
                raise DriverError("the root disk is not there")
            saved = folder.memory(want.edge)
            folder.drop_memories(keep=saved)
            self._mark(folder, Marker(want.edge, self._boot_id, paused=saved.exists()))
            folder.write_grant(want, durable=False)
            folder.console.write_text(f"instant guest {want.spec.name}, start {want.edge}\n")

        await self._do(want, start)
        self._on_event(want.server_id)

    async def pause(self, want: Want) -> None:
        await self._stand(want, still=True)

    async def resume(self, want: Want) -> None:
        await self._stand(want, still=False)

    async def save(self, want: Want) -> None:
        await self._stand(want, still=True)
        await self._do(want, lambda folder: _make(folder, folder.memory(want.edge)))

    async def drop_memory(self, want: Want) -> None:
        await self._do(want, lambda folder: folder.memory(want.edge).unlink(missing_ok=True))

    async def _stand(self, want: Want, *, still: bool) -> None:
        def stand(folder: ServerFolder) -> None:
            marker = self._marker(folder)
            if marker is not None and not marker.off:
                self._mark(folder, msgspec.structs.replace(marker, paused=still))

        await self._do(want, stand)
        self._on_event(want.server_id)

    async def power_down(self, want: Want) -> None:
        def off(folder: ServerFolder) -> None:
            marker = self._marker(folder)
            if marker is not None:
                self._mark(folder, Marker(marker.edge, self._boot_id, off=True))

        await self._do(want, off)
        self._on_event(want.server_id)

    async def quit(self, want: Want) -> None:
        await self._do(want, lambda folder: _guest(folder).unlink(missing_ok=True))
        self._on_event(want.server_id)

    async def remove_nics(self, want: Want) -> None:
        await self._do(want, lambda folder: _nics(folder).unlink(missing_ok=True))

    async def remove_folder(self, want: Want) -> None:
        def remove(folder: ServerFolder) -> None:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder.path)

        await self._do(want, remove)

    async def found(self) -> frozenset[str]:
        try:
            await asyncio.to_thread(check_identity, self._host_dir, self._host_id)
            return await asyncio.to_thread(server_ids, self._host_dir)
        except (FolderError, OSError) as error:
            raise DriverError(str(error)) from error

    async def holdings(self) -> tuple[Holding, ...]:
        def guest(folder: ServerFolder) -> Thing:
            return Thing.ABSENT if self._marker(folder) is None else Thing.PRESENT

        try:
            return await asyncio.to_thread(holdings, self._host_dir, self._host_id, guest)
        except (FolderError, OSError) as error:
            raise DriverError(str(error)) from error

    async def console(self, server_id: str, lines: int | None) -> str:
        return await asyncio.to_thread(ServerFolder(self._host_dir, server_id).console_tail, lines)

    async def _do(self, want: Want, effect: Callable[[ServerFolder], None]) -> None:
        def checked() -> None:
            check_identity(self._host_dir, self._host_id)
            effect(ServerFolder(self._host_dir, want.server_id))

        try:
            await asyncio.to_thread(checked)
        except (FolderError, OSError) as error:
            raise DriverError(str(error)) from error

    def _see(self, want: Want) -> View:
        check_identity(self._host_dir, self._host_id)
        folder = ServerFolder(self._host_dir, want.server_id)
        disk = Thing.PRESENT if folder.disk_of(want).exists() else Thing.ABSENT
        nics = Thing.PRESENT if _nics(folder).exists() else Thing.ABSENT
        if not want.gone and not want.spec.nics:
            nics = Thing.PRESENT
        present = Thing.PRESENT if folder.path.is_dir() else Thing.ABSENT
        old = any(folder.disk(nonce).exists() for nonce in want.replaced)
        replaced = Thing.PRESENT if old else Thing.ABSENT
        memory = Thing.PRESENT if folder.memory(want.edge).exists() else Thing.ABSENT
        copy = CopyFailed("the disks of this driver hold nothing", final=True) if want.capture else None
        return View(
            self._see_guest(folder), Ready(), disk, nics, present, replaced=replaced, memory=memory, copy=copy
        )

    def _see_guest(self, folder: ServerFolder) -> Guest:
        marker = self._marker(folder)
        if marker is None:
            return Gone()
        if marker.off:
            return Off(marker.edge)
        return Paused(marker.edge) if marker.paused else Running(marker.edge)

    def _marker(self, folder: ServerFolder) -> Marker | None:
        try:
            marker = msgspec.json.decode(_guest(folder).read_bytes(), type=Marker)
        except FileNotFoundError:
            return None
        return marker if marker.boot_id == self._boot_id else None

    def _mark(self, folder: ServerFolder, marker: Marker) -> None:
        write_whole(_guest(folder), msgspec.json.encode(marker), durable=False)


def _guest(folder: ServerFolder) -> Path:
    return folder.path / "guest.json"


def _nics(folder: ServerFolder) -> Path:
    return folder.path / "nics"


def _make(folder: ServerFolder, path: Path) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    path.touch()
