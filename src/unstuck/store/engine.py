"""Transactions: a store function takes a :class:`Tx` first and is one transaction.

SQLite through ``pysqlite3`` (Debian 12's own library has the WAL-reset corruption fault): one owning
process, writes serialised on one thread (several to a commit, :mod:`unstuck.store.group`), reads on
others. PostgreSQL through psycopg 3 with the same SQL.
Transactions run on worker threads and are never cancelled half way.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pysqlite3
import sqlalchemy as sa
import structlog
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from unstuck.store.clock import read_now
from unstuck.store.group import Group, Write
from unstuck.store.tx import Tx, queues_for

__all__ = ["Store", "StoreUnavailable", "Tx"]

P = ParamSpec("P")
T = TypeVar("T")

Who = tuple[str, str]
"""A transaction's number, and the timeline in which it has it."""

AHEAD: Final = 2
"""Transactions that may be at work for one parent row: one that holds it, and one that comes as far as it."""
RETRIES: Final = 8
DEADLINE: Final = 30.0
"""Seconds after which a caller of :meth:`Store.run` no longer waits for a database that says nothing."""
OUTCOME_PATIENCE: Final = 10.0
"""Seconds until the database has noticed that a session which was in its commit is gone."""
_RETRYABLE = {"40001", "40P01"}
_READ_ONLY = "25006"
"""The other end is a standby by now: it is as good as away."""
_SQLITE: Final = {"isolation_level": None, "check_same_thread": False, "cached_statements": 1024}
"""With the driver's own 128 compiled statements there is one to be compiled again at every second call: our
transactions have some hundred (measured in the simulator: a quarter of its time)."""
_LIBPQ: Final = {
    # A database whose host is gone says nothing at all: nobody waits two minutes for it.
    "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # A replica that is frozen within a transaction holds the row of a host: without this the other ones
    # waited for it for ever. It is told when it thaws, and its transaction is done again.
    "options": "-c idle_in_transaction_session_timeout=10s",
}  # fmt: skip
# One round trip, which also tries the connection. The number is needed where the commit's outcome has to be
# looked up, and could not be asked for then any more. A standby that was not promoted refuses it (25006).
_BEGIN = "BEGIN; SELECT pg_current_xact_id()::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_END_IT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_xid = %s::xid8::xid"
_OUTCOME = "SELECT pg_xact_status(%s::xid8), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

log = structlog.get_logger(__name__)

