"""How each datastore is spoken to from outside: what the writer and the checks need of it, no more."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, Final, Protocol

import psycopg
import pymysql

DATABASE: Final = "shop"
USER: Final = "anna"
PASSWORD: Final = "only-for-chaos-1"  # noqa: S105 (of a cloud that lasts for minutes)


class Session(Protocol):
    """One connection. Every call raises OSError where the database does not do it."""

    def create(self) -> None: ...

    def insert(self, row: int) -> None:
        """Returns when the row is acknowledged."""
        ...

    def rows(self) -> list[tuple[int, bool]]:
        """Number of every row, and whether it is as it was written."""
        ...

    def close(self) -> None: ...


class Client(Protocol):
    """A datastore."""

    def connect(self, address: str, seconds: int = 5) -> Session: ...

    def is_server(self, words: Sequence[bytes]) -> bool:
        """Whether this is the command line of the server's first process."""
        ...

    def is_helper(self, name: str) -> bool:
        """Whether a process of this name is the server's, or copies for a backup."""
        ...


class _PostgresSession:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def _do(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise OSError(str(error)) from None

    def create(self) -> None:
        self._do("CREATE TABLE IF NOT EXISTS ledger (id bigint PRIMARY KEY, word text NOT NULL)")

    def insert(self, row: int) -> None:
        self._do("INSERT INTO ledger VALUES (%s, md5(%s::text))", row, row)

    def rows(self) -> list[tuple[int, bool]]:
        return [(row[0], row[1]) for row in self._do("SELECT id, word = md5(id::text) FROM ledger")]

    def close(self) -> None:
        self._connection.close()


class PostgreSQL:
    """By psycopg, as any client."""

    def connect(self, address: str, seconds: int = 5) -> Session:
        try:
            return _PostgresSession(
                psycopg.connect(
                    host=address, user=USER, password=PASSWORD, dbname=DATABASE, autocommit=True,
                    connect_timeout=seconds, tcp_user_timeout=5000, keepalives_idle=2, keepalives_interval=1,
                    options="-c statement_timeout=20000",
                )
            )  # fmt: skip
        except psycopg.Error as error:
            raise OSError(str(error)) from None

    def is_server(self, words: Sequence[bytes]) -> bool:
        return words[0].endswith(b"/postgres") and b"-D" in words if words else False

    def is_helper(self, name: str) -> bool:
        return name in ("postgres", "pg_basebackup")


class _MariaSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _do(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query, values or None)
                return list(cursor.fetchall())
        except pymysql.Error as error:
            raise OSError(str(error)) from None

    def create(self) -> None:
        self._do("CREATE TABLE IF NOT EXISTS ledger (id bigint PRIMARY KEY, word char(32) NOT NULL)")

    def insert(self, row: int) -> None:
        self._do("INSERT INTO ledger VALUES (%s, md5(%s))", row, row)

    def rows(self) -> list[tuple[int, bool]]:
        return [(row[0], bool(row[1])) for row in self._do("SELECT id, word = md5(id) FROM ledger")]

    def close(self) -> None:
        with contextlib.suppress(pymysql.Error, OSError):
            self._connection.close()


class MariaDB:
    """By PyMySQL, as any client."""

    def connect(self, address: str, seconds: int = 5) -> Session:
        sealed = ssl.create_default_context()
        sealed.check_hostname, sealed.verify_mode = False, ssl.CERT_NONE
        try:
            return _MariaSession(
                pymysql.connect(
                    host=address, user=USER, password=PASSWORD, database=DATABASE, ssl=sealed,
                    connect_timeout=seconds, read_timeout=20, write_timeout=20, autocommit=True,
                )
            )  # fmt: skip
        except (pymysql.Error, OSError) as error:
            raise OSError(str(error)) from None

    def is_server(self, words: Sequence[bytes]) -> bool:
        return bool(words) and words[0].endswith(b"/mariadbd")

    def is_helper(self, name: str) -> bool:
        return name in ("mariadb-backup", "mbstream")


CLIENTS: Final[dict[str, Client]] = {"postgresql": PostgreSQL(), "mariadb": MariaDB()}
"""By the datastore's name. One that is registered and not here is named in the report as not driven."""
