"""Asking PostgreSQL over its unix socket, as the agent's role (``turns.py``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from unstuck.guest.datastores.postgresql.config import ADMIN
from unstuck.guest.turns import LOCKS, Mute, StartingUp, Turns, Use

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

STARTING_UP: Final = "57P03"
_NOT_NOW: Final = ("starting up", "shutting down", "in recovery mode", "accepting connections")
"""That error in words: one of a connection that did not come about has no code."""
_FULL: Final = ("too many clients", "connection slots")


class Sessions:
    """Connections as the agent's role. The uses together stay below ``superuser_reserved_connections``."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._turns = Turns()

    async def run(self, port: int, work: Callable[[Connection], T], seconds: float, use: Use = Use.OWN) -> T:
        """Do ``work`` (on a thread). Raises :class:`Mute`, :class:`StartingUp`, :class:`psycopg.Error`."""
        try:
            return await self._turns.run(lambda left, use: self._connect(port, left, use), work, seconds, use)
        except psycopg.OperationalError as error:
            if error.sqlstate == STARTING_UP or any(words in str(error) for words in _NOT_NOW):
                raise StartingUp(first_line(error)) from error
            if error.sqlstate is None and not any(words in str(error) for words in _FULL):
                raise Mute(first_line(error)) from error
            raise  # it answered

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


def first_line(error: Exception) -> str:
    """For people; never a statement, which could hold a verifier."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary[:300]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
