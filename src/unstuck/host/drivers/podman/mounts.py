"""What a guest in a container finds mounted: found again by path, whoever mounted it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from pathlib import Path

from unstuck.host.driver import DriverError
from unstuck.host.drivers.process import run

_DEADLINE = 20.0
_FREE_PATIENCE = 5.0
"""Seconds for the kernel to let a loop device go after the last mount is gone."""
_POLL = 0.02
_OCTAL = re.compile(r"\\([0-7]{3})")


def mounted_below(folder: Path) -> list[Path]:
    """All mount points at or below a path, the latest first. Blocks; raises OSError."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), line.split()[4]))
        if point == folder or folder in point.parents:
            found.append(point)
    return found[::-1]


async def mount_image(image: Path, target: Path) -> None:
    """A squashfs, read-only. The loop device of a file that is mounted already is shared, and its pages."""
    await run(["mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", str(image), str(target)], _DEADLINE)


async def mount_volume(volume: Path, target: Path) -> None:
    options = "loop,nosuid,nodev,noexec,noatime,discard,errors=remount-ro"
    await run(["mount", "-t", "ext4", "-o", options, str(volume), str(target)], _DEADLINE)
    for device in await loops(volume):
        # Pages are kept once, not twice; where the state folder's file system cannot, nothing is lost.
        with contextlib.suppress(DriverError):
            await run(["losetup", "--direct-io=on", device], _DEADLINE)


async def bind(source: Path, target: Path) -> None:
    await run(["mount", "--bind", str(source), str(target)], _DEADLINE)
    await run(["mount", "-o", "remount,bind,ro,nosuid,nodev,noexec", str(target)], _DEADLINE)


async def loops(file: Path) -> list[str]:
    """The loop devices that a file is open in: while there is one, somebody has it mounted."""
    out = await run(["losetup", "-n", "-O", "NAME", "-j", str(file)], _DEADLINE)
    return out.decode().split()


async def unmount_all(folder: Path) -> None:
    """Take away every mount at or below a path, and the folders."""
    for point in await asyncio.to_thread(mounted_below, folder):
        await run(["umount", str(point)], _DEADLINE)
    await asyncio.to_thread(_remove_points, folder)


async def unmount_of(folder: Path, containers: frozenset[str]) -> None:
    """What podman has mounted for containers that are gone, where it does not know of them any more."""
    for point in await asyncio.to_thread(mounted_below, folder):
        if containers.intersection(point.parts):
            await run(["umount", str(point)], _DEADLINE)


def _remove_points(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for point in folder.iterdir():
            point.rmdir()
        folder.rmdir()


async def until_free(volume: Path) -> None:
    """Nobody on this machine has the volume mounted any more. Raises DriverError: two datastores on one
    volume would destroy it."""
    end = time.monotonic() + _FREE_PATIENCE
    while devices := await loops(volume):
        if time.monotonic() > end:
            raise DriverError(
                f"the volume is still in use on this host, by {' '.join(devices)}",
                remedy="end what has it mounted (see `losetup -l` and `grep -l loop /proc/*/mounts`)",
            )
        await asyncio.sleep(_POLL)
