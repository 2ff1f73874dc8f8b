"""What the server asks the agent through about its log (``guest/push.py``): ``keep NAME``, ``get NAME``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from unstuck.core.archive.data import Piece
from unstuck.guest.datastore import DatastoreError, LogSource
from unstuck.guest.datastores.postgresql.segments import SEGMENT, place_of

LINE: Final = 256
LAST: Final = 2.0
"""Seconds for a piece of a server that is to stop."""


class LogSocket:
    """One socket for all servers of the guest. ``log``: what a restore hands out now."""

    def __init__(self, path: Path, keep: Callable[[str], Awaitable[bool]]) -> None:
        self._path = path
        self.keep = keep
        self.log: LogSource | None = None
        self.fault: DatastoreError | None = None
        """Why what was asked for last could not be handed out."""
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """In the place of a predecessor's, whose agent is gone."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o660)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await self._answer((await reader.readuntil(b"\n"))[:LINE].decode().strip(), writer)
                await writer.drain()
        finally:
            writer.close()

    async def _kept(self, name: str, last: bool) -> bool:
        """A server that is to stop waits for its log no longer than a moment."""
        try:
            async with asyncio.timeout(LAST if last else None):
                return await self.keep(name)
        except TimeoutError:
            return False

    async def _answer(self, line: str, writer: asyncio.StreamWriter) -> None:
        verb, _, name = line.partition(" ")
        if "/" in name or name.startswith("."):
            writer.write(b"NO\n")
        elif verb in ("keep", "last"):
            writer.write(b"OK\n" if await self._kept(name, verb == "last") else b"LATER\n")
        elif verb == "get" and self.log is not None:
            try:
                data = await self.log.get(name)
            except DatastoreError as error:
                self.fault = error
                writer.write(b"FAIL\n")
                return
            writer.write(b"NO\n" if data is None else b"OK %d\n" % len(data) + data)
        else:
            writer.write(b"NO\n")


def piece_of(name: str, data: bytes) -> Piece:
    """A segment has a place in the log; a timeline's history, a backup's label have none."""
    start = stop = ""
    timeline = int(name[:8], 16) if name[:8].isalnum() else 0
    if SEGMENT.match(name):
        timeline, index = place_of(name, len(data))
        start, stop = f"{index * len(data):016X}", f"{(index + 1) * len(data):016X}"
    return Piece(name=name, timeline=timeline, start=start, stop=stop, size=len(data), digest="")
