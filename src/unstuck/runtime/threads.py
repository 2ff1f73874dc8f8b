"""Blocking work beside the loop, with a deadline that holds also when the work never comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class NoThread(Exception):
    """The system starts no further thread; nothing was begun."""


async def in_thread(name: str, work: Callable[[], T], seconds: float) -> T:
    """Raises TimeoutError after so many seconds (the work goes on, its outcome is unknown), and NoThread.

    A thread of its own that ends with the process: a pool would wait for it at the end, and be full of
    hanging threads before.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(set_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            set_answer(value)

    def run() -> None:
        set_answer: Callable[[Any], None] = answer.set_result
        value: Any
        try:
            value = work()
        except BaseException as error:
            set_answer, value = answer.set_exception, error
        try:
            loop.call_soon_threadsafe(tell, set_answer, value)
        except RuntimeError:
            return  # the loop has been closed meanwhile

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    async with asyncio.timeout(seconds):
        return await answer
