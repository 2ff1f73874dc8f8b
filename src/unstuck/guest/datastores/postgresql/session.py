"""Asking the server over its unix socket, each call within a deadline.

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from unstuck.guest.datastores.postgresql.config import ADMIN

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

STARTING_UP: Final = "57P03"
_NOT_NOW: Final = ("starting up", "shutting down", "in recovery mode", "accepting connections")
"""That error in words: one of a connection that did not come about has no code."""
_FULL: Final = ("too many clients", "connection slots")
LOCKS: Final = 0.4
"""The part of its time that a tenant's request waits for a lock: whoever asked is still there to hear it."""


class Use(enum.Enum):
    """What a connection is for. All together stay below ``superuser_reserved_connections``, usually."""

    LOOK = "look"
    OWN = "own"
    TENANT = "tenant"


_THREADS: Final = {Use.LOOK: 2, Use.OWN: 4, Use.TENANT: 2}


class Mute(Exception):
    """Nothing answers: nobody listens, or not in time."""


class StartingUp(Exception):
    """The server lives and takes nobody in yet (or any more)."""


class Sessions:
    """Connections as the agent's role."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._threads = {use: ThreadPoolExecutor(most, use.value) for use, most in _THREADS.items()}

    async def run(self, port: int, work: Callable[[Connection], T], seconds: float, use: Use = Use.OWN) -> T:
        """Do ``work`` (on a thread). Raises :class:`Mute`, :class:`StartingUp`, :class:`psycopg.Error`."""
        held: list[Connection] = []
        end = time.monotonic() + seconds

        def call() -> T:
            left = end - time.monotonic()
            if left <= 0:  # given up while it waited for its turn: it must not happen later
                raise Mute(f"no turn within {seconds:.0f} s: others are asked for at the same time")
            with contextlib.closing(self._connect(port, left, use)) as connection:
                held.append(connection)
                return work(connection)

        future = asyncio.get_running_loop().run_in_executor(self._threads[use], call)
        try:
            async with asyncio.timeout(seconds + 1):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Mute(f"no answer within {seconds:.0f} s") from None
        except psycopg.OperationalError as error:
            if error.sqlstate == STARTING_UP or any(words in str(error) for words in _NOT_NOW):
                raise StartingUp(first_line(error)) from error
            if error.sqlstate is None and not any(words in str(error) for words in _FULL):
                raise Mute(first_line(error)) from error
            raise  # it answered
        finally:
            if not future.done():
                future.add_done_callback(_forget)
                for connection in held:
                    _shut(connection)

    def _connect(self, port: int, seconds: float, use: Use) -> Connection:
        limit = max(1, round(seconds * 1000))
        locks = max(1, round(limit * LOCKS)) if use is Use.TENANT else 0
        return psycopg.connect(
            host=str(self._sockets),
            port=port,
            user=ADMIN,
            dbname="postgres",
            connect_timeout=max(2, round(seconds)),
            application_name="unstuck",
            options=f"-c statement_timeout={limit} -c lock_timeout={locks} -c client_encoding=UTF8"
            " -c search_path=pg_catalog",
            gssencmode="disable",
            autocommit=True,
        )


@contextlib.contextmanager
def beside(connection: Connection, database: str) -> Iterator[Connection]:
    """A connection to another database of the same server, with the same limits."""
    info = connection.info
    with psycopg.connect(
        host=info.host, port=info.port, user=info.user, dbname=database, autocommit=True, connect_timeout=5,
        application_name="unstuck", options=info.options, gssencmode="disable",
    ) as there:  # fmt: skip
        yield there


def _shut(connection: Connection) -> None:
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def first_line(error: Exception) -> str:
    """For people; never a statement, which could hold a verifier."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary[:300]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
