"""The two databases, side by side: SQLite in the state folder, and a PostgreSQL of our own that syncs."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import postgres

_numbers = itertools.count(1)


class Database:
    """Makes empty databases of one kind. ``address``: of a PostgreSQL server; without one it is SQLite."""

    def __init__(self, address: str = "") -> None:
        self.name = "PostgreSQL" if address else "SQLite"
        self._address = address

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of an empty database, which is gone afterwards."""
        if self._address:
            name = f"bench{next(_numbers)}"
            postgres.copy(self._address, name, "template0")
            try:
                yield postgres.url(self._address, name)
            finally:
                postgres.drop(self._address, name)
            return
        folder = Path(tempfile.mkdtemp(prefix="unstuck-bench-db-"))
        try:
            yield f"sqlite:///{folder / 'unstuck.db'}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def both() -> Iterator[list[Database]]:
    """Both, or SQLite alone where PostgreSQL's server is not installed."""
    if postgres.programs() is None:
        yield [Database()]
        return
    with postgres.server(durable=True) as address:
        yield [Database(), Database(address)]
