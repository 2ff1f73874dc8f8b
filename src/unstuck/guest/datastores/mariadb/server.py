"""The server's process: found, started, stopped, watched. It lives on without the agent.

Found by its command line, which names this folder's configuration and the restart number. It listens on its
socket only when it has recovered, and takes it away when it ends in order: a socket without a server is what
a crash leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.instance.view import ServerState
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.config import Places
from unstuck.guest.processes import gone
from unstuck.guest.tools import ToolFailed, Tools
from unstuck.runtime.processes import ProcessId, boot_id, lives, start_time, stopped

ORDERLY: Final = 60.0
"""Seconds that a server may take to end its sessions and write what it holds."""
AT_ONCE: Final = 10.0
LOG_MOST: Final = 16 << 20
PROGRAM: Final = "/usr/sbin/mariadbd"
_RESTART: Final = "--loose-unstuck-restart="


class Living(msgspec.Struct, frozen=True):
    """A server that lives. ``restart``: the number it was started with."""

    process: ProcessId
    restart: int


class Server:
    """The one on these places."""

    def __init__(self, places: Places, tools: Tools, on_end: Callable[[], None]) -> None:
        self._places = places
        self._tools = tools
        self._on_end = on_end
        self._living: Living | None = None

    def find(self) -> Living | ServerState:
        """It, or how it is not there. Raises :class:`OSError` where nothing can be said."""
        if self._living is None or not lives(self._living.process):
            self._living = self._search()
            if self._living is not None:
                self._watch(self._living.process)
        if self._living is not None:
            return self._living
        return ServerState.CRASHED if self._places.socket.exists() else ServerState.DOWN

    def _search(self) -> Living | None:
        mark = os.fsencode(f"--defaults-file={self._places.file}")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if len(words) < 3 or words[0] != PROGRAM.encode() or words[1] != mark:
                    continue
                start = start_time(int(entry.name))
                number = words[2].removeprefix(_RESTART.encode())
                if start is not None and number.isdigit():
                    return Living(ProcessId(int(entry.name), start, boot_id()), int(number))
        return None

    def _watch(self, process: ProcessId) -> None:
        """Notice its end at once, whoever started it. Only ever makes things faster."""
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            loop = asyncio.get_running_loop()

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                self._on_end()

            loop.add_reader(descriptor, ended)

    async def start(self, restart: int, log: Path) -> None:
        """Start it; whether it comes up shows in the next looks. Raises :class:`DatastoreError`."""
        if isinstance(self.find(), Living):
            return
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            child = await self._tools.start(
                [PROGRAM, f"--defaults-file={self._places.file}", f"{_RESTART}{restart}"],
                stdout=out, stderr=out, kept=True,
            )  # fmt: skip
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error
        finally:
            os.close(out)
        ended = asyncio.ensure_future(child.wait())
        for _ in range(200):
            if ended.done():
                raise DatastoreError(f"the server ended at once: {last_error(log)}")
            if isinstance(self.find(), Living):
                return
            await asyncio.wait([ended], timeout=0.02)

    async def stop(self) -> None:
        """In order, then by force: what it had promised is in its log. Raises :class:`DatastoreError`."""
        found = self.find()
        if not isinstance(found, Living):
            return
        if not stopped(found.process.pid):
            await self._tools.signal(found.process, signal.SIGTERM)
            if await gone(found.process, ORDERLY):
                return
        await self._tools.signal(found.process, signal.SIGKILL)
        if not await gone(found.process, AT_ONCE):
            raise DatastoreError("the server does not end", "none: it is tried again by itself")


def last_error(log: Path) -> str:
    """The last line of the log that says what is wrong."""
    try:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    bad = [line for line in lines if "[ERROR]" in line and "Aborting" not in line]
    text = (bad or lines or ["it left no word"])[-1]
    return text.partition("[ERROR] ")[2][:300] or text[-300:]
