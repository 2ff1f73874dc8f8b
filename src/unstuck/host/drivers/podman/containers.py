"""Starting, seeing and ending the containers of one host.

Only a container that runs is kept. Whatever else is found, killed in the making, is never finished but
wiped and made again: its name, its places and its control group are known beforehand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from unstuck.core.server.data import Gone, Guest, ImageRole, Mute, Off, Paused, Power, Running, Unclear, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import image_of
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.podman import cgroups, mounts
from unstuck.host.drivers.podman.command import Limits, run_words
from unstuck.host.drivers.podman.console import last_words
from unstuck.host.drivers.podman.engine import START_DEADLINE, Engine
from unstuck.host.drivers.podman.places import container_name
from unstuck.host.drivers.process import holders, lock_held, take_lock
from unstuck.host.drivers.sight import WINDOW
from unstuck.host.drivers.volume import check_volume
from unstuck.host.images import Barrier, ImageCache
from unstuck.runtime.files import write_whole

_POLL = 0.02
_ID = re.compile(r"[0-9a-f]{64}\Z")
"""All that podman says when it has started one."""
KILL_PATIENCE = 10.0
HALF = -1
"""The number of a start that is less than any: what carries it is ended before anything else."""


class Seen(msgspec.Struct, frozen=True):
    """Process 1 of a container that was seen to run: from then on it runs until it is dead."""

    pid: int
    start: int
    edge: int
    container: str


class Trace(msgspec.Struct, frozen=True):
    """``container.json``: written before anything of a start is made, and removed when all of it is gone."""

    name: str
    edge: int


class Containers:
    """Another one of the same host sees the same: what is kept here only makes looks cheap."""

    def __init__(
        self, engine: Engine, cache: ImageCache, barrier: Barrier, on_exit: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._places = engine.places
        self._cache = cache
        self._barrier = barrier
        self._on_exit = on_exit
        self._seen: dict[str, Seen] = {}

    # --- looking

    async def guest(self, folder: ServerFolder, want: Want) -> Guest:
        """Raises DriverError or OSError where nothing can be said."""
        known = await asyncio.to_thread(self.known, folder.server_id)
        if known is not None:
            return await asyncio.to_thread(_state, known)
        if (starting := await asyncio.to_thread(_at_work, folder)) is not None:
            return starting
        if not await asyncio.to_thread(self._traces, folder):
            return Gone(*await asyncio.to_thread(_starts, folder, want))
        return await self._asked(folder, want)

    def known(self, server_id: str) -> Seen | None:
        """The running container, if it was seen before and lives. Blocks, briefly."""
        seen = self._seen.get(server_id)
        if seen is None:
            return None
        home = cgroups.home(seen.pid)
        if home is not None and home.container == seen.container and cgroups.started(seen.pid) == seen.start:
            return seen
        self._seen.pop(server_id, None)
        return None

    def _traces(self, folder: ServerFolder) -> bool:
        """Whether anything of a start is on this machine: by the record, by the kernel, by mounts."""
        mine = self._places.guest(folder.server_id)
        return (
            _record(folder).exists()
            or self.alive(folder.server_id)
            or mine.path.exists()
            or bool(mounts.mounted_below(mine.path))
        )

    def alive(self, server_id: str) -> bool:
        return bool(cgroups.living(self._places.guest_group(server_id)))

    async def _asked(self, folder: ServerFolder, want: Want) -> Guest:
        info = await self._engine.inspect(container_name(folder.server_id))
        if info is None:
            return Mute(HALF, "what a start left that was cut short is here")
        if info.status in ("running", "paused"):
            home = await asyncio.to_thread(cgroups.home, info.pid)
            start = await asyncio.to_thread(cgroups.started, info.pid)
            if home is None or start is None or home.container != info.id:
                return Mute(HALF, "its container is said to run, and its process is not there")
            seen = Seen(info.pid, start, home.edge, info.id)
            self._watch(folder.server_id, seen)
            return await asyncio.to_thread(_state, seen)
        if info.status in ("exited", "stopped"):
            if want.power is Power.OFF or want.gone:
                return Off(info.edge)
            return Gone(*await asyncio.to_thread(_starts, folder, want, info.exit_code))
        return Mute(HALF, f"its container was left half made ({info.status})")

    def _watch(self, server_id: str, seen: Seen) -> None:
        """Remember it, and say so when it ends."""
        self._seen[server_id] = seen
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(seen.pid)
        except ProcessLookupError:
            return

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._on_exit(server_id)

        loop.add_reader(handle, ended)

    # --- starting

    async def start(self, folder: ServerFolder, want: Want) -> None:
        await self._check(folder, want)
        await self.wipe(folder)
        lock = await asyncio.to_thread(take_lock, folder.lock)
        if lock is None:
            raise DriverError("a start of this server is under way already")
        try:
            await asyncio.to_thread(_begin, folder, want)
            await self._mount(folder, want)
            await self._barrier("driver.start.mounted")
            words = await asyncio.to_thread(self._words, folder, want)
            status = await asyncio.to_thread(self._engine.run_container, words, folder.output, lock)
        finally:
            os.close(lock)
        await self._barrier("driver.start.forked")
        if status:
            said = await asyncio.to_thread(folder.last_words)
            raise DriverError(f"the container cannot be started: {said or f'podman ended with {status}'}")
        guest = await self._asked(folder, want)
        if not isinstance(guest, Running):
            raise DriverError(f"the container ended at once: {await asyncio.to_thread(last_words, folder)}")

    async def _check(self, folder: ServerFolder, want: Want) -> None:
        if not await asyncio.to_thread(folder.disk_of(want).exists):
            raise DriverError("the volume is not there")
        image = image_of(want, ImageRole.ROOT)
        if image is None:
            raise DriverError("the server has no image for a container", lasting=True)
        if not await asyncio.to_thread(self._cache.has, image):
            raise DriverError("the image is not in the cache")
        if await asyncio.to_thread(self.known, folder.server_id):
            raise DriverError("a container of this server lives already")

    async def _mount(self, folder: ServerFolder, want: Want) -> None:
        image = image_of(want, ImageRole.ROOT)
        assert image is not None
        volume, mine = folder.disk_of(want), self._places.guest(folder.server_id)
        await mounts.until_free(volume)
        await check_volume(volume)
        await asyncio.to_thread(self._make_points, folder)
        await mounts.mount_image(self._cache.path(image), mine.root)
        await mounts.mount_volume(volume, mine.volume)
        await mounts.bind(folder.channel, mine.channel)

    def _make_points(self, folder: ServerFolder) -> None:
        self._places.ensure()
        mine = self._places.guest(folder.server_id)
        folder.make_channel()
        for point in (mine.path, *mine.all):
            point.mkdir(exist_ok=True)
            point.chmod(0o711 if point == mine.path else 0o755)

    def _words(self, folder: ServerFolder, want: Want) -> list[str]:
        return run_words(
            want, self._places, self._engine.abilities, _limits(), _cidfile(folder), folder.console
        )

    # --- telling

    async def power_down(self, folder: ServerFolder) -> None:
        """SIGTERM for process 1, which ends the datastore in order; harmless when repeated."""
        await asyncio.to_thread(self._signal, folder.server_id)

    def _signal(self, server_id: str) -> None:
        seen = self.known(server_id)
        if seen is None:
            raise DriverError("no container of this server is known to run")
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(seen.pid)
            try:
                if self.known(server_id) == seen:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)

    async def freeze(self, folder: ServerFolder, *, still: bool) -> None:
        """All of its processes stand still, or go on."""
        seen = await asyncio.to_thread(self.known, folder.server_id)
        if seen is None:
            raise DriverError("no container of this server is known to run")
        if await asyncio.to_thread(cgroups.frozen, seen.pid) == still:
            return
        name = container_name(folder.server_id)
        await (self._engine.pause(name) if still else self._engine.unpause(name))

    # --- ending

    async def quit(self, folder: ServerFolder, want: Want) -> None:
        ran = await asyncio.to_thread(self.known, folder.server_id)
        await self.wipe(folder)
        if ran is not None or want.power is Power.OFF:  # half made ones are failures, and stay counted
            await asyncio.to_thread(folder.forget_starts)

    async def wipe(self, folder: ServerFolder) -> None:
        """End and remove all that there is of the server's container; its volume and its network stay."""
        await asyncio.to_thread(_end_client, folder)
        if not await asyncio.to_thread(self._traces, folder):
            return
        group = self._places.guest_group(folder.server_id)
        # Before podman removes the file that names it, and the group.
        known = await asyncio.to_thread(_container_ids, folder, group)
        failed = await self._remove(folder, known)
        await asyncio.to_thread(cgroups.thaw, group)
        await self._until_dead(group)
        if failed is not None and (failed := await self._remove(folder, known)) is not None:
            raise failed
        self._seen.pop(folder.server_id, None)
        await mounts.unmount_all(self._places.guest(folder.server_id).path)
        await mounts.unmount_of(self._places.podman, known)
        await asyncio.to_thread(cgroups.remove, group)
        await asyncio.to_thread(_end_record, folder)

    async def _remove(self, folder: ServerFolder, known: frozenset[str]) -> DriverError | None:
        """By podman, and by the runtime, which may know of more. How podman failed, if it did."""
        failed = None
        try:
            await self._engine.remove(container_name(folder.server_id))
        except DriverError as error:
            failed = error
        for container in sorted(known):
            await self._engine.runtime_delete(container)
        return failed

    async def _until_dead(self, group: str) -> None:
        end = time.monotonic() + KILL_PATIENCE
        while pids := await asyncio.to_thread(cgroups.living, group):
            await asyncio.to_thread(_kill, pids, group)
            if time.monotonic() > end:
                raise DriverError("the container's processes do not end, not even by SIGKILL")
            await asyncio.sleep(_POLL)

    def remove_folder(self, folder: ServerFolder) -> None:
        """Under the lock, so that nothing is started in it meanwhile. Blocks."""
        if not folder.path.is_dir():
            return
        lock = take_lock(folder.lock)
        if lock is None:
            raise DriverError("a start of this server is under way")
        try:
            if self._traces(folder):
                raise DriverError("something of its container is still here")
            folder.remove()
        finally:
            os.close(lock)


