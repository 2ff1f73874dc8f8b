"""Writes that wait at the same time share one commit (group commit), for SQLite.

A commit waits for the disk, and SQLite commits one after the other: fifty creates at once, with their
placements and reports, waited for 250 of them. Each store function is still a transaction of its own: it
runs behind its own savepoint, one that fails takes back only itself, and nobody gets an answer before the
commit that makes it last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol

import sqlalchemy as sa

from unstuck.store.tx import Tx

MOST: Final = 32
"""Writes in one commit, so that the first does not wait long for the last."""


class Transactions(Protocol):
    """What the group needs of a store."""

    engine: sa.Engine
    errors: tuple[type[Exception], ...]

    def tx(self, conn: sa.Connection, /) -> Tx: ...

    def barrier(self, point: str) -> None: ...

    def told(self, error: Exception) -> Exception: ...

    def transact(self, tx: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


class Write:
    """A store function that waits for its turn, and for whom."""

    __slots__ = ("answer", "args", "error", "future", "kwargs", "tx")

    def __init__(self, tx: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.tx = tx
        self.args = args
        self.kwargs = kwargs
        self.future: Future[Any] = Future()
        self.answer: Any = None
        self.error: Exception | None = None

    def settle(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Group:
    """One thread that writes what has gathered since its last commit."""

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._waiting: deque[Write] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-write")

    def submit(self, write: Write) -> Future[Any]:
        """The answer comes when it is committed, or says that it is not."""
        self._waiting.append(write)
        self._thread.submit(self._next)
        return write.future

    def close(self) -> None:
        """Ends when everything submitted is done."""
        self._thread.shutdown()

    def _next(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST))]
        batch = [write for write in taken if write.future.set_running_or_notify_cancel()]
        if len(batch) > 1 and self._together(batch):
            return
        for write in batch:
            self._alone(write)

    def _together(self, batch: list[Write]) -> bool:
        """False if the database did not take them together: nothing has happened then."""
        ran = False
        try:
            with self._store.engine.begin() as conn:
                for write in batch:
                    self._behind_savepoint(conn, write)
                ran = True
                for write in batch:
                    self._store.barrier(f"commit.{write.tx.__name__}")
            for write in batch:
                self._store.barrier(f"commit.{write.tx.__name__}+")
        except self._store.errors as error:
            if not ran:
                return False
            for write in batch:  # whether it was committed is unknown, so it is not done again
                write.error = self._store.told(error)
        for write in batch:
            write.settle()
        return True

    def _behind_savepoint(self, conn: sa.Connection, write: Write) -> None:
        """Run one; an error of its own takes back what it did, an error of the database takes back all."""
        tx = self._store.tx(conn)
        cursor = tx.cursor()
        cursor.execute("SAVEPOINT one_write")
        write.answer = write.error = None
        try:
            write.answer = write.tx(tx, *write.args, **write.kwargs)
        except self._store.errors:
            raise
        except Exception as error:
            write.error = error
            cursor.execute("ROLLBACK TO one_write")
        cursor.execute("RELEASE one_write")

    def _alone(self, write: Write) -> None:
        try:
            write.answer, write.error = self._store.transact(write.tx, *write.args, **write.kwargs), None
        except Exception as error:
            write.error = error
        write.settle()
