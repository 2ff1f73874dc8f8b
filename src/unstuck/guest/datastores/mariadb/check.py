"""Whether restored data can be read, and is what its owner expects.

All reading is done by an account that may read the tenant's databases and nothing else, over the server's own
socket, with a password that is made for it and forgotten.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Final

import msgspec
import pymysql

from unstuck.core.instance.requests import Check, Checked, DatabaseAnswer, Failed, Ok
from unstuck.guest.datastores.mariadb import names
from unstuck.guest.datastores.mariadb.accounts import LOCAL
from unstuck.guest.datastores.mariadb.session import DatabaseError, Session, first_line
from unstuck.guest.datastores.mariadb.words import account, identifier, literal, pattern

NAME: Final = "unstuck_check"
SPARE: Final = 2.0
"""Seconds that are left for the answer."""
_VALUE: Final = 200
_TIMES: Final = (1969, 1317, 1205)
_GONE: Final = (1146, 1054, 1049)
"""What its owner expects to be there, and is not: other mistakes of a statement say nothing of the data."""
_MISTAKES: Final = range(1044, 1250)
_FALSE: Final = (None, False, 0, "", b"", b"\x00")


def check(session: Session, request: Check) -> DatabaseAnswer:
    """See :class:`Check`. ``session`` is the agent's own; it makes the account, and takes it away again."""
    end, socket = time.monotonic() + max(request.seconds - SPARE, 1.0), session.socket
    found = [
        str(row[0])
        for row in session.ask(
            "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN"
            f" ({', '.join(literal(name) for name in names.SYSTEM)}) ORDER BY BINARY SCHEMA_NAME"
        )
    ]
    if request.database and request.database not in found:
        return Failed("wrong", f"there is no database {request.database!r} in it", "database")
    with _reader(session, found) as password:
        checked = Checked(databases=len(found))
        asks = False
        try:
            for name in found:
                checked = _read(socket, password, name, end, checked)
            if not request.query:
                return Ok(checked=checked)
            asks = True
            return _ask(
                socket, password, request.database or (found[0] if found else ""), request, end, checked
            )
        except pymysql.Error as error:
            code = int(error.args[0]) if error.args and isinstance(error.args[0], int) else 0
            text = first_line(error)
            if code in _TIMES or code == 0 or code >= 2000:
                return Failed("unready", text)
            if asks and code in _MISTAKES and code not in _GONE:
                return Failed("invalid", text, "query")
            return Failed("wrong", text)


@contextlib.contextmanager
def _reader(session: Session, databases: list[str]) -> Iterator[str]:
    """The account, with a fresh password, while it is needed."""
    password, who = secrets.token_urlsafe(24), account(NAME, LOCAL)
    session.ask(f"CREATE OR REPLACE USER {who} IDENTIFIED BY {literal(password)}")
    try:
        for name in databases:
            session.ask(f"GRANT SELECT, SHOW VIEW ON {identifier(pattern(name))}.* TO {who}")
        yield password
    finally:
        with contextlib.suppress(DatabaseError):
            session.ask(f"DROP USER IF EXISTS {who}")


@contextlib.contextmanager
def _open(socket: str, password: str, database: str, end: float) -> Iterator[pymysql.Connection]:
    left = max(end - time.monotonic(), 0.5)
    made = pymysql.connect(
        unix_socket=socket, user=NAME, password=password, database=database or None, charset="utf8mb4",
        autocommit=True, connect_timeout=max(1, round(left)), read_timeout=max(1, round(left)),
        write_timeout=max(1, round(left)), local_infile=False, ssl_disabled=True,
        init_command=f"SET SESSION max_statement_time = {left:.1f}",
    )  # fmt: skip
    with contextlib.closing(made):
        yield made


def _read(socket: str, password: str, database: str, end: float, sofar: Checked) -> Checked:
    """Every row of every table; once the time is over, only how many tables there are."""
    with _open(socket, password, database, end) as there, there.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
            f" AND TABLE_SCHEMA = {literal(database)}"
        )
        tables = [str(row[0]) for row in cursor.fetchall()]
        read, rows = sofar.tables_read, sofar.rows
        for table in tables:
            if time.monotonic() >= end:
                break
            cursor.execute(f"SELECT COUNT(*) FROM {identifier(table)}")
            counted = cursor.fetchone()
            read, rows = read + 1, rows + (0 if counted is None else int(counted[0]))
    return Checked(sofar.databases, sofar.tables + len(tables), read, rows)


def _ask(
    socket: str, password: str, database: str, request: Check, end: float, checked: Checked
) -> DatabaseAnswer:
    with _open(socket, password, database, end) as there, there.cursor() as cursor:
        cursor.execute(request.query)
        row = cursor.fetchone() if cursor.description else None
    if row is None:
        return Failed("wrong", "the statement gave no row", "query")
    value = "NULL" if row[0] is None else str(row[0])[:_VALUE]
    if row[0] in _FALSE:
        return Failed("wrong", f"the statement gave {value or 'nothing'}", "query")
    return Ok(checked=msgspec.structs.replace(checked, value=value))
