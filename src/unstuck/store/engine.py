"""Transactions: a store function takes a :class:`Tx` first and is one transaction.

SQLite through ``pysqlite3`` (Debian 12's own library has the WAL-reset corruption fault): one owning
process, writes serialised on one thread, reads on others. PostgreSQL through psycopg 3 with the same SQL.
Transactions run on worker threads and are never cancelled half way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pysqlite3
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from unstuck.store.clock import read_now
from unstuck.store.tx import Tx

__all__ = ["Store", "StoreUnavailable", "Tx"]

P = ParamSpec("P")
T = TypeVar("T")

RETRIES: Final = 8
_RETRYABLE = {"40001", "40P01"}


class StoreUnavailable(Exception):
    """The database did not answer; whether the transaction was committed is unknown."""


class StoreDamaged(StoreUnavailable):
    """The file is not a database, or not a whole one; waiting cannot help."""


class Store:
    """A database. ``url`` is ``sqlite:///path``, ``sqlite://`` (memory) or ``postgresql+psycopg://…``.

    ``barrier`` is called with ``commit.<function>`` when all is written and nothing committed, and with
    ``commit.<function>+`` once it is committed and nobody knows yet, so that a kill can be aimed at both.
    """

    def __init__(
        self,
        url: str,
        *,
        wall: Callable[[], float] | None = None,
        barrier: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.sqlite = url.startswith("sqlite")
        self.memory = url == "sqlite://"
        self._wall = wall or (time.time if self.sqlite else None)
        self._barrier = barrier
        if self.memory:
            self.engine = sa.create_engine(
                url, module=pysqlite3, poolclass=StaticPool,
                connect_args={"isolation_level": None, "check_same_thread": False},
            )  # fmt: skip
        elif self.sqlite:
            self.engine = sa.create_engine(
                url, module=pysqlite3, pool_size=8,
                connect_args={"isolation_level": None, "timeout": 30, "check_same_thread": False},
            )  # fmt: skip
        else:
            self.engine = sa.create_engine(url, pool_size=8, max_overflow=8, pool_pre_ping=True)
        self.outages: tuple[type[Exception], ...] = (
            sa.exc.OperationalError,
            self.engine.dialect.loaded_dbapi.OperationalError,
        )
        self.errors: tuple[type[Exception], ...] = (
            sa.exc.DatabaseError,
            self.engine.dialect.loaded_dbapi.DatabaseError,
        )
        if self.sqlite:
            event.listen(self.engine, "connect", self._pragmas)
            event.listen(self.engine, "begin", self._begin)
        self._writers = ThreadPoolExecutor(1 if self.sqlite else 8, thread_name_prefix="store-write")
        self._readers = (
            self._writers
            if self.memory
            else ThreadPoolExecutor(4 if self.sqlite else 8, thread_name_prefix="store-read")
        )

    def told(self, error: Exception) -> Exception:
        """What one of ``errors`` means: :class:`StoreUnavailable` if the database is to blame, or itself."""
        cause = getattr(error, "orig", error)
        # SQLite has no class of its own for it: not one of the subclasses is what tells damage.
        if self.sqlite and type(cause) is self.engine.dialect.loaded_dbapi.DatabaseError:
            return StoreDamaged(
                f"The store {self.engine.url.database} is damaged ({cause}): put back a copy of it"
            )
        return StoreUnavailable(str(cause)) if isinstance(error, self.outages) else error

    def _pragmas(self, dbapi: Any, _record: Any) -> None:
        pragmas = ["foreign_keys=ON"]
        if not self.memory:
            pragmas += ["journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000"]
        for pragma in pragmas:
            dbapi.execute(f"PRAGMA {pragma}")

    @staticmethod
    def _begin(conn: sa.Connection) -> None:
        # A deferred BEGIN that reads and then writes fails under load whatever the busy timeout.
        read_only = conn.get_execution_options().get("unstuck_read_only")
        conn.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    def transact(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``tx`` as one transaction in this thread; raises :class:`StoreUnavailable`."""
        for attempt in range(RETRIES):
            try:
                with self.engine.begin() as conn:
                    answer = tx(Tx(conn, self._wall, read_now), *args, **kwargs)
                    self._barrier(f"commit.{tx.__name__}")
                self._barrier(f"commit.{tx.__name__}+")
                return answer
            except self.errors as error:
                cause = getattr(error, "orig", error)
                outage = isinstance(error, self.outages)
                if outage and getattr(cause, "sqlstate", None) in _RETRYABLE and attempt + 1 < RETRIES:
                    continue
                told = self.told(error)
                if told is error:
                    raise
                raise told from error
        raise AssertionError("unreachable")

    def read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``tx`` as one read-only transaction in this thread."""
        try:
            with self.engine.connect().execution_options(unstuck_read_only=True) as conn, conn.begin():
                return tx(Tx(conn, self._wall, read_now), *args, **kwargs)
        except self.errors as error:
            told = self.told(error)
            if told is error:
                raise
            raise told from error

    async def run(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """:meth:`transact` on a worker thread; a caller that goes away never interrupts it."""
        work = asyncio.get_running_loop().run_in_executor(
            self._writers, lambda: self.transact(tx, *args, **kwargs)
        )
        return await asyncio.shield(work)

    async def run_read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """:meth:`read` on a worker thread."""
        work = asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: self.read(tx, *args, **kwargs)
        )
        return await asyncio.shield(work)

    def create_all(self) -> None:
        """Create every table (tests and the simulator; production migrates)."""
        from unstuck.store.schema import metadata

        metadata.create_all(self.engine)

    def close(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self.engine.dispose()
