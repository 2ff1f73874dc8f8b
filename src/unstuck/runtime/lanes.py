"""Blocking work in threads of its own, a few per lane, each for no longer than it is given.

What hangs (a mount that is away, a store that accepts and never answers) cannot be ended from outside. It
keeps its thread and its place in its lane until it comes back; other lanes, and the end of the process, do
not wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST: Final = 8


class LaneFull(Exception):
    """As many works as a lane has places for are under way, or hang."""


class TookTooLong(Exception):
    """It may still be done; nobody waits for its answer any more."""


class Lanes:
    """``most``: works of one lane at the same time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def full(self, lane: str) -> bool:
        with self._lock:
            return self._busy.get(lane, 0) >= self._most

    async def run(self, lane: str, seconds: float, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Raises :class:`LaneFull` and :class:`TookTooLong`."""
        with self._lock:
            if self._busy.get(lane, 0) >= self._most:
                raise LaneFull(f"{self._most} earlier calls have not come back")
            self._busy[lane] = self._busy.get(lane, 0) + 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def body() -> None:
            answer: Any = None
            problem: BaseException | None = None
            try:
                answer = work()
            except BaseException as error:
                problem = error
            finally:
                self._leave(lane)
            try:
                loop.call_soon_threadsafe(_settle, future, answer, problem)
            except RuntimeError:
                return  # the loop has ended, and with it everybody who waited

        thread = threading.Thread(target=body, name=f"lane-{lane}", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._leave(lane)
            raise
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()  # it raised this itself
            raise TookTooLong(f"no answer within {seconds:g} s") from None

    def _leave(self, lane: str) -> None:
        with self._lock:
            self._busy[lane] -= 1
            if not self._busy[lane]:
                del self._busy[lane]


def _settle(future: asyncio.Future[Any], answer: Any, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(answer)
