"""Starting and ending guest processes, each within a deadline and never on a guess."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from unstuck.core.server.data import ImageRole, Want
from unstuck.host import configdrive
from unstuck.host.driver import DriverError
from unstuck.host.drivers import memory
from unstuck.host.drivers.command import Files, Machine, guest_name, qemu_command
from unstuck.host.drivers.disk import image_of
from unstuck.host.drivers.folder import CONSOLE_START, ServerFolder
from unstuck.host.drivers.process import Children, kill, lock_held, spawn, take_lock
from unstuck.host.drivers.qmp import Monitors, Qmp, QmpError
from unstuck.host.drivers.sight import WINDOW, alive, find_process, killable
from unstuck.host.images import Barrier, ImageCache

_POLL = 0.01
_NOT_YET = frozenset({"prelaunch", "inmigrate"})
QUIT_PATIENCE = 10.0
"""Seconds for QEMU to flush its disks once it took the order; then SIGKILL."""
KILL_PATIENCE = 5.0
_LOAD_RATE = 50 << 20
"""Bytes of saved memory a second that a slow disk gives."""


class Guests:
    """The guest processes of one host."""

    def __init__(
        self,
        machine: Machine,
        cache: ImageCache,
        monitors: Monitors,
        barrier: Barrier,
        start_deadline: float,
        on_exit: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._cache = cache
        self._monitors = monitors
        self._barrier = barrier
        self._deadline = start_deadline
        self._children = Children(on_exit)

    async def start(self, folder: ServerFolder, want: Want, taps: tuple[str, ...]) -> None:
        loop = asyncio.get_running_loop()

        def launch() -> None:
            # In one thread to the end, whatever becomes of the caller: a guest is never left unwatched.
            pid = self._launch(folder, want, taps)
            loop.call_soon_threadsafe(self._children.watch, folder.server_id, pid)

        await self._monitors.forget(folder.server_id)
        await asyncio.to_thread(launch)
        await self._barrier("driver.start.forked")
        await self._until_up(folder, want)

    def _launch(self, folder: ServerFolder, want: Want, taps: tuple[str, ...]) -> int:
        if not folder.disk_of(want).exists():
            raise DriverError("the root disk is not there")
        lock = _take(folder)
        saved = _saved_memory(folder, want)
        try:
            argv = qemu_command(want, self._files(folder, want), taps, self._machine, incoming=saved)
            folder.sweep_parts()
            if want.spec.data:
                folder.make_channel()
            elif saved is None or not folder.config.exists():  # a guest that wakes up finds the drive it had
                configdrive.build(want, folder.config)
            folder.bound_console(CONSOLE_START)
            folder.write_grant(want)
            folder.record_start(want, time.clock_gettime(time.CLOCK_BOOTTIME), WINDOW)
            return spawn(argv, folder.path, folder.output, lock, *([] if saved is None else [saved]))
        except FileNotFoundError as error:
            raise DriverError(f"QEMU cannot be started: {error.filename} is not there") from None
        finally:
            os.close(lock)
            if saved is not None:
                os.close(saved)

    def _files(self, folder: ServerFolder, want: Want) -> Files:
        paths: dict[ImageRole, str] = {}
        for role in (ImageRole.KERNEL, ImageRole.RAMDISK, ImageRole.ROOT):
            image = image_of(want, role)
            if image is not None and not self._cache.has(image):
                raise DriverError(f"the {role} is not in the cache")
            if image is not None:
                paths[role] = folder.relative(self._cache.path(image))
        disk, config = folder.disk_of(want).name, folder.config.name
        kernel, ramdisk = paths.get(ImageRole.KERNEL), paths.get(ImageRole.RAMDISK)
        root = paths.get(ImageRole.ROOT) if want.spec.data else None
        if want.spec.data and (root is None or kernel is None):
            raise DriverError("the server has no system tree, or no kernel to boot it with", lasting=True)
        return Files(disk, config, kernel, ramdisk, root)

    async def _until_up(self, folder: ServerFolder, want: Want) -> None:
        end = time.monotonic() + self._deadline + await asyncio.to_thread(_loading, folder, want)
        name = guest_name(want.server_id, want.edge)
        while True:
            try:
                answers = await self._monitors.ask(
                    folder.server_id, folder.sockets, "query-status", "query-name"
                )
                if answers[0].get("status") not in _NOT_YET and answers[1].get("name") == name:
                    return
            except QmpError:
                if not await asyncio.to_thread(lock_held, folder.lock):
                    words = await asyncio.to_thread(folder.last_words)
                    raise DriverError(f"QEMU ended at once: {words or 'it said nothing'}") from None
            if time.monotonic() > end:
                raise DriverError(f"the guest did not come up within {self._deadline:g} s")
            await asyncio.sleep(_POLL)

    async def power_down(self, folder: ServerFolder) -> None:
        try:
            await self._monitors.ask(folder.server_id, folder.sockets, "system_powerdown")
        except QmpError as error:
            raise DriverError(f"the guest could not be asked to power off: {error}") from error

    async def tell(self, folder: ServerFolder, command: str) -> None:
        """One order over QMP that repeating does not change."""
        try:
            await self._monitors.ask(folder.server_id, folder.sockets, command)
        except QmpError as error:
            raise DriverError(f"the guest did not take the order {command}: {error}") from error

    async def save(self, folder: ServerFolder, want: Want) -> None:
        """The memory, whole under its name or not at all; when it fails the guest runs on."""
        async with self._cache.space.reserve(want.spec.flavor.ram_mb << 20):
            await asyncio.to_thread(folder.sweep_parts)  # what an agent that died has left
            part = await asyncio.to_thread(memory.Part, folder.memory(want.edge))
            try:
                await self._work(folder, lambda monitor: memory.write(monitor, part.descriptor))
                await self._barrier("driver.save.half")
                await asyncio.to_thread(part.publish)
            except (DriverError, OSError):
                await self._work(folder, memory.go_on_if_it_can)
                raise
            finally:
                await asyncio.to_thread(part.close)

    async def resume(self, folder: ServerFolder, want: Want) -> None:
        await asyncio.to_thread(memory.check_none, folder, want)
        await self._work(folder, memory.go_on)

    async def _work(self, folder: ServerFolder, job: Callable[[Qmp], Awaitable[None]]) -> None:
        try:
            await self._monitors.work(folder.server_id, folder.sockets, job)
        except QmpError as error:
            raise DriverError(str(error)) from error

    async def quit(self, folder: ServerFolder) -> None:
        """Told, then killed; returns when the lock is free, which is when the process is gone."""
        if await self._quit_by_monitor(folder) and await self._ended(folder, QUIT_PATIENCE):
            return
        for process in await asyncio.to_thread(killable, folder):
            await asyncio.to_thread(kill, process, folder.server_id, folder.path)
        if not await self._ended(folder, KILL_PATIENCE):
            raise DriverError("the guest process does not end, not even by SIGKILL")

    async def _quit_by_monitor(self, folder: ServerFolder) -> bool:
        if not await asyncio.to_thread(alive, folder):
            return not await asyncio.to_thread(killable, folder)
        try:
            await self._monitors.ask(folder.server_id, folder.sockets, "quit")
        except QmpError:
            return False
        return True

    async def _ended(self, folder: ServerFolder, patience: float) -> bool:
        end = time.monotonic() + patience
        while await asyncio.to_thread(alive, folder):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL)
        await self._monitors.forget(folder.server_id)
        await asyncio.to_thread(folder.forget_starts)
        return True

    async def remove(self, folder: ServerFolder) -> None:
        """Remove the folder while holding its lock, so that nothing can be started in it meanwhile."""
        await self._monitors.forget(folder.server_id)
        await asyncio.to_thread(_remove, folder)


def _saved_memory(folder: ServerFolder, want: Want) -> int | None:
    """A descriptor of the memory that this start wakes up with; what no start can load is removed."""
    path = folder.memory(want.edge)
    folder.drop_memories(keep=path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _loading(folder: ServerFolder, want: Want) -> float:
    """Seconds that loading the memory may take."""
    try:
        return folder.memory(want.edge).stat().st_size / _LOAD_RATE
    except FileNotFoundError:
        return 0.0


def _take(folder: ServerFolder) -> int:
    """The folder's lock; also where the lock file was deleted under a living guest, the pidfile tells."""
    lock = take_lock(folder.lock)
    if lock is not None and find_process(folder) is None:
        return lock
    if lock is not None:
        os.close(lock)
    raise DriverError("a guest process of this server lives already")


def _remove(folder: ServerFolder) -> None:
    if not folder.path.is_dir():
        return
    lock = _take(folder)
    try:
        folder.remove()
    finally:
        os.close(lock)
