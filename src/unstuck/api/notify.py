"""Wake-ups inside one process: they only make things faster, nothing depends on them (law 1)."""

from __future__ import annotations

import asyncio
import threading


class Notifier:
    """Version counters by key (``host:<id>``, ``control``), and coroutines that wait for the next one.

    To miss nothing between looking and waiting, read :meth:`version` before looking at the store and
    hand it to :meth:`wait` as ``since``.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._lock = threading.Lock()

    def version(self, key: str) -> int:
        """How often ``key`` was woken so far."""
        return self._versions.get(key, 0)

    def wake(self, key: str) -> None:
        """Wake everybody who waits for ``key``; may be called from any thread."""
        with self._lock:
            self._versions[key] = self._versions.get(key, 0) + 1
            waiting = self._waiting.pop(key, set())
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future)

    async def wait(self, key: str, timeout: float, *, since: int | None = None) -> bool:
        """Wait for a wake-up of ``key`` later than ``since`` (default: now); false after ``timeout`` s."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (loop, future)
        with self._lock:
            if since is not None and self.version(key) != since:
                return True
            self._waiting.setdefault(key, set()).add(entry)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            self._forget(key, entry)
        return True

    def _forget(self, key: str, entry: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> None:
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.discard(entry)
                if not waiting:
                    del self._waiting[key]


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
