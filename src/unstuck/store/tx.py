"""What a store function gets: one transaction, and one reading of the clock in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from unstuck.core.time import Now

F = TypeVar("F", bound=Callable[..., Any])


def in_turn(row: Callable[..., str]) -> Callable[[F], F]:
    """Says of a store function which parent row its transactions queue for, from its own arguments.

    They wait for their turn in the process, not each in a thread with a connection: fifty creates of one
    project held all threads, and what hosts claimed and reported waited behind them. The row's lock stays
    what decides; this only keeps those that cannot get it yet from being in the way.
    """

    def mark(tx: F) -> F:
        tx.__dict__["queues_for"] = row
        return tx

    return mark


def queues_for(tx: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The row that these transactions queue for; None where there is none."""
    row: Callable[..., str] | None = getattr(tx, "queues_for", None)
    return None if row is None else row(*args, **kwargs)


class Tx:
    """One transaction: a connection, and one reading of the clock."""

    __slots__ = ("_now", "_read_now", "_wall", "conn")

    def __init__(
        self, conn: sa.Connection, wall: Callable[[], float] | None, read_now: Callable[[Tx], Now]
    ) -> None:
        self.conn = conn
        self._read_now = read_now
        self._wall = wall
        self._now: Now | None = None

    @property
    def session(self) -> str:
        """Another one whenever the database may have been put back since: it was opened or started anew."""
        return str(self.conn.info.get("session", ""))

    @property
    def origin(self) -> str | None:
        """PostgreSQL's system identifier and timeline, as far as it tells; None on SQLite."""
        return self.conn.info.get("origin")

    @property
    def postgresql(self) -> bool:
        return self.conn.dialect.name == "postgresql"

    def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[Any]:
        return self.conn.execute(statement, parameters)

    def cursor(self) -> Any:
        """A cursor of the driver, in this very transaction (for :class:`Prepared`)."""
        return self.conn.connection.cursor()

    @property
    def asks_wall(self) -> bool:
        """Whether the time is the database's own."""
        return self._wall is None

    def wall(self) -> float:
        """Seconds since the epoch by the store's clock, not the transaction's start."""
        if self._wall is not None:
            return self._wall()
        return float(self.conn.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    @property
    def now(self) -> Now:
        """Both times, read once per transaction."""
        if self._now is None:
            self._now = self._read_now(self)
        return self._now

    def came_with(self, now: Now) -> None:
        """What was read brought the time along, which is read once."""
        if self._now is None:
            self._now = now
