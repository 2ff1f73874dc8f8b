"""The driver for containers: podman, and the kernel's own word on who lives (design/guests.md)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from unstuck.core.agents import Holding
from unstuck.core.server.data import (
    BootImage,
    FetchFailed,
    Guest,
    ImageRole,
    Images,
    Missing,
    Thing,
    Unclear,
    View,
    Want,
)
from unstuck.host.driver import DriverError, words
from unstuck.host.drivers import disk, volume
from unstuck.host.drivers.captures import NO_IMAGE_OF_DATA
from unstuck.host.drivers.folder import (
    CONSOLE_MAX,
    FolderError,
    ServerFolder,
    check_identity,
    holdings,
    server_ids,
)
from unstuck.host.drivers.podman import cgroups, mounts
from unstuck.host.drivers.podman.command import owner
from unstuck.host.drivers.podman.console import console_tail
from unstuck.host.drivers.podman.containers import Containers
from unstuck.host.drivers.podman.engine import Abilities, Engine, abilities
from unstuck.host.drivers.podman.places import Places
from unstuck.host.drivers.process import lock_held
from unstuck.host.drivers.sight import inspect_disk
from unstuck.host.images import Barrier, ImageCache, Wanted, no_barrier
from unstuck.host.networks import netns
from unstuck.host.networks.bridge import NEEDS_ROOT, NEEDS_ROOT_REMEDY, Bridges
from unstuck.runtime.files import write_whole

_LOOK_DEADLINE = 30.0


class CopyError(Exception):
    """The state folder is a copy of one whose containers live."""


class PodmanDriver:
    """One host's containers. Keeps nothing that matters: a second driver sees the same.

    Shares the cache and the networks of the driver for virtual machines, where there is one.
    """

    def __init__(
        self,
        host_dir: Path,
        host_id: str,
        cache: ImageCache,
        networks: Bridges,
        *,
        able: Abilities | None = None,
        on_event: Callable[[str], None] = lambda _: None,
        barrier: Barrier = no_barrier,
    ) -> None:
        self._host_dir = Path(os.path.realpath(host_dir))
        self._host_id = host_id
        self._barrier = barrier
        self.networks = networks
        self.cache = cache
        self.places = Places(host_id)
        self.abilities = able if able is not None else abilities()
        self._containers = Containers(Engine(self.places, self.abilities), cache, barrier, on_event)

    def claim(self) -> None:
        """Say that these containers are of this folder. Raises :class:`CopyError` where they run out of a
        folder that is still there: one of the two is a copy, and would start them a second time. Blocks."""
        self.places.ensure()
        owner = self.places.path / "folder"
        with contextlib.suppress(FileNotFoundError):
            other = Path(owner.read_text())
            if other != self._host_dir and living_servers(self.places):
                with contextlib.suppress(FolderError):
                    check_identity(other, self._host_id)
                    raise CopyError(
                        f"containers of this host run out of {other}: one of the two folders is a copy. Use "
                        "that one, or end them first (`unstuck down --guests --state FOLDER`)."
                    )
        write_whole(owner, str(self._host_dir).encode(), durable=False)

    def keep(self, wanted: Callable[[], Wanted | None]) -> None:
        """Whom to ask which images have to stay when room is made."""
        self.cache.wanted = wanted

    async def close(self) -> None:
        """Leave all guests running; drop fetches."""
        await self.cache.close()

    # --- looking

    async def look(self, want: Want) -> View:
        try:
            async with asyncio.timeout(_LOOK_DEADLINE):
                return await self._look(want)
        except Exception as error:  # the edge: a look never raises, what cannot be seen is unknown (law 4)
            reason = _reason(error)
            unknown = Thing.UNKNOWN
            return View(Unclear(reason), Missing(), unknown, unknown, unknown, reason)

    async def _look(self, want: Want) -> View:
        folder = ServerFolder(self._host_dir, want.server_id)
        there, seen, why, short, old = await asyncio.to_thread(self._inspect, folder, want)
        guest, (nics, nics_reason) = await asyncio.gather(self._guest(folder, want), self._look_nics(want))
        reason = "; ".join(part for part in (why, nics_reason) if part)
        remedy = NEEDS_ROOT_REMEDY if nics_reason == NEEDS_ROOT else ""
        copy = NO_IMAGE_OF_DATA if want.capture else None
        return View(guest, self._images(want), seen, nics, there, reason, remedy, old, short=short, copy=copy)

    def _inspect(self, folder: ServerFolder, want: Want) -> tuple[Thing, Thing, str, bool, Thing]:
        check_identity(self._host_dir, self._host_id)
        seen, why, short, old = inspect_disk(folder, want)
        folder.bound_console(CONSOLE_MAX)
        there = Thing.PRESENT if folder.path.is_dir() else Thing.ABSENT
        return there, seen, why, short, old

    async def _guest(self, folder: ServerFolder, want: Want) -> Guest:
        try:
            return await self._containers.guest(folder, want)
        except (DriverError, OSError) as error:
            return Unclear(_reason(error))

    async def _look_nics(self, want: Want) -> tuple[Thing, str]:
        try:
            return await self.networks.look(want)
        except (DriverError, OSError) as error:
            return Thing.UNKNOWN, _reason(error)

    def _images(self, want: Want) -> Images:
        try:
            return self.cache.state(_images_of(want))
        except (DriverError, OSError) as error:
            return FetchFailed(_reason(error), final=False)

    # --- effects

    async def fetch(self, want: Want) -> None:
        await self._checked(want)
        await self.cache.fetch(_images_of(want))

    async def make_disk(self, want: Want) -> None:
        folder = await self._checked(want)
        if not want.spec.data:
            remedy = "use a virtual machine for it"
            raise DriverError("a container's disk is a volume for data alone", remedy=remedy, lasting=True)
        await volume.make_volume(folder, want, self.cache.space, self._barrier, owner(self.abilities))

    async def drop_disks(self, want: Want) -> None:
        await asyncio.to_thread(disk.drop_disks, await self._checked(want), want)

    async def grow_disk(self, want: Want) -> None:
        """A guest that ended by itself leaves its mounts until somebody takes them away."""
        folder = await self._checked(want)
        if await asyncio.to_thread(self._containers.known, want.server_id):
            raise DriverError("a container of this server lives")
        await self._containers.wipe(folder)
        path = folder.disk_of(want)
        await mounts.until_free(path)
        await volume.grow_volume(path, disk.size_wanted(want), self._barrier)

    async def capture(self, want: Want) -> None:
        """A volume gives no image: that is said with the next look."""

    async def drop_copies(self, want: Want) -> None:
        """There are none."""

    async def make_nics(self, want: Want) -> None:
        running = await asyncio.to_thread(self._containers.known, want.server_id)
        if running is not None and not netns.is_there(want.server_id):
            await netns.attach(want.server_id, running.pid)
        await self.networks.make(want)

    async def start(self, want: Want) -> None:
        with self.cache.pinned(_images_of(want)):
            await self._containers.start(await self._checked(want), want)

    async def pause(self, want: Want) -> None:
        await self._containers.freeze(await self._checked(want), still=True)

    async def resume(self, want: Want) -> None:
        await self._containers.freeze(await self._checked(want), still=False)

    async def save(self, want: Want) -> None:  # noqa: ARG002
        raise DriverError("a container cannot be suspended", remedy="stop it, or resume it", lasting=True)

    async def drop_memory(self, want: Want) -> None:
        """There never is any."""

    async def power_down(self, want: Want) -> None:
        await self._containers.power_down(await self._checked(want))

    async def quit(self, want: Want) -> None:
        await self._containers.quit(await self._checked(want), want)

    async def remove_nics(self, want: Want) -> None:
        await self.networks.remove(want)

    async def remove_folder(self, want: Want) -> None:
        folder = await self._checked(want)
        await asyncio.to_thread(self._containers.remove_folder, folder)

    async def found(self) -> frozenset[str]:
        try:
            await asyncio.to_thread(check_identity, self._host_dir, self._host_id)
            folders = await asyncio.to_thread(server_ids, self._host_dir)
            living = await asyncio.to_thread(living_servers, self.places)
        except (FolderError, OSError) as error:
            raise DriverError(_reason(error)) from error
        return folders | living | await self.networks.servers()

    async def holdings(self) -> tuple[Holding, ...]:
        def guest(folder: ServerFolder) -> Thing:
            lives = self._containers.alive(folder.server_id) or lock_held(folder.lock)
            return Thing.PRESENT if lives else Thing.ABSENT

        try:
            return await asyncio.to_thread(holdings, self._host_dir, self._host_id, guest)
        except (FolderError, OSError) as error:
            raise DriverError(_reason(error)) from error

    async def console(self, server_id: str, lines: int | None) -> str:
        folder = ServerFolder(self._host_dir, server_id)
        try:
            return await asyncio.to_thread(console_tail, folder, lines)
        except OSError as error:
            raise DriverError(f"the console log cannot be read: {_reason(error)}") from error

    async def _checked(self, want: Want) -> ServerFolder:
        """No effect in a state folder that is not ours: an unmounted one would be filled with twins."""
        try:
            await asyncio.to_thread(check_identity, self._host_dir, self._host_id)
        except FolderError as error:
            raise DriverError(_reason(error)) from error
        return ServerFolder(self._host_dir, want.server_id)


def living_servers(places: Places) -> frozenset[str]:
    """Servers with a living process in a container of this host's. Blocks; raises OSError."""
    names = cgroups.servers(places.group)
    return frozenset(name for name in names if cgroups.living(places.guest_group(name)))


def _images_of(want: Want) -> tuple[BootImage, ...]:
    """A container runs on the host's kernel: the system tree is all it needs."""
    return tuple(image for image in want.spec.images if image.role is ImageRole.ROOT)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the state folder, podman or the network does not answer in time"
    return words(error) if isinstance(error, OSError) else str(error)
