"""A tool on a leash whose output is read through a pipe, at the reader's pace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from unstuck.guest.datastore import DatastoreError
from unstuck.guest.processes import offspring
from unstuck.guest.tools import Child, Tools, enlarge, last_words

END: Final = 30.0
"""Seconds for the tool to end after its stream has."""
CUT: Final = 5.0


class Piped:
    """One that runs. ``feed`` is given all that is read, on the thread that reads."""

    def __init__(self, feed: Callable[[memoryview], None]) -> None:
        self._feed = feed
        self._thread = ThreadPoolExecutor(1, "copy")
        self._pipe = -1
        self._child: Child | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._name = ""
        self._closed = False
        self.flows = False
        """Whether anything came."""

    async def start(self, tools: Tools, command: Sequence[str]) -> None:
        """Raises :class:`ToolFailed`."""
        self._name = Path(command[0]).name
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._pipe = reading
        enlarge(writing)
        try:
            self._child = await tools.start(command, stdout=writing, stderr=self._words.fileno())
        finally:
            os.close(writing)

    async def read(self, size: int, into: bytearray) -> memoryview:
        """Whole pieces; the last one is shorter. They lie in ``into``. Raises :class:`DatastoreError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, size, into)

    def _read(self, size: int, into: bytearray) -> memoryview:
        """Its waits are short, so that closing need not break in."""
        view, filled = memoryview(into)[:size], 0
        waiter = select.poll()
        waiter.register(self._pipe, select.POLLIN)
        while filled < size:
            if self._closed:
                raise DatastoreError("the copy was stopped")
            if not waiter.poll(500):
                continue
            got = os.readv(self._pipe, [view[filled:]])
            if got == 0:
                break
            filled += got
        self.flows = self.flows or filled > 0
        self._feed(view[:filled])
        return view[:filled]

    def pids(self) -> list[int]:
        """The tool's, and those of what it started."""
        return [] if self._child is None else [found.pid for found in offspring(self._child.pid)]

    def words(self) -> str:
        """What it said last."""
        return "" if self._closed else last_words(self._words.fileno())

    async def ended(self) -> None:
        """Its stream has ended, so has it; raises :class:`DatastoreError` unless it says that it is done."""
        assert self._child is not None
        try:
            async with asyncio.timeout(END):
                code = await self._child.wait()
        except TimeoutError:
            raise DatastoreError(f"{self._name} did not end within {END:.0f} s") from None
        if code != 0:
            words = self.words().splitlines() or ["no word of why"]
            raise DatastoreError(f"{self._name} ended with {code}: {words[-1][:300]}")

    async def close(self) -> bool:
        """End it, with all that it started; whether this was the first time."""
        if self._closed:
            return False
        self._closed = True
        if self._child is not None:
            self._child.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT):
                    await self._child.wait()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self._words.close()
        return True
