"""Stores of tests, made cheaply: each test has a database of its own, and what does not differ is shared.

SQLAlchemy compiles a statement once for each engine. A test's engine lives for a moment, so nearly all of
its time was compiling what the test before had compiled, too.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy import event

from tests import postgres
from unstuck.store.clock import init_clock
from unstuck.store.engine import Store, Tx
from unstuck.store.schema import metadata

_first: dict[str, Store] = {}


def opened(url: str, **more: Any) -> Store:
    """A store whose compiled statements are those of the first one of its kind in this process.

    On SQLite it does not wait for the disk: nothing here outlives the machine, and a process that is
    killed loses nothing that way.
    """
    made = Store(url, **more)
    if made.sqlite:
        event.listen(made.engine, "connect", _do_not_wait)
    like = _first.setdefault(made.engine.dialect.name, made)
    if like is made:
        made.engine.connect().close()  # its dialect learns what it speaks to
    else:
        for engine in {made.engine, made._direct}:
            engine.dialect = like.engine.dialect
            engine._compiled_cache = like.engine._compiled_cache
    return made


def _do_not_wait(dbapi: Any, _record: Any) -> None:
    dbapi.execute("PRAGMA synchronous=OFF")


def _longest() -> list[tuple[list[tuple[str, int]], str]]:
    """For each table its columns with their limits, and the query of the longest that is in them."""
    found = []
    for table in metadata.sorted_tables:
        limits = [(c.name, c.type.length) for c in table.c if isinstance(c.type, sa.String) and c.type.length]
        if limits:
            query = sa.select(*(sa.func.max(sa.func.length(table.c[name])) for name, _ in limits))
            names = [(f"{table.name}.{name}", most) for name, most in limits]
            found.append((names, str(query.compile())))
    return found


_LONGEST = _longest()


def longer_than_their_columns(tx: Tx) -> list[str]:
    """Columns that hold more than they may. So every create was a 500 on PostgreSQL, and only there."""
    found = []
    for limits, query in _LONGEST:
        row = tx.conn.exec_driver_sql(query).one()
        found += [name for (name, most), longest in zip(limits, row, strict=True) if (longest or 0) > most]
    return found


class SharedTables:
    """A database of PostgreSQL that tests use one after the other: emptying it takes a tenth of copying one.

    One that is not as its template any more, because a test gave it a trigger, is copied anew.
    """

    NAME: Final = "shared"
    MANY: Final = 500
    """Rows of a table whose remains would be in the next test's way."""

    def __init__(self, address: str) -> None:
        self._address = address
        postgres.copy(address, self.NAME, "template")
        with self._connect() as connection:
            self._made = _shape(connection)

    def emptied(self) -> Store:
        """Opened, with its clock and nothing else in it; nobody else is connected."""
        with self._connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            usable = _shape(connection) == self._made
            if usable:
                for table in reversed(metadata.sorted_tables):
                    if connection.execute(f"DELETE FROM {table.name}").rowcount > self.MANY:
                        connection.execute(f"VACUUM {table.name}")
        if not usable:
            postgres.drop(self._address, self.NAME)
            postgres.copy(self._address, self.NAME, "template")
        made = opened(postgres.url(self._address, self.NAME))
        made.transact(init_clock, generation_id="0" * 32)
        return made

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(f"postgresql://unstuck@{self._address}/{self.NAME}", autocommit=True)


def _shape(connection: psycopg.Connection[Any]) -> Any:
    """How many tables, functions and triggers there are."""
    counts = (f"(SELECT count(*) FROM {name})" for name in ("pg_class", "pg_proc", "pg_trigger"))
    return connection.execute(f"SELECT {', '.join(counts)}").fetchone()
