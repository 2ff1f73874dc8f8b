"""One process per folder or store: a lock that says who holds it, and taking it over.

A frozen holder that thaws must find itself dead, not acting: so a take-over kills the holder, waits for
its end, and only then locks.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import msgspec

from unstuck.runtime.processes import ProcessId, end, lives, myself

PATIENCE = 10.0


class Held(Exception):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: ProcessId | None) -> None:
        who = f"process {holder.pid}" if holder else "another process"
        super().__init__(f"{who} holds {path}")
        self.holder = holder


class FileLock:
    """A lock that is held until :meth:`release` or the process's end. Children do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, take_over: bool = False) -> None:
        """Raises :class:`Held`. ``take_over`` kills a verified holder first."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(descriptor, take_over)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(myself()), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _lock(self, descriptor: int, take_over: bool) -> None:
        deadline = time.monotonic() + (PATIENCE if take_over else 0.2)
        while not _try(descriptor):
            # Between locking and writing its name a holder is nobody yet: look again.
            known = _read(descriptor)
            if take_over and known is not None and known.pid != os.getpid() and lives(known):
                end(known, signal.SIGKILL, max(deadline - time.monotonic(), 0.1))
            if time.monotonic() > deadline:
                raise Held(self.path, known if known and lives(known) else None)
            time.sleep(0.01)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder(path: Path) -> ProcessId | None:
    """Who holds the lock; None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        for _ in range(20):
            if _try(descriptor, fcntl.LOCK_SH):
                return None
            known = _read(descriptor)
            if known is not None and lives(known):
                return known
            time.sleep(0.01)
    finally:
        os.close(descriptor)
    return None


def _try(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> ProcessId | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=ProcessId)
    except msgspec.DecodeError:
        return None
