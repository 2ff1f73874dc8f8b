"""Asking MariaDB over its unix socket, as the agent's account (``turns.py``)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pymysql

from unstuck.guest.turns import LOCKS, Mute, StartingUp, Turns, Use

T = TypeVar("T")
Row = tuple[Any, ...]

NOBODY: Final = (errno.ENOENT, errno.ECONNREFUSED)
_SHUTDOWN: Final = 1053
_CLIENT: Final = range(2000, 3000)
"""Numbers of errors that come from this side of the line."""


class DatabaseError(Exception):
    """The server said no. ``code``: MariaDB's number of it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """One connection. Statements are texts; what is put into them comes from ``words.py``."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def ask(self, statement: str) -> list[Row]:
        """Its rows. Raises :class:`DatabaseError`, or :class:`Mute` where the line was lost."""
        with _errors(), self._raw.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def one(self, statement: str) -> Row | None:
        rows = self.ask(statement)
        return rows[0] if rows else None

    def named(self, statement: str) -> dict[str, str]:
        """Its first row by the columns' names; empty where there is none. Raises as :meth:`ask`."""
        with _errors(), self._raw.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
            return {} if row is None else {
                str(column[0]): str(value) for column, value in zip(cursor.description, row, strict=True)
            }  # fmt: skip

    @property
    def socket(self) -> str:
        """Where the server is reached."""
        return str(self._raw.unix_socket)

    def fileno(self) -> int:
        return int(self._raw._sock.fileno())

    def close(self) -> None:
        with contextlib.suppress(pymysql.Error):
            self._raw.close()


class Sessions:
    """Connections as the agent's account, which logs in by being a user of the system."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._turns = Turns()

    async def run(self, socket: Path, work: Callable[[Session], T], seconds: float, use: Use = Use.OWN) -> T:
        """Do ``work`` (on a thread). Raises :class:`Mute`, :class:`StartingUp`, :class:`DatabaseError`."""
        return await self._turns.run(lambda left, used: self._connect(socket, left, used), work, seconds, use)

    def _connect(self, socket: Path, seconds: float, use: Use) -> Session:
        wait = max(1, round(seconds * (LOCKS if use is Use.TENANT else 1.0)))
        settings: dict[str, str] = {
            "sql_mode": "'STRICT_ALL_TABLES,NO_AUTO_CREATE_USER'",
            "max_statement_time": f"{max(1.0, seconds):.1f}",
            "lock_wait_timeout": str(wait),
            "innodb_lock_wait_timeout": str(wait),
        }
        first = "SET SESSION " + ", ".join(f"{key} = {value}" for key, value in settings.items())
        with _errors():
            raw = pymysql.connect(
                unix_socket=str(socket), user=self._user, charset="utf8mb4", autocommit=True,
                connect_timeout=max(1, round(seconds)), read_timeout=max(1, round(seconds)),
                write_timeout=max(1, round(seconds)), local_infile=False, ssl_disabled=True,
                init_command=first,
            )  # fmt: skip
        return Session(raw)


@contextlib.contextmanager
def _errors() -> Any:
    try:
        yield
    except pymysql.err.InterfaceError as error:
        raise Mute(first_line(error)) from error
    except pymysql.Error as error:
        code = int(error.args[0]) if error.args and isinstance(error.args[0], int) else 0
        text = first_line(error)
        cause = getattr(error, "original_exception", None)
        if code == _SHUTDOWN or (isinstance(cause, OSError) and cause.errno in NOBODY):
            raise StartingUp(text) from error
        if code in _CLIENT or code == 0:
            raise Mute(text) from error
        raise DatabaseError(code, text) from error


def first_line(error: Exception) -> str:
    """For people; never a statement, which could hold a verifier."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:300]
