"""Images of root disks: made as the disk is in one moment, whole under their name, then delivered.

A guest that runs goes on: QEMU copies what it overwrites meanwhile (``blockdev-backup``), into a descriptor
that is ours to open. Where no guest is, ``qemu-img`` reads the disk under QEMU's own lock. Both write a disk
that stands on nothing else. What dies half way is a ``.part``, and made anew; once nobody wants it, it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from unstuck.core.server.data import Copy, CopyFailed, Copying, Delivered, Want
from unstuck.host.driver import DriverError, words
from unstuck.host.drivers.disk import disk_size
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import lock_held, run
from unstuck.host.drivers.qmp import Monitors, Qmp, QmpError
from unstuck.host.images import Barrier
from unstuck.host.space import Space
from unstuck.runtime.files import sync_folder

_NAME = "copy"
"""Of job, node and descriptor in QEMU: there is one at a time."""
_CALL = 5.0
_POLL = 0.2
_CANCEL = 30.0
_CONVERT = 6 * 3600.0
"""Seconds; the store's deadline comes first, and ends it."""
_BLOCK = 1 << 20
NO_IMAGE_OF_DATA = CopyFailed("a database's volume gives no image of a server: back it up", final=True)
_ENDED = ("concluded", "null")


class DeliveryError(Exception):
    """The image service has not taken it; ``final`` when asking again cannot help."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class ImageSink(Protocol):
    """Where images of disks go."""

    async def deliver(self, want: Want, path: Path, sha512: str) -> None:
        """All of the file; raises :class:`DeliveryError`."""
        ...


class _Job:
    """The image that is being made of one server's disk."""

    def __init__(self, image_id: str, tries: int) -> None:
        self.image_id = image_id
        self.tries = tries
        self.state: Copy = Copying(0, 0)
        self.task: asyncio.Task[None] | None = None


class Captures:
    """What this process does of it; a new one begins anew, with what is whole already."""

    def __init__(
        self,
        sink: ImageSink | None,
        space: Space,
        monitors: Monitors,
        barrier: Barrier,
        on_event: Callable[[str], None],
    ) -> None:
        self._sink = sink
        self._space = space
        self._monitors = monitors
        self._barrier = barrier
        self._on_event = on_event
        self._jobs: dict[str, _Job] = {}

    def state(self, want: Want) -> Copy | None:
        """What a look reports."""
        job = self._jobs.get(want.server_id)
        return job.state if job is not None and job.image_id == want.capture else None

    async def begin(self, folder: ServerFolder, want: Want) -> None:
        """Unless it is under way; returns at once."""
        job = self._jobs.get(want.server_id)
        same = job is not None and job.image_id == want.capture
        if job is not None and same and job.task is not None and not job.task.done():
            return
        await self.end(want.server_id)
        tries = job.tries if job is not None and same else 0
        job = self._jobs[want.server_id] = _Job(want.capture, tries)
        job.task = asyncio.create_task(self._run(folder, want, job))

    async def end(self, server_id: str) -> None:
        """Nobody wants it any more, or the disk is needed: a copy under way ends, and is waited for."""
        job = self._jobs.pop(server_id, None)
        if job is not None and job.task is not None:
            job.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job.task

    async def drop(self, folder: ServerFolder) -> None:
        """Remove all of it, also what an agent that died has begun in a guest that still runs."""
        await self.end(folder.server_id)
        if await asyncio.to_thread(lock_held, folder.lock):
            await self._in_guest(folder, _clear)
        await asyncio.to_thread(folder.drop_copies)

    async def close(self) -> None:
        for server_id in list(self._jobs):
            await self.end(server_id)

    async def _run(self, folder: ServerFolder, want: Want, job: _Job) -> None:
        try:
            if want.spec.data:
                raise DeliveryError(NO_IMAGE_OF_DATA.reason, final=True)
            path = folder.copy(want.capture)
            await asyncio.to_thread(folder.drop_copies, path)
            if not await asyncio.to_thread(path.exists):
                await self._make(folder, want, job, path)
            await self._barrier("driver.capture.half")
            await self._deliver(want, job, path)
            job.state = Delivered()
        except DeliveryError as error:
            self._failed(job, str(error), final=error.final)
        except DriverError as error:
            self._failed(job, str(error))
        except OSError as error:
            self._failed(job, words(error))
        finally:
            self._on_event(want.server_id)

    @staticmethod
    def _failed(job: _Job, reason: str, *, final: bool = False) -> None:
        job.tries += 1
        job.state = CopyFailed(reason, final, job.tries)

    async def _make(self, folder: ServerFolder, want: Want, job: _Job, path: Path) -> None:
        disk = folder.disk(want.nonce)
        size = await asyncio.to_thread(disk_size, disk)
        if size is None:
            raise DriverError("the disk's header is damaged")
        part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
        used = sum(image.size for image in want.spec.images) + (await asyncio.to_thread(disk.stat)).st_size
        job.state = Copying(0, size)
        async with self._space.reserve(min(used, size)):
            try:
                if await asyncio.to_thread(lock_held, folder.lock):
                    await run(
                        ["qemu-img", "create", "-q", "-f", "qcow2", part.name, str(size)],
                        30.0,
                        cwd=folder.path,
                    )
                    await self._from_guest(folder, job, part)
                else:
                    await _from_disk(folder, disk, part)
                await asyncio.to_thread(_publish, part, path)
            finally:
                await asyncio.to_thread(part.unlink, missing_ok=True)

    async def _from_guest(self, folder: ServerFolder, job: _Job, part: Path) -> None:
        descriptor = await asyncio.to_thread(os.open, part, os.O_RDWR | os.O_CLOEXEC)
        try:
            await self._in_guest(folder, lambda monitor: _start(monitor, descriptor))
        finally:
            os.close(descriptor)
        try:
            while True:
                found = await self._ask(folder)
                if found is None:
                    raise DriverError("the guest ended while its disk was copied")
                job.state = Copying(int(found["current-progress"]), int(found["total-progress"]))
                if found["status"] in _ENDED:
                    break
                await asyncio.sleep(_POLL)
            if found.get("error"):
                raise DriverError(f"QEMU could not copy the disk: {found['error']}")
        finally:
            with contextlib.suppress(DriverError):  # it may have ended, and all of this with it
                await asyncio.shield(self._in_guest(folder, _clear))

    async def _ask(self, folder: ServerFolder) -> dict[str, Any] | None:
        try:
            [jobs] = await self._monitors.ask(folder.server_id, folder.sockets, "query-jobs")
        except QmpError as error:
            raise DriverError(f"the guest does not say how far the copy is: {error}") from error
        return next((job for job in jobs if job["id"] == _NAME), None)

    async def _in_guest(self, folder: ServerFolder, work: Callable[[Qmp], Any]) -> None:
        try:
            async with asyncio.timeout(_CANCEL):
                await self._monitors.work(folder.server_id, folder.sockets, work)
        except (QmpError, TimeoutError) as error:
            raise DriverError(f"the guest's disk cannot be copied: {error or 'no answer'}") from error

    async def _deliver(self, want: Want, job: _Job, path: Path) -> None:
        if self._sink is None:
            raise DeliveryError("there is no image service to deliver it to", final=True)
        size, digest = await asyncio.to_thread(_digest, path)
        job.state = Copying(size, size)
        await self._sink.deliver(want, path, digest)


