"""Stores of tests, made cheaply: each test has a database of its own, and what does not differ is shared.

SQLAlchemy compiles a statement once for each engine. A test's engine lives for a moment, so nearly all of
its time was compiling what the test before had compiled, too.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from unstuck.store.engine import Store, Tx
from unstuck.store.schema import metadata

_first: dict[str, Store] = {}


def opened(url: str) -> Store:
    """A store whose compiled statements are those of the first one of its kind in this process.

    On SQLite it does not wait for the disk: nothing here outlives the machine, and a process that is
    killed loses nothing that way.
    """
    made = Store(url)
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