_CACHE = "cache_size=-16384"
"""KiB of pages that a connection keeps: with SQLite's 2 MiB a create beside 100,000 servers takes half
as long again as beside 1,000, because its indexes do not fit. A small store never fills it."""


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
        self.barrier = barrier
        if self.memory:
            self.engine = sa.create_engine(
                url, module=pysqlite3, poolclass=StaticPool,
                connect_args=_SQLITE,
            )  # fmt: skip
        elif self.sqlite:
            self.engine = sa.create_engine(
                url, module=pysqlite3, pool_size=8,
                connect_args={**_SQLITE, "timeout": 30},
            )  # fmt: skip
        else:
            self.engine = sa.create_engine(url, pool_size=8, max_overflow=8, connect_args=_LIBPQ)
        # PostgreSQL: we say ourselves when a transaction begins, and what only reads needs none: at READ
        # COMMITTED each statement sees what is committed when it begins, in a transaction or out of it.
        self._direct = (
            self.engine if self.sqlite else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        )
        driver = self.engine.dialect.loaded_dbapi
        self.outages: tuple[type[Exception], ...] = (
            sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError,
            driver.OperationalError, driver.InterfaceError,
        )  # fmt: skip
        self.errors: tuple[type[Exception], ...] = (
            *self.outages, sa.exc.DatabaseError, driver.DatabaseError
        )  # fmt: skip
        self.session = secrets.token_hex(8)
        event.listen(self.engine, "connect", self._introduce)
        if self.sqlite:
            event.listen(self.engine, "connect", self._pragmas)
            event.listen(self.engine, "begin", self._begin)
        self._writers = ThreadPoolExecutor(1 if self.sqlite else 8, thread_name_prefix="store-write")
        self._readers = (
            self._writers
            if self.memory
            else ThreadPoolExecutor(4 if self.sqlite else 8, thread_name_prefix="store-read")
        )
        self._queues: weakref.WeakValueDictionary[tuple[int, str], asyncio.Semaphore]
        self._queues = weakref.WeakValueDictionary()
        self._group = Group(self) if self.sqlite and not self.memory else None

    def _introduce(self, dbapi: Any, record: Any) -> None:
        """Whose answers these are. An SQLite file has one owning process, so a copy can only have been put
        back before it started; a PostgreSQL can only have been before it did, which ends connections."""
        if self.sqlite:
            record.info["session"] = self.session
            return
        record.info["session"], record.info["origin"] = _introduction(dbapi)

    def tx(self, conn: sa.Connection) -> Tx:
        """What a store function gets in a transaction of this connection."""
        return Tx(conn, self._wall, read_now)

    def told(self, error: Exception) -> Exception:
        """What one of ``errors`` means: :class:`StoreUnavailable` if the database is to blame, or itself."""
        cause = getattr(error, "orig", error)
        # SQLite has no class of its own for it: not one of the subclasses is what tells damage.
        if self.sqlite and type(cause) is self.engine.dialect.loaded_dbapi.DatabaseError:
            return StoreDamaged(
                f"The store {self.engine.url.database} is damaged ({cause}): put back a copy of it"
            )
        away = isinstance(error, self.outages) or _sqlstate(error) == _READ_ONLY
        return StoreUnavailable(str(cause)) if away else error

    def _pragmas(self, dbapi: Any, _record: Any) -> None:
        pragmas = ["foreign_keys=ON"]
        if not self.memory:
            pragmas += ["journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", _CACHE]
        for pragma in pragmas:
            dbapi.execute(f"PRAGMA {pragma}")

    @staticmethod
    def _begin(conn: sa.Connection) -> None:
        # A deferred BEGIN that reads and then writes fails under load whatever the busy timeout.
        read_only = conn.get_execution_options().get("unstuck_read_only")
        conn.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    def transact(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``tx`` as one transaction in this thread; raises :class:`StoreUnavailable`.

        It is run again after a conflict, and when its connection was lost before the commit. Where it was
        lost in the commit itself, the outcome is looked up: done is done, and never done twice.
        """
        for attempt in range(RETRIES):
            try:
                with self._begun() as (conn, who):
                    answer = tx(self.tx(conn), *args, **kwargs)
                    self.barrier(f"commit.{tx.__name__}")
                    done = self._commit(conn, who)
                if done:
                    self.barrier(f"commit.{tx.__name__}+")
                    return answer
            except self.errors as error:
                if attempt + 1 < RETRIES and self._again(error, attempt):
                    continue
                told = self.told(error)
                if told is error:
                    raise
                raise told from error
        raise StoreUnavailable("the database lost the connection at every try")

    @contextlib.contextmanager
    def _begun(self) -> Iterator[tuple[sa.Connection, Who | None]]:
        """A connection in a transaction, which is rolled back unless it was committed, and its number."""
        conn, who = self._begin_one()
        with conn:
            try:
                yield conn, who
            finally:
                if conn.in_transaction():
                    with contextlib.suppress(*self.errors):  # it is lost already: that is a rollback, too
                        conn.rollback()

    def _begin_one(self) -> tuple[sa.Connection, Who | None]:
        conn = self._direct.connect()
        try:
            return conn, self._begin_on(conn)
        except self.errors as error:
            conn.close()
            if not self._lost(error):
                raise
        # It was lost while it lay in the pool, and nothing has been done with it. Its failing rollback has
        # told SQLAlchemy, which trusts no connection any more that is as old.
        conn = self._direct.connect()
        try:
            return conn, self._begin_on(conn)
        except self.errors:
            conn.close()
            raise

    def _begin_on(self, conn: sa.Connection) -> Who | None:
        conn.begin()
        if self.sqlite:
            return None
        cursor = conn.connection.dbapi_connection.execute(_BEGIN, prepare=False)  # type: ignore[union-attr]
        cursor.nextset()
        xid, line = cursor.fetchone()
        return xid, line

    def _commit(self, conn: sa.Connection, who: Who | None) -> bool:
        """False: it was certainly not committed, because the connection was lost; try again."""
        try:
            conn.commit()
        except self.outages as error:
            if who is None or not self._lost(error):
                raise
            return self._outcome(*who)
        return True

    def _outcome(self, xid: str, line: str) -> bool:
        """Whether a transaction was committed, asked over another connection; raises where nobody knows.

        Another timeline is another history, in which the number may mean another transaction.
        """
        end = time.monotonic() + OUTCOME_PATIENCE
        while time.monotonic() < end:
            # Away still, or the old session has not noticed yet: asked again until the patience is over.
            with contextlib.suppress(*self.errors), self._direct.connect() as conn:
                state, now = conn.exec_driver_sql(_OUTCOME, (xid,)).one()
                if now != line or state is None:
                    break
                if state in ("committed", "aborted"):
                    return bool(state == "committed")
                conn.exec_driver_sql(_END_IT, (xid,))  # our own old session, which has no client any more
            time.sleep(0.1)
        raise StoreUnavailable("the connection was lost in the commit, and its outcome is not known")

    def _again(self, error: Exception, attempt: int) -> bool:
        """Whether the same transaction may be tried once more: conflicts often, a lost connection once."""
        if _sqlstate(error) in _RETRYABLE:
            return True
        return not self.sqlite and attempt == 0 and self._lost(error)

    def _lost(self, error: Exception) -> bool:
        """The connection broke, as opposed to a refusal by a database that is well."""
        if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
            return True
        state = _sqlstate(error)
        if state is None:
            return isinstance(error, self.outages)
        return state.startswith(("08", "57P"))

    def read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``tx`` as one read-only transaction in this thread."""
        for attempt in range(2):
            try:
                with self._direct.connect().execution_options(unstuck_read_only=True) as conn, conn.begin():
                    return tx(self.tx(conn), *args, **kwargs)
            except self.errors as error:
                if self._again(error, attempt):
                    continue
                told = self.told(error)
                if told is error:
                    raise
                raise told from error
        raise AssertionError("unreachable")

    async def run(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """:meth:`transact` on a worker thread; a caller that goes away never interrupts it."""
        if self._group is not None:
            return await _wait_for(self._group.submit(Write(tx, args, kwargs)))
        row = queues_for(tx, args, kwargs)
        if row is None:
            return await _wait_for(self._writers.submit(lambda: self.transact(tx, *args, **kwargs)))
        async with self._turn(row):
            return await _wait_for(self._writers.submit(lambda: self.transact(tx, *args, **kwargs)))

    @contextlib.asynccontextmanager
    async def _turn(self, row: str) -> AsyncIterator[None]:
        """The queue of this process for a parent row. It goes when nobody stands in it."""
        key = id(asyncio.get_running_loop()), row
        queue = self._queues.get(key) or asyncio.Semaphore(AHEAD)
        self._queues[key] = queue
        try:
            async with asyncio.timeout(DEADLINE):
                await queue.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"the database has not answered for {DEADLINE:g} s") from None
        try:
            yield
        finally:
            queue.release()

    async def run_read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """:meth:`read` on a worker thread."""
        return await _wait_for(self._readers.submit(lambda: self.read(tx, *args, **kwargs)))

    def create_all(self) -> None:
        """Create every table (tests and the simulator; production migrates)."""
        from unstuck.store.schema import metadata

        metadata.create_all(self.engine)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._writers.shutdown()
        self._readers.shutdown()
        self.engine.dispose()


def _introduction(dbapi: Any) -> tuple[str, str | None]:
    """(session, origin) of a PostgreSQL. One that does not tell has no origin: agents still notice."""
    import psycopg  # not at the top: a store on SQLite starts without it

    dbapi.autocommit = True
    try:
        started = str(dbapi.execute("SELECT pg_postmaster_start_time()").fetchone()[0])
        try:
            row = dbapi.execute(
                "SELECT (SELECT system_identifier FROM pg_control_system()), "
                "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
            ).fetchone()
        except psycopg.Error as error:
            log.warning("PostgreSQL does not tell its timeline", error=str(error).strip())
            row = None
    finally:
        dbapi.autocommit = False
    origin = None if row is None else f"{row[0]}/{row[1]}"
    return hashlib.sha256(f"{started} {origin}".encode()).hexdigest()[:16], origin


async def _wait_for(work: Future[T]) -> T:
    """The answer, or :class:`StoreUnavailable` after the deadline: a frozen database holds up no caller.

    What has not begun by then never will; what has begun may still be committed, as with any lost answer.
    """
    answer = asyncio.wrap_future(work)
    answer.add_done_callback(
        lambda ended: ended.cancelled() or ended.exception()
    )  # nobody may be there any more
    try:
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(answer)
    except TimeoutError:
        if not work.cancel() and work.done():
            return work.result()
        raise StoreUnavailable(f"the database has not answered for {DEADLINE:g} s") from None


def _sqlstate(error: Exception) -> str | None:
    state: str | None = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state
