"""Whether restored data can be read, and is what its owner expects.

All reading is done by a role that may read and nothing else, over TLS on this machine's own address, with a
password that is made for it and forgotten. So the owner's statement runs with no more than that, whatever it
says: it cannot become the agent's role again, as it could within the agent's own session.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from unstuck.core.instance.requests import Check, Checked, DatabaseAnswer, Failed, Ok
from unstuck.guest.datastores.postgresql.session import Connection, first_line

ROLE: Final = "unstuck_check"
SPARE: Final = 2.0
"""Seconds that are left for the answer."""
_VALUE: Final = 200
_DATABASES: Final = (
    "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate AND datname <> 'postgres'"
    ' ORDER BY datname COLLATE "C"'
)
_TABLES: Final = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'm') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
    " AND (c.relkind = 'r' OR c.relispopulated) ORDER BY c.oid"
)
_GONE: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
)
"""What its owner expects to be there, and is not: other mistakes of a statement say nothing of the data."""
_FALSE: Final = (None, False, 0, "", "f", "false", "0")


def check(connection: Connection, request: Check) -> DatabaseAnswer:
    """See :class:`Check`. ``connection`` is the agent's own; it makes the role, and takes it away again."""
    end = time.monotonic() + max(request.seconds - SPARE, 1.0)
    found = [str(row[0]) for row in connection.execute(_DATABASES)]
    if request.database and request.database not in found:
        return Failed("wrong", f"there is no database {request.database!r} in it", "database")
    with _reader(connection, found) as password:
        reader = _Reader(connection.info.port, password, end)
        checked = Checked(databases=len(found))
        try:
            for name in found:
                checked = reader.read(name, checked)
            if request.query:
                where = request.database or (found[0] if found else "postgres")
                return reader.ask(where, request.query, checked)
        except psycopg.errors.QueryCanceled:
            return Failed("unready", f"it was not read within {request.seconds:.0f} s")
        except psycopg.OperationalError as error:
            return Failed("unready", first_line(error))
        except _GONE as error:
            return Failed("wrong", first_line(error))
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
            return Failed("invalid", first_line(error), "query")
        except psycopg.Error as error:
            return Failed("wrong", first_line(error))
    return Ok(checked=checked)


@contextlib.contextmanager
def _reader(connection: Connection, databases: list[str]) -> Iterator[str]:
    """The role, with a fresh password, while it is needed."""
    password = secrets.token_urlsafe(24)
    name, secret = sql.Identifier(ROLE), sql.Literal(password)
    _drop(connection)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN BYPASSRLS PASSWORD {}").format(name, secret))
    connection.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(name))
    for database in databases:
        connection.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), name)
        )
    try:
        yield password
    finally:
        with contextlib.suppress(psycopg.Error):
            _drop(connection)


def _drop(connection: Connection) -> None:
    connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE])
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone() is not None:
        # Its rights to connect as well, which are kept with the databases.
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(ROLE)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(ROLE)))


class _Reader:
    """Connections of the role, until ``end``."""

    def __init__(self, port: int, password: str, end: float) -> None:
        self._port = port
        self._password = password
        self._end = end

    def _open(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        left = max(self._end - time.monotonic(), 0.1)
        return psycopg.connect(
            host="127.0.0.1", port=self._port, user=ROLE, password=self._password, dbname=database,
            sslmode="require", gssencmode="disable", connect_timeout=max(2, round(left)), autocommit=True,
            application_name="unstuck-check",
            options=f"-c default_transaction_read_only=on -c statement_timeout={max(1, round(left * 1000))}"
            " -c client_encoding=UTF8",
        )  # fmt: skip

    def read(self, database: str, sofar: Checked) -> Checked:
        """Every row of every table; once the time is over, only how many tables there are."""
        with contextlib.closing(self._open(database)) as there:
            tables = there.execute(_TABLES).fetchall()
            read, rows = sofar.tables_read, sofar.rows
            for schema, table in tables:
                if time.monotonic() >= self._end:
                    break
                statement = sql.SQL("SELECT count(*) FROM ONLY {}").format(sql.Identifier(schema, table))
                try:
                    counted = there.execute(statement).fetchone()
                except psycopg.errors.QueryCanceled:
                    break
                read, rows = read + 1, rows + (0 if counted is None else int(counted[0]))
        return Checked(sofar.databases, sofar.tables + len(tables), read, rows)

    def ask(self, database: str, query: str, checked: Checked) -> DatabaseAnswer:
        """One statement, by the protocol's own rule: prepared ones are."""
        with contextlib.closing(self._open(database)) as there:
            cursor = there.execute(query.encode(), prepare=True)
            row = cursor.fetchone() if cursor.description else None
        if row is None:
            return Failed("wrong", "the statement gave no row", "query")
        value = "NULL" if row[0] is None else str(row[0])[:_VALUE]
        if row[0] in _FALSE:
            return Failed("wrong", f"the statement gave {value or 'nothing'}", "query")
        return Ok(checked=msgspec.structs.replace(checked, value=value))
