"""The production port over asyncio: effects await real work, and barriers stop the process at them."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import structlog

from unstuck.runtime.barriers import Barriers

T = TypeVar("T")

EXIT_BUG: Final = 70
EXIT_SUPERSEDED: Final = 75
EXIT_REJECTED: Final = 77
_REMEMBERED: Final = 10_000
"""Wake-ups that nobody has paused on yet. Losing one only makes things slower."""

log = structlog.get_logger(__name__)


async def at_once(works: list[Coroutine[Any, Any, None]]) -> None:
    """Beside each other: they wait for the same commit instead of one commit after the other.

    All have ended before what one of them raised is raised.
    """
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


class AsyncPort:
    """The port of this process. ``exits`` names the exceptions that end it on purpose, with their code.

    A task that ends with anything else is a bug: it is logged and the process ends, because half a
    process is worse than none. Its supervisor starts it anew, and nothing is lost (law 7).
    """

    def __init__(self, barriers: Barriers, exits: Mapping[type[Exception], int] | None = None) -> None:
        self._barriers = barriers
        self._exits = dict(exits or {})
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._woken: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[int] | None = None

    # --- what loops use

    async def effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        self._barriers.check(name)
        answer = await work()
        self._barriers.check(f"{name}+")
        return answer

    async def pause(self, seconds: float, wake: str) -> None:
        if wake in self._woken:
            del self._woken[wake]
            seconds = 0.0
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(wake, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return
        finally:
            self._leave(wake, future)

    def _leave(self, wake: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(wake)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[wake]

    def wake(self, key: str) -> None:
        waiting = [future for future in self._waiting.get(key, ()) if not future.done()]
        for future in waiting:
            future.set_result(None)
        if not waiting:
            self._woken[key] = None
            if len(self._woken) > _REMEMBERED:
                self._woken.popitem(last=False)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def clock(self) -> float:
        return time.monotonic()

    def nonce(self) -> str:
        return secrets.token_hex(8)

    # --- what the process uses

    def end(self, code: int) -> None:
        """End the process with this code, unless it is ending already."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    async def run(self, works: Mapping[str, Coroutine[Any, Any, None]]) -> int:
        """Run these and all they spawn until the process is to end; returns its exit code."""
        self._ended = asyncio.get_running_loop().create_future()
        for name, work in works.items():
            self.spawn(name, work)
        code = await self._ended
        await self._stop_tasks()
        return code

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        code = next((code for kind, code in self._exits.items() if isinstance(error, kind)), EXIT_BUG)
        # First the end, then the words: a log that raised here once left half a process running.
        self.end(code)
        if code != EXIT_BUG:
            log.error("process ends", task=task.get_name(), reason=str(error), exit_code=code)
            return
        # As text: a renderer that shows local variables would show secrets.
        trace = "".join(traceback.format_exception(error))
        log.error("process ends: a bug", task=task.get_name(), traceback=trace, exit_code=EXIT_BUG)

    async def _stop_tasks(self) -> None:
        """Cancel everything: helpers die with their tasks, guests do not."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
