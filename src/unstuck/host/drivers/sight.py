"""What can be seen of a server without asking the guest: lock, pidfile, /proc, disk.

All of it blocks; it is called in a thread.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from unstuck.core.server.data import Gone, Guest, Mute, Thing, Unclear, Want
from unstuck.host.drivers.disk import disk_size, size_wanted
from unstuck.host.drivers.folder import CONSOLE_MAX, ServerFolder, check_identity
from unstuck.host.drivers.process import (
    Process,
    identify,
    lock_held,
    lock_holders,
    pidfile_holder,
    strays,
)
from unstuck.host.drivers.volume import volume_size

STARTING = 10.0
"""Seconds that a child may take from its fork to its monitor, before it counts as hanging."""
WINDOW = 600.0
"""Starts within this many seconds count against the budget (``core.server.host.START_BUDGET``)."""


class Sight(msgspec.Struct, frozen=True):
    """``process`` is to be asked over QMP; without one, ``guest`` is the answer."""

    process: Process | None
    guest: Guest
    disk: Thing
    folder: Thing
    reason: str
    replaced: Thing
    memory: Thing
    short: bool
    copies: Thing


def inspect(host_dir: Path, host_id: str, folder: ServerFolder, want: Want) -> Sight:
    """Raises FolderError or OSError where nothing can be said."""
    check_identity(host_dir, host_id)
    process, guest = _guest(folder, want)
    disk, reason, short, old = inspect_disk(folder, want)
    folder.bound_console(CONSOLE_MAX)
    present = Thing.PRESENT if folder.path.is_dir() else Thing.ABSENT
    saved = folder.memory(want.edge).exists()
    copies = _thing(folder.has_copies())
    return Sight(process, guest, disk, present, reason, old, _thing(saved), short, copies)


def inspect_disk(folder: ServerFolder, want: Want) -> tuple[Thing, str, bool, Thing]:
    """The wanted disk, what is wrong with it, whether it is too small; and those that it replaces."""
    disk, reason, short = _disk(folder, want)
    data = want.spec.data
    old = any(folder.disk(nonce, data=data).exists() for nonce in want.replaced if nonce != want.nonce)
    return disk, reason, short, _thing(old)


def _thing(there: bool) -> Thing:
    return Thing.PRESENT if there else Thing.ABSENT


def find_process(folder: ServerFolder) -> Process | None:
    """The living guest that holds the pidfile, if it is certainly this server's."""
    holder = pidfile_holder(folder.pid)
    return None if holder is None else identify(holder, folder.server_id, folder.path)


def alive(folder: ServerFolder) -> bool:
    """Whether anything of a guest lives: it holds the lock, or (the lock file was removed) the pidfile."""
    return lock_held(folder.lock) or find_process(folder) is not None


def killable(folder: ServerFolder) -> list[Process]:
    """Every process that is certainly this server's guest, also one that hangs before its pidfile."""
    found = [find_process(folder)] if folder.path.is_dir() else []
    found += lock_holders(folder.lock, folder.server_id, folder.path)
    found += strays(folder.server_id, folder.path)
    return list({process.pid: process for process in found if process is not None}.values())


def _guest(folder: ServerFolder, want: Want) -> tuple[Process | None, Guest]:
    if not folder.path.is_dir():
        # Somebody may have removed the folder under a living guest. "Absent" has to be certain (law 4).
        lost = strays(folder.server_id, folder.path)
        return None, Mute(lost[0].edge, "its folder was removed while it ran") if lost else Gone()
    held = lock_held(folder.lock)
    process = find_process(folder)
    if process is not None:
        return process, Unclear("not asked yet")
    if held:
        return None, _before_pidfile(folder)
    return None, _gone(folder, want)


def _before_pidfile(folder: ServerFolder) -> Guest:
    """The lock is held and the pidfile is not: a child before its exec, or QEMU in its first 30 ms.

    One that stays so for long would leave its server undeletable; it is certainly ours, so it is mute.
    """
    children = lock_holders(folder.lock, folder.server_id, folder.path)
    old = [child for child in children if child.age > STARTING]
    if old:
        return Mute(old[0].edge, f"its start hangs since {old[0].age:.0f} s")
    return Unclear("starting" if children else "starting, or an unknown process holds the server's lock")


def _gone(folder: ServerFolder, want: Want) -> Gone:
    starts = folder.recent_starts(want, time.clock_gettime(time.CLOCK_BOOTTIME), WINDOW)
    return Gone(starts, folder.last_words() if starts else "")


def _disk(folder: ServerFolder, want: Want) -> tuple[Thing, str, bool]:
    path = folder.disk_of(want)
    try:
        size = volume_size(path) if want.spec.data else disk_size(path)
    except FileNotFoundError:
        if others := folder.other_disks(want):
            return Thing.UNKNOWN, f"a disk of another grant is here: {others[0]}", False
        return Thing.ABSENT, "", False
    if size is None:
        return Thing.UNKNOWN, "the disk's header is damaged", False
    return Thing.PRESENT, "", size < size_wanted(want)
