"""Wall time and lease time, judged in one place (law 9).

Lease time stands still while nobody ticks: a control plane that was paused, killed or had its clock
moved finds on its next tick that a gap happened, and every lease and deadline moves with the gap. So
waking up late fences nobody.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.core import guard
from unstuck.core.time import Now
from unstuck.store.prepared import Prepared, Row
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import hosts
from unstuck.store.tx import Tx

GAP = 5.0
"""Seconds between two ticks from which on the time between them counts as a gap."""

_READ = Prepared(sa.select(clock))
_READ_WITH_WALL = Prepared(
    sa.select(
        clock,
        sa.literal_column("extract(epoch FROM clock_timestamp())::float8", sa.Double).label("asked"),
    )
)
_TICK = Prepared(
    sa.update(clock)
    .where(clock.c.tick == sa.bindparam("seen"))
    .values(
        wall=sa.bindparam("new_wall"),
        lease=sa.bindparam("new_lease"),
        gap_sum=clock.c.gap_sum + sa.bindparam("gap", type_=sa.Double),
        tick=clock.c.tick + 1,
        sweep_after=sa.bindparam("new_sweep"),
        gap_tick=sa.bindparam("new_gap_tick"),
    )
)
_SKEWS = Prepared(
    sa.select(hosts.c.skew).where(hosts.c.skew.is_not(None), hosts.c.seen > sa.bindparam("heard_since"))
)
_ALLOW = Prepared(sa.update(clock).values(allowed_gap=clock.c.gap_tick))
HEARD = 60.0
"""Seconds for which a host's word on the time counts."""


def lease_time(wall: float, tick_wall: float, tick_lease: float) -> float:
    """Lease time at ``wall``, given the last tick: monotone, and never more than a gap ahead of it."""
    return tick_lease + min(max(wall - tick_wall, 0.0), GAP)


def init_clock(tx: Tx, *, generation_id: str) -> None:
    """Write the first clock row, if there is none yet."""
    if tx.execute(sa.select(clock.c.id)).first() is None:
        wall = tx.wall()
        tx.execute(
            sa.insert(clock).values(
                id=1, wall=wall, lease=wall, gap_sum=0.0, tick=0, sweep_after=0.0,
                generation=1, generation_id=generation_id, gap_tick=0, allowed_gap=0,
                destroy_limit=guard.LIMIT,
            )
        )  # fmt: skip


def read_now(tx: Tx) -> Now:
    """Both times, as of this statement."""
    return _read(tx)[1]


def _read(tx: Tx) -> tuple[Row, Now]:
    """The clock's row and both times, in one statement where the time is the database's."""
    row = _READ_WITH_WALL.first(tx) if tx.asks_wall else _READ.first(tx)
    assert row is not None
    wall = row.asked if tx.asks_wall else tx.wall()
    return row, Now(wall=wall, lease=lease_time(wall, row.wall, row.lease))


def tick(tx: Tx, *, lease_seconds: float) -> bool:
    """Advance the clock by one tick; true when overdue rows may be swept now.

    A gap since the last tick (pause, jump, outage) is added to ``gap_sum``, and nothing is swept for
    one lease period after it, so that everybody who was alive can renew first. A second gap within that
    period does not postpone the sweep again: a control plane that restarts all the time still sweeps.
    """
    row, now = _read(tx)
    wall = now.wall
    passed = wall - row.wall
    gap = passed if passed < 0 else max(passed - GAP, 0.0)
    lease = now.lease
    sweep_after = row.sweep_after
    if gap and sweep_after <= row.lease:
        sweep_after = lease + lease_seconds
    _TICK.run(
        tx, seen=row.tick, new_wall=wall, new_lease=lease, gap=gap, new_sweep=sweep_after,
        new_gap_tick=row.tick + 1 if gap else row.gap_tick,
    )  # fmt: skip
    return bool(sweep_after <= lease)


def may_destroy(tx: Tx) -> guard.Allowed | guard.Suspended:
    """Whether what is destroyed because of its age may be destroyed now, and how much of it in one pass."""
    row = _READ.first(tx)
    assert row is not None
    skews = _SKEWS.scalars(tx, heard_since=tx.now.lease - HEARD)
    return guard.destruction(
        guard.Guard(row.tick, row.gap_tick, row.allowed_gap, row.destroy_limit, tuple(skews))
    )


def allow_destruction(tx: Tx) -> None:
    """An operator has looked at the clock's last jump: it holds nothing back any more."""
    _ALLOW.run(tx)


def clock_row(tx: Tx) -> Row:
    """The clock's row as it is now."""
    row, now = _read(tx)
    tx.came_with(now)
    return row


def since_tick(tx: Tx) -> float:
    """Seconds of wall time since any control plane advanced the clock; while it stands, no deadline comes."""
    row = _READ.first(tx)
    assert row is not None
    return float(max(tx.wall() - row.wall, 0.0))


def generation(tx: Tx) -> tuple[int, str, int]:
    """The store's generation (a counter that rises when a copy was put back, a random id) and its tick."""
    row = clock_row(tx)
    return row.generation, row.generation_id, row.tick
