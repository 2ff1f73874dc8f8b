"""Making a root disk: a qcow2 overlay on a cached base, under a temporary name until it is whole (law 3)."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import struct
from pathlib import Path

from unstuck.core.server.data import BootImage, ImageRole, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import run
from unstuck.host.images import Barrier, ImageCache
from unstuck.runtime.files import sync_folder

GIB = 1 << 30
_QCOW2 = b"QFI\xfb"
_HOST_FAULTS = (
    "is not installed",
    *map(
        os.strerror,
        (
            errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS,
            errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EBUSY, errno.ESTALE, errno.EINTR,
        ),
    ),
)  # fmt: skip
_OVERLAY_FIRST = 16 << 20
"""What a young overlay needs at least; it grows as the guest writes."""


def image_of(want: Want, role: ImageRole) -> BootImage | None:
    return next((image for image in want.spec.images if image.role is role), None)


def virtual_size(path: Path, disk_format: str) -> int:
    """A base image's size as a guest sees it. Refuses a qcow2 that reaches into other files of the host:
    a tenant's image naming /etc/shadow as its backing file is the oldest trick there is."""
    if disk_format == "raw":
        return path.stat().st_size
    if disk_format != "qcow2":
        raise DriverError(f"a disk cannot be made on an image of format {disk_format}")
    with path.open("rb") as file:
        header = file.read(80)
    if len(header) < 72 or header[:4] != _QCOW2:
        raise DriverError("the image is not what its format says: qcow2")
    version, backing = struct.unpack_from(">IQ", header, 4)
    external = version >= 3 and len(header) >= 80 and struct.unpack_from(">Q", header, 72)[0] & 4
    if backing or external:
        raise DriverError("the image refers to another file; such images are refused")
    size: int = struct.unpack_from(">Q", header, 24)[0]
    return size


def disk_size(path: Path) -> int | None:
    """The size in bytes of a disk with its final name, as a guest sees it; None where it does not begin as it
    should. It was complete before it got that name."""
    with path.open("rb") as file:
        header = file.read(32)
    if len(header) < 32 or header[:4] != _QCOW2:
        return None
    size: int = struct.unpack_from(">Q", header, 24)[0]
    return size


def size_wanted(want: Want) -> int:
    """Bytes that the root disk has to have at least (0: what its image has)."""
    return want.spec.flavor.disk_gb * GIB


async def make_disk(folder: ServerFolder, want: Want, cache: ImageCache, barrier: Barrier) -> None:
    """Make the disk unless it is there. A killed helper leaves a ``.part``, swept here next time."""
    target = folder.disk(want.nonce)
    image = image_of(want, ImageRole.DISK)
    if image is None:
        raise DriverError("the server has no disk image")
    if await asyncio.to_thread(target.exists):
        return
    with cache.pinned([image]):
        async with cache.space.reserve(_OVERLAY_FIRST):
            await _make(folder, want, cache, image, barrier)


async def _make(
    folder: ServerFolder, want: Want, cache: ImageCache, image: BootImage, barrier: Barrier
) -> None:
    target = folder.disk(want.nonce)
    size = await asyncio.to_thread(_prepare, folder, want, target, cache, image)
    if size is None:
        return
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
    backing = ["-F", image.disk_format, "-b", folder.relative(cache.path(image))]
    command = ["qemu-img", "create", "-q", "-f", "qcow2", *backing, part.name, str(size)]
    try:
        await run(command, deadline=30.0, cwd=folder.path)
    except DriverError as error:
        raise await _why(error, cache, image) from error
    await barrier("driver.disk.half")
    await asyncio.to_thread(publish, part, target)


async def _why(error: DriverError, cache: ImageCache, image: BootImage) -> DriverError:
    """Whether the host or the image is at fault. Unknown is not the image's fault (law 4): it has tries."""
    if _of_the_host(str(error)):
        return error
    probe = ["qemu-img", "info", "-U", "-f", image.disk_format, str(cache.path(image))]
    try:
        await run(probe, deadline=30.0)
    except DriverError as wrong:
        if _of_the_host(str(wrong)):
            return error
        # What QEMU says of an image ends its message; before it stands a path of this host.
        reason = f"QEMU cannot open it: {str(wrong).rpartition(': ')[2]}"
        return await asyncio.to_thread(cache.blame, image, reason)
    return DriverError(str(error), remedy=error.remedy, lasting=True)


def _of_the_host(message: str) -> bool:
    """A helper that failed for want of something on this host, or was not let in."""
    return "lock" in message or "did not end" in message or any(word in message for word in _HOST_FAULTS)


def _prepare(
    folder: ServerFolder, want: Want, target: Path, cache: ImageCache, image: BootImage
) -> int | None:
    """The size of the disk to be made, or None when it is there already."""
    folder.ensure()
    folder.sweep_parts()
    if target.exists():
        return None
    if others := folder.other_disks(want):
        raise DriverError(f"a disk of another grant is here: {others[0]}")
    if not cache.has(image):
        raise DriverError("the image is not in the cache")
    size = max(virtual_size(cache.path(image), image.disk_format), size_wanted(want))
    folder.write_grant(want)
    return -(-size // 512) * 512


def publish(part: Path, target: Path) -> None:
    """Give the disk its name: by link, which never replaces a disk that is there."""
    descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(part, target)
    except FileExistsError:
        raise DriverError("the disk is there already; it was left alone") from None
    finally:
        part.unlink()
    sync_folder(target.parent)


async def grow_disk(folder: ServerFolder, want: Want, barrier: Barrier) -> None:
    """QEMU writes the new size last, in one sector: whoever is killed leaves the disk as large as it was, or
    as it is to be. Its lock keeps it from a disk that a guest runs on."""
    path, size = folder.disk_of(want), size_wanted(want)
    found = await asyncio.to_thread(disk_size, path)
    if found is None or found >= size:
        return  # never smaller: what is there would be cut off
    command = ["qemu-img", "resize", "-q", "-f", "qcow2", path.name, str(size)]
    await run(command, deadline=30.0, cwd=folder.path)
    await barrier("driver.grow.half")
    await asyncio.to_thread(sync_file, path)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_disks(folder: ServerFolder, want: Want) -> None:
    """Remove what a rebuild has replaced, and nothing else. Blocks."""
    if not folder.disk_of(want).exists():
        raise DriverError("the new disk is not there: the old one stays")
    for nonce in want.replaced:
        if nonce != want.nonce:
            folder.disk(nonce, data=want.spec.data).unlink(missing_ok=True)
    sync_folder(folder.path)
