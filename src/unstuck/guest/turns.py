"""Asking a server over its unix socket, each call within a deadline; whichever datastore it is.

A call runs on a thread; at its deadline its socket is shut down, which ends the thread's wait even where the
server is frozen. No connection is kept: a look costs one, and none can be in the way of a DROP DATABASE.

What is asked in a tenant's name can wait for that tenant's own locks. So it has threads, and thereby
connections, of its own: however many wait, the server is looked at all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

LOCKS: Final = 0.4
"""The part of its time that a tenant's request waits for a lock: whoever asked is still there to hear it."""


class Use(enum.Enum):
    """What a connection is for."""

    LOOK = "look"
    OWN = "own"
    TENANT = "tenant"


_THREADS: Final = {Use.LOOK: 2, Use.OWN: 4, Use.TENANT: 2}


class Mute(Exception):
    """Nothing answers: nobody listens, or not in time."""


class StartingUp(Exception):
    """The server lives and takes nobody in yet (or any more)."""


class Line(Protocol):
    """A connection to a server."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


L = TypeVar("L", bound=Line)


class Turns:
    """Threads for calls; who has no turn within its time is told so."""

    def __init__(self) -> None:
        self._threads = {use: ThreadPoolExecutor(most, use.value) for use, most in _THREADS.items()}

    async def run(
        self, connect: Callable[[float, Use], L], work: Callable[[L], T], seconds: float, use: Use = Use.OWN
    ) -> T:
        """Do ``work`` with what ``connect`` gives for the seconds that are left. Raises :class:`Mute`, and
        what either of them raises."""
        held: list[L] = []
        end = time.monotonic() + seconds

        def call() -> T:
            left = end - time.monotonic()
            if left <= 0:  # given up while it waited for its turn: it must not happen later
                raise Mute(f"no turn within {seconds:.0f} s: others are asked for at the same time")
            with contextlib.closing(connect(left, use)) as line:
                held.append(line)
                return work(line)

        future = asyncio.get_running_loop().run_in_executor(self._threads[use], call)
        try:
            async with asyncio.timeout(seconds + 1):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Mute(f"no answer within {seconds:.0f} s") from None
        finally:
            if not future.done():
                future.add_done_callback(_forget)
                for line in held:
                    _shut(line)


def _shut(line: Line) -> None:
    with (
        contextlib.suppress(Exception),
        socket.socket(fileno=os.dup(line.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
