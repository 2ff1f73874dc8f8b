"""Which base images this host still needs: read from what lies on it, never from the store's list.

A store that was put back to an older copy does not know of the newest servers; an image of theirs that
is evicted is a root disk that is lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from unstuck.host.drivers.folder import DISKS, Grant, read_grant

_QCOW2 = b"QFI\xfb"
_NAME_MAX = 1023
"""What the format allows for the name of a backing file."""


class Unsure(Exception):
    """It cannot be said for certain what is needed: then nothing may be evicted (law 4)."""


def backing_name(path: Path) -> str | None:
    """The name of the file that a qcow2 disk lies on, None for one that stands alone; raises Unsure."""
    with path.open("rb") as file:
        header = file.read(32)
        if len(header) < 32 or header[:4] != _QCOW2:
            raise Unsure(f"{path.name} is not a disk that can be read")
        offset, size = struct.unpack_from(">QI", header, 8)
        if not offset:
            return None
        if size > _NAME_MAX:
            raise Unsure(f"{path.name} names no file that it lies on")
        file.seek(offset)
        name = file.read(size)
    if len(name) != size:
        raise Unsure(f"{path.name} ends within its header")
    return os.fsdecode(name)


def needed(host_dir: Path, known: Collection[str]) -> frozenset[str]:
    """Names of cached images that a disk on this host lies on, or that a server here was started with.

    ``known``: servers whose images the caller knows from elsewhere. Of any other one with a disk, its grant
    says which kernel it boots. Raises :class:`Unsure`.
    """
    found: set[str] = set()
    try:
        for folder in _folders(host_dir / "servers"):
            disks = [path for path in folder.iterdir() if path.name.startswith("disk-")]
            # A disk in the making has no header yet; its server is known, and its maker pins its image.
            whole = [path for path in disks if path.suffix in DISKS]
            overlays = [disk for disk in whole if disk.suffix == ".qcow2"]
            found.update(Path(name).name for disk in overlays if (name := backing_name(disk)))
            if whole and folder.name not in known:
                found.update(_granted(folder))
    except OSError as error:
        raise Unsure(str(error)) from error
    return frozenset(found)


def _folders(servers: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from [path for path in servers.iterdir() if path.is_dir()]


def _granted(folder: Path) -> tuple[str, ...]:
    grant: Grant | None = read_grant(folder)
    if grant is None or grant.images is None:
        raise Unsure(f"{folder.name} does not say which images it boots from")
    return grant.images


def room_for_guests(host_dir: Path, reserve: int) -> int:
    """Bytes of the file system that servers can have: what is free and what they have already.

    What others keep on the same disk is theirs, and is not promised to anybody.
    """
    room = shutil.disk_usage(host_dir).free - reserve + _occupied(host_dir / "servers")
    with contextlib.suppress(Unsure, FileNotFoundError):
        used = needed(host_dir, ())
        for path in (host_dir / "images").iterdir():
            if path.name not in used:
                room += path.stat().st_blocks * 512
    return max(room, 0)


def _occupied(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total
