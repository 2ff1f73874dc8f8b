"""Asking the server over its unix socket, each call within a deadline.

A call runs on a thread; at its deadline its socket is shut down, which ends the thread's wait even where the
server is frozen. No connection is kept: a look costs one, and none can be in the way of a DROP DATABASE.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from unstuck.guest.datastores.postgresql.config import ADMIN

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

STARTING_UP: Final = "57P03"


class Mute(Exception):
    """Nothing answers: nobody listens, or not in time."""


class StartingUp(Exception):
    """The server lives and takes nobody in yet (or any more)."""


class Sessions:
    """Connections as the agent's role."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._threads = ThreadPoolExecutor(8, "database")

    async def run(
        self, port: int, work: Callable[[Connection], T], seconds: float, database: str = "postgres"
    ) -> T:
        """Do ``work`` (on a thread). Raises :class:`Mute`, :class:`StartingUp`, :class:`psycopg.Error`."""
        held: list[Connection] = []

        def call() -> T:
            with contextlib.closing(self._connect(port, database, seconds)) as connection:
                held.append(connection)
                return work(connection)

        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            async with asyncio.timeout(seconds + 1):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Mute(f"no answer within {seconds:.0f} s") from None
        except psycopg.OperationalError as error:
            if error.sqlstate == STARTING_UP or "starting up" in str(error) or "shutting down" in str(error):
                raise StartingUp(first_line(error)) from error
            if error.sqlstate is None:
                raise Mute(first_line(error)) from error
            raise
        finally:
            if not future.done():
                future.add_done_callback(_forget)
                for connection in held:
                    _shut(connection)

    def _connect(self, port: int, database: str, seconds: float) -> Connection:
        limit = max(1, round(seconds * 1000))
        return psycopg.connect(
            host=str(self._sockets),
            port=port,
            user=ADMIN,
            dbname=database,
            connect_timeout=max(2, round(seconds)),
            application_name="unstuck",
            options=f"-c statement_timeout={limit} -c client_encoding=UTF8 -c search_path=pg_catalog",
            gssencmode="disable",
            autocommit=True,
        )


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
