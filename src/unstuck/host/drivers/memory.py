"""A guest's memory on the disk: written by QEMU through a descriptor, named when it is whole.

Two rules keep an old memory from coming back over a disk that has moved on: while a file is there, no CPU of
its guest process runs (it is removed before they go on); and it carries the number of that process, so that
a cold start, which raises the number, can never load it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

from unstuck.core.server.data import Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.qmp import Qmp, QmpError
from unstuck.runtime.files import sync_folder

_POLL = 0.02
_CALL = 5.0
"""Seconds for one order."""
SAVE_DEADLINE = 300.0
_UNLIMITED = 1 << 40
_UNDER_WAY = frozenset({"setup", "active", "device", "wait-unplug", "pre-switchover", "cancelling"})


class Part:
    """A memory file before it has its name; closed and removed unless it was published."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def publish(self) -> None:
        os.fsync(self.descriptor)
        self._path.rename(self._target)
        sync_folder(self._target.parent)

    def close(self) -> None:
        os.close(self.descriptor)
        self._path.unlink(missing_ok=True)


async def write(monitor: Qmp, descriptor: int) -> None:
    """Stop the CPUs and have QEMU write all of the guest's state; raises :class:`QmpError`."""
    await settle(monitor)
    if (await monitor.execute("query-status", _CALL)).get("status") in ("postmigrate", "finish-migrate"):
        # An agent that died had saved it, and nobody named the file: it goes on, and is saved anew.
        await monitor.execute("cont", _CALL)
    await monitor.execute("stop", _CALL)
    await monitor.execute("migrate-set-parameters", _CALL, **{"max-bandwidth": _UNLIMITED})
    await monitor.execute("getfd", _CALL, fd=descriptor, fdname="memory")
    await monitor.execute("migrate", _CALL, uri="fd:memory")
    end = time.monotonic() + SAVE_DEADLINE
    while (progress := await _progress(monitor)).get("status") in _UNDER_WAY:
        if time.monotonic() > end:
            await settle(monitor)
            raise QmpError(f"the memory was not saved within {SAVE_DEADLINE:g} s")
        await asyncio.sleep(_POLL)
    if progress.get("status") != "completed":
        raise QmpError(f"the memory could not be saved: {progress.get('error-desc', progress.get('status'))}")


async def settle(monitor: Qmp) -> None:
    """End what an agent that died has left under way."""
    while (await _progress(monitor)).get("status") in _UNDER_WAY:
        await monitor.execute("migrate_cancel", _CALL)
        await asyncio.sleep(_POLL)


async def _progress(monitor: Qmp) -> dict[str, Any]:
    answer: dict[str, Any] = await monitor.execute("query-migrate", _CALL)
    return answer


async def go_on(monitor: Qmp) -> None:
    """Let the CPUs run."""
    await settle(monitor)
    await monitor.execute("cont", _CALL)


async def go_on_if_it_can(monitor: Qmp) -> None:
    """After a save that failed the guest is as it was before."""
    with contextlib.suppress(QmpError):
        await go_on(monitor)


def drop(folder: ServerFolder, want: Want) -> None:
    """Remove the saved memory of this edge. Blocks."""
    folder.memory(want.edge).unlink(missing_ok=True)
    sync_folder(folder.path)


def check_none(folder: ServerFolder, want: Want) -> None:
    """The rule, once more where the CPUs are let go on."""
    if folder.memory(want.edge).exists():
        raise DriverError("the guest's saved memory is still there")