def _record(folder: ServerFolder) -> Path:
    return folder.path / "container.json"


def _cidfile(folder: ServerFolder) -> Path:
    return folder.path / "container.id"


def _container_ids(folder: ServerFolder, group: str) -> frozenset[str]:
    """What the runtime may know this server's containers by: by podman's word and the kernel's."""
    found = cgroups.containers(group)
    with contextlib.suppress(FileNotFoundError):
        word = _cidfile(folder).read_text().strip()
        if _ID.match(word):
            found |= {word}
    return found


def _begin(folder: ServerFolder, want: Want) -> None:
    folder.write_grant(want)
    folder.record_start(want, time.clock_gettime(time.CLOCK_BOOTTIME), WINDOW)
    os.utime(folder.lock)
    trace = Trace(container_name(want.server_id), want.edge)
    write_whole(_record(folder), msgspec.json.encode(trace), durable=False)


def _end_record(folder: ServerFolder) -> None:
    _cidfile(folder).unlink(missing_ok=True)
    _record(folder).unlink(missing_ok=True)


def _clients(folder: ServerFolder) -> list[int]:
    """Living ``podman run`` of this server. A walk through all processes; others may look at the lock too."""
    found, name = [], container_name(folder.server_id).encode()
    for pid in holders(folder.lock):
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if name in argv and argv[0].rpartition(b"/")[2] == b"podman":
                found.append(pid)
    return found


