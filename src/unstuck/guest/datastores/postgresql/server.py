"""The server's process: found, started, stopped, watched. It lives on without the agent.

Found by its own pid file, and believed only if that process is a ``postgres`` on just this folder: pids come
round again. A server that left its file behind did not end in order.
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
from unstuck.guest.datastores.postgresql.config import Places
from unstuck.guest.processes import gone, offspring
from unstuck.guest.tools import ToolFailed, Tools
from unstuck.runtime.processes import ProcessId, boot_id, start_time, stopped

FAST: Final = 60.0
"""Seconds that a server may take to end its sessions and write its last checkpoint."""
IMMEDIATE: Final = 10.0
LOG_MOST: Final = 16 << 20


class Living(msgspec.Struct, frozen=True):
    """A server that lives. ``word`` is its own of how it is; ``restart``: the number it was started with."""

    process: ProcessId
    port: int
    word: str
    restart: int


class Server:
    """The one on these places."""

    def __init__(self, places: Places, programs: Path, tools: Tools, on_end: Callable[[], None]) -> None:
        self._places = places
        self._programs = programs
        self._tools = tools
        self._on_end = on_end
        self._watched: ProcessId | None = None

    def find(self) -> Living | ServerState:
        """It, or how it is not there. Raises :class:`OSError` where nothing can be said."""
        pid_file = self._places.data / "postmaster.pid"
        try:
            lines = pid_file.read_text().splitlines()
        except FileNotFoundError:
            return ServerState.DOWN
        if len(lines) < 4 or not lines[0].strip().isdigit():
            return ServerState.STARTING if not lines else ServerState.CRASHED
        pid = int(lines[0])
        start = start_time(pid)
        restart = self._number(pid)
        if start is None or restart is None:
            return ServerState.CRASHED
        process = ProcessId(pid, start, boot_id())
        self._watch(process)
        port = int(lines[3]) if lines[3].strip().isdigit() else 0
        return Living(process, port, lines[7].strip() if len(lines) > 7 else "starting", restart)

    def _number(self, pid: int) -> int | None:
        """The restart number on its command line; None if that process is no server on this folder."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return None
        if os.fsencode(self._places.data) not in words:
            return None
        marks = [word for word in words if word.startswith(b"unstuck.restart=")]
        number = marks[-1].partition(b"=")[2] if marks else b"0"
        return int(number) if number.isdigit() else 0

    def _watch(self, process: ProcessId) -> None:
        """Notice its end at once, whoever started it. Only ever makes things faster."""
        if process == self._watched:
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            loop = asyncio.get_running_loop()

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                self._on_end()

            loop.add_reader(descriptor, ended)
            self._watched = process

    async def start(self, restart: int, log: Path) -> None:
        """Start it; whether it comes up shows in the next looks. Raises :class:`DatastoreError`."""
        data = self._places.data
        found = self.find()
        if isinstance(found, Living):
            return
        if found is ServerState.CRASHED:
            # Another process may have its number now, and PostgreSQL would believe that it is the server.
            await self._remove_pid_file()
            await self._end_left_sessions()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            child = await self._tools.start(
                [str(self._programs / "postgres"), "-D", str(data),
                 "-c", f"config_file={self._places.conf / 'postgresql.conf'}",
                 "-c", f"unstuck.restart={restart}"],
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

    async def _remove_pid_file(self) -> None:
        from unstuck.guest.tools import run

        with contextlib.suppress(ToolFailed):
            locks = [str(path) for path in self._places.sockets.glob(".s.PGSQL.*.lock")]
            await run(self._tools, ["rm", "-f", str(self._places.data / "postmaster.pid"), *locks], 10)

    async def _end_left_sessions(self) -> None:
        """A session that is busy does not notice that its server was killed. It goes on for as long as its
        query takes, and holds the memory that a new server needs: that would not start."""
        found = [process for process in _sessions() if await self._works_here(process)]
        for process in found:
            await self._tools.signal(process, signal.SIGKILL)
        for process in found:
            await gone(process, IMMEDIATE)

    async def _works_here(self, process: ProcessId) -> bool:
        from unstuck.guest.tools import run

        try:  # only its own user may see where another process is
            where = await run(self._tools, ["readlink", f"/proc/{process.pid}/cwd"], 10)
        except ToolFailed:
            return False
        return where == str(self._places.data.resolve())

    async def stop(self) -> None:
        """In order, then at once, then by force. Raises :class:`DatastoreError`."""
        found = self.find()
        if not isinstance(found, Living):
            return
        for number, seconds in ((signal.SIGINT, FAST), (signal.SIGQUIT, IMMEDIATE)):
            if stopped(found.process.pid):
                break
            await self._tools.signal(found.process, number)
            if await gone(found.process, seconds):
                return
        # A frozen one hears nothing else; its sessions hold the shared memory that a new one needs.
        for process in [found.process, *offspring(found.process.pid)]:
            await self._tools.signal(process, signal.SIGKILL)
        if not await gone(found.process, IMMEDIATE):
            raise DatastoreError("the server does not end", "none: it is tried again by itself")

    async def reload(self) -> None:
        found = self.find()
        if isinstance(found, Living):
            await self._tools.signal(found.process, signal.SIGHUP)


def _sessions() -> list[ProcessId]:
    """Processes that call themselves a server's, of whichever server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                named = (entry / "cmdline").read_bytes().startswith(b"postgres: ")
                if named and (start := start_time(int(entry.name))) is not None:
                    found.append(ProcessId(int(entry.name), start, boot_id()))
    return found


def last_error(log: Path) -> str:
    """The last line of the log that says what is wrong."""
    try:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    bad = [line for line in lines if any(word in line for word in ("FATAL:", "PANIC:", "ERROR:"))]
    text = (bad or lines or ["it left no word"])[-1]
    return text.partition("  ")[2][:300] or text[-300:]
