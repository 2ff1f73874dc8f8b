"""Which process is meant: by pid, start time and boot, never by a pid alone."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class ProcessId(msgspec.Struct, frozen=True):
    """One process for certain: pids come round again, start times (in ticks since the boot) do not."""

    pid: int
    start: int
    boot_id: str


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """When the process began, in ticks since the boot; None if it does not live (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def stopped(pid: int) -> bool:
    """Whether somebody sent it SIGSTOP."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def myself() -> ProcessId:
    start = start_time(os.getpid())
    assert start is not None
    return ProcessId(os.getpid(), start, boot_id())


def lives(process: ProcessId) -> bool:
    return process.boot_id == boot_id() and start_time(process.pid) == process.start


@contextlib.contextmanager
def handle(process: ProcessId) -> Iterator[int | None]:
    """A descriptor that cannot come to mean another process; None when it does not live any more.

    Raises :class:`OSError` where no descriptor can be had: that says nothing about the process (law 4).
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in _SHORT:
            raise
        yield None
        return
    try:
        # The identity is looked at after opening: from here on the descriptor is this process.
        yield descriptor if lives(process) else None
    finally:
        os.close(descriptor)


def end(process: ProcessId, number: signal.Signals, seconds: float) -> bool:
    """Send a signal and wait for the end; false when it still lives after ``seconds``."""
    with handle(process) as descriptor:
        if descriptor is None:
            return True
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return True
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        return bool(waiter.poll(seconds * 1000))


def end_for_sure(process: ProcessId, patience: float) -> bool:
    """SIGTERM, ``patience``, SIGKILL; a stopped process hears nothing but the last."""
    if not stopped(process.pid) and end(process, signal.SIGTERM, patience):
        return True
    return end(process, signal.SIGKILL, 5.0)
