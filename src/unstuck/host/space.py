"""The host's disk space: each step that writes reserves first, so that no two count on the same bytes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from unstuck.host.driver import DriverError

RESERVE = 256 << 20
"""Bytes that stay free on the host: a full disk pauses every guest that writes."""

_MIB = 1 << 20
_ROUND = _MIB - 1


class Promise:
    """Bytes that one step may still write. What it has written shows in the file system's own figures."""

    def __init__(self, size: int) -> None:
        self.left = size

    def spent(self, size: int) -> None:
        self.left = max(self.left - size, 0)


async def _evict_nothing(_short: int) -> None:
    """Not every folder has something that can be given up."""


class Space:
    """The free bytes of one file system, shared by all that write to it in this process."""

    def __init__(
        self,
        folder: Path,
        evict: Callable[[int], Awaitable[None]] = _evict_nothing,
        reserve: int | None = None,
    ) -> None:
        self._folder = folder
        self._evict = evict
        self._reserve = RESERVE if reserve is None else reserve
        self._promised: set[Promise] = set()
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[Promise]:
        """So many bytes, held until the block ends; raises :class:`DriverError` naming what is full.

        What nobody needs is evicted first. One after the other, because looking and taking must be one
        step: two fetches of 3 GiB into 4 GiB of room would both have begun.
        """
        async with self._lock:
            short = size - await self._room()
            if short > 0:
                await self._evict(short)
                await self._insist(size)
            promise = Promise(size)
            self._promised.add(promise)
        try:
            yield promise
        finally:
            self._promised.discard(promise)

    async def _room(self) -> int:
        """What may still be written, besides what was promised; negative when even that is too much."""
        usage = await asyncio.to_thread(shutil.disk_usage, self._folder)
        return usage.free - self._reserve - sum(promise.left for promise in self._promised)

    async def _insist(self, size: int) -> None:
        room = await self._room()
        if room < size:
            raise DriverError(
                f"the host's disk is full: {max(room, 0) // _MIB} MiB are left of the file system of "
                f"{self._folder} beside the reserve, {(size + _ROUND) // _MIB} MiB are needed",
                remedy="make room on the host, or delete servers or images; it is tried again by itself",
            )