def _at_work(folder: ServerFolder) -> Guest | None:
    """A client has the lock: an agent that died began it. It has its deadline all the same."""
    if not lock_held(folder.lock):
        return None
    age = time.time() - folder.lock.stat().st_mtime
    if age > START_DEADLINE:
        return Mute(HALF, f"its start hangs since {age:.0f} s")
    return Unclear("starting")


def _end_client(folder: ServerFolder) -> None:
    """End whoever still works on a start, by the lock that it holds, and see it gone."""
    end = time.monotonic() + KILL_PATIENCE
    while lock_held(folder.lock) and (clients := _clients(folder)):
        for pid in clients:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise DriverError("a start of this server is under way, and cannot be ended")
        time.sleep(_POLL)


def _kill(pids: list[int], group: str) -> None:
    """SIGKILL by descriptors that cannot come to mean other processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid in cgroups.living(group):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _state(seen: Seen) -> Guest:
    if cgroups.stopped(seen.pid):
        return Mute(seen.edge, "process 1 of the container was stopped by a signal (SIGSTOP)")
    try:
        return Paused(seen.edge) if cgroups.frozen(seen.pid) else Running(seen.edge)
    except FileNotFoundError:
        return Unclear("it is just ending")


def _starts(folder: ServerFolder, want: Want, status: int | None = None) -> tuple[int, str]:
    count = folder.recent_starts(want, time.clock_gettime(time.CLOCK_BOOTTIME), WINDOW)
    if not count:
        return 0, ""
    said = folder.last_words() if status is None else last_words(folder)
    said = last_words(folder) if _ID.match(said) else said
    return count, said if not status else f"it ended with status {status}: {said}"


def _limits() -> Limits:
    def hard(what: int, most: int) -> int:
        limit = resource.getrlimit(what)[1]
        return most if limit == resource.RLIM_INFINITY else min(limit, most)

    files, processes = hard(resource.RLIMIT_NOFILE, 1 << 16), hard(resource.RLIMIT_NPROC, 1 << 15)
    return Limits(files, processes, os.cpu_count() or 1)
