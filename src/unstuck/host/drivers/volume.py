"""Volumes: a disk for data alone, a file with an ext4 file system in it and nothing else.

Made empty once, under a temporary name until it is whole (law 3); a later absence is a fault that is shown.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import struct
from pathlib import Path

from unstuck.core.server.data import Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import publish, size_wanted, sync_file
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import run
from unstuck.host.images import Barrier
from unstuck.host.space import Space

_FIRST = 64 << 20
"""What a young volume needs on the host: its tables and journal, and what a datastore begins with."""
_SMALLEST = 1 << 30
_SUPERBLOCK = 1024
_MAGIC = 0xEF53
_MAKE_DEADLINE, _CHECK_DEADLINE = 60.0, 300.0
_CHECKED = (0, 1, 2)
"""Exit statuses of e2fsck for a file system that is in order, also where it was put in order."""


def volume_size(path: Path) -> int | None:
    """Bytes of the file system in a volume, as its superblock says; None where this is no ext4 file system,
    or not all of it is there. Raises OSError."""
    with path.open("rb") as file:
        file.seek(_SUPERBLOCK)
        block = file.read(1024)
        length = file.seek(0, os.SEEK_END)
    if len(block) < 1024 or struct.unpack_from("<H", block, 56)[0] != _MAGIC:
        return None
    low, high = struct.unpack_from("<I", block, 4)[0], struct.unpack_from("<I", block, 0x150)[0]
    wide = struct.unpack_from("<I", block, 96)[0] & 0x80
    size: int = (low + ((high << 32) if wide else 0)) << (10 + struct.unpack_from("<I", block, 24)[0])
    return size if size <= length else None


async def make_volume(folder: ServerFolder, want: Want, space: Space, barrier: Barrier, owner: int) -> None:
    """Make the volume unless it is there; ``owner`` (user and group) gets its top folder."""
    target = folder.disk_of(want)
    if await asyncio.to_thread(target.exists):
        return
    async with space.reserve(_FIRST):
        if not await asyncio.to_thread(_prepare, folder, want, target):
            return
        part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
        size = max(size_wanted(want), _SMALLEST)
        await asyncio.to_thread(_sparse, part, size)
        features = f"root_owner={owner}:{owner},lazy_itable_init=1,lazy_journal_init=1"
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", features, part.name]
        await run(command, deadline=_MAKE_DEADLINE, cwd=folder.path)
        await barrier("driver.disk.half")
        await asyncio.to_thread(publish, part, target)


def _prepare(folder: ServerFolder, want: Want, target: Path) -> bool:
    folder.ensure()
    folder.sweep_parts()
    if target.exists():
        return False
    if others := folder.other_disks(want):
        raise DriverError(f"a disk of another grant is here: {others[0]}")
    folder.write_grant(want)
    return True


def _sparse(part: Path, size: int) -> None:
    with part.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(size)


async def check_volume(path: Path, *, thorough: bool = False) -> int:
    """Put a volume that nobody has mounted in order; returns its size in bytes.

    Raises :class:`DriverError` where it is damaged beyond what a journal mends.
    """
    size = await asyncio.to_thread(volume_size, path)
    if size is None:
        raise DriverError("the volume is not an ext4 file system, or a part of it is missing")
    words = ["e2fsck", "-p", *(["-f"] if thorough else []), path.name]
    try:
        await run(words, _CHECK_DEADLINE, cwd=path.parent, fine=_CHECKED)
    except DriverError as error:
        remedy = f"restore a backup, or mend it with e2fsck on the host ({path.name} in the server's folder)"
        raise DriverError(f"the volume's file system is damaged: {error}", remedy=remedy) from error
    return size


async def grow_volume(path: Path, wanted: int, barrier: Barrier) -> None:
    """File and file system; whoever is killed leaves both as they were, or as a check puts in order and the
    next one goes on with. Nobody has it mounted. It never shrinks."""
    if await check_volume(path, thorough=True) >= wanted:
        return
    await asyncio.to_thread(_extend, path, wanted)
    await barrier("driver.grow.half")
    await run(["resize2fs", path.name], _CHECK_DEADLINE, cwd=path.parent)
    await asyncio.to_thread(sync_file, path)


def _extend(path: Path, size: int) -> None:
    if path.stat().st_size < size:
        os.truncate(path, size)