async def _start(monitor: Qmp, descriptor: int) -> None:
    await _clear(monitor)
    added = await monitor.execute("add-fd", _CALL, fd=descriptor, opaque=_NAME)
    file = {"driver": "file", "filename": f"/dev/fdset/{added['fdset-id']}"}
    node: dict[str, Any] = {"node-name": _NAME, "driver": "qcow2", "file": file}
    await monitor.execute("blockdev-add", _CALL, **node)
    backup: dict[str, Any] = {
        "job-id": _NAME, "device": "root", "target": _NAME, "sync": "full", "auto-dismiss": False,
    }  # fmt: skip
    await monitor.execute("blockdev-backup", _CALL, **backup)


async def _clear(monitor: Qmp) -> None:
    """End what is under way in the guest, be it ours or of an agent that died, and forget it."""
    while (job := await _job(monitor)) is not None:
        if job["status"] in _ENDED:
            with contextlib.suppress(QmpError):
                await monitor.execute("job-dismiss", _CALL, id=_NAME)
        else:
            with contextlib.suppress(QmpError):  # it may have ended just now
                await monitor.execute("job-cancel", _CALL, id=_NAME)
            await asyncio.sleep(0.05)
    nodes = await monitor.execute("query-named-block-nodes", _CALL, flat=True)
    if any(found.get("node-name") == _NAME for found in nodes):
        node: dict[str, Any] = {"node-name": _NAME}
        await monitor.execute("blockdev-del", _CALL, **node)
    for fdset in await monitor.execute("query-fdsets", _CALL):
        if any(entry.get("opaque") == _NAME for entry in fdset["fds"]):
            which: dict[str, Any] = {"fdset-id": fdset["fdset-id"]}
            await monitor.execute("remove-fd", _CALL, **which)


async def _job(monitor: Qmp) -> dict[str, Any] | None:
    jobs = await monitor.execute("query-jobs", _CALL)
    return next((job for job in jobs if job["id"] == _NAME), None)


async def _from_disk(folder: ServerFolder, disk: Path, part: Path) -> None:
    """No guest is on it. When this process is killed, so is the helper: it would hold the disk's lock."""
    command = ["qemu-img", "convert", "-q", "-f", "qcow2", "-O", "qcow2", disk.name, part.name]
    await run(["setpriv", "--pdeathsig", "KILL", *command], _CONVERT, cwd=folder.path)


def _publish(part: Path, path: Path) -> None:
    descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.rename(path)
    sync_folder(path.parent)


def _digest(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha512()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            digest.update(block)
    return size, digest.hexdigest()
