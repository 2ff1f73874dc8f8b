"""Wall time and lease time, judged in one place (law 9).

Lease time stands still while nobody ticks: a control plane that was paused, killed or had its clock
moved finds on its next tick that a gap happened, and every lease and deadline moves with the gap. So
waking up late fences nobody.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.core.time import Now
from unstuck.store.prepared import Prepared
from unstuck.store.schema.clock import clock
from unstuck.store.tx import Tx

GAP = 5.0
"""Seconds between two ticks from which on the time between them counts as a gap."""

_READ = Prepared(sa.select(clock))
_TICK = Prepared(
    sa.update(clock)
    .where(clock.c.tick == sa.bindparam("seen"))
    .values(
        wall=sa.bindparam("new_wall"),
        lease=sa.bindparam("new_lease"),
        gap_sum=clock.c.gap_sum + sa.bindparam("gap", type_=sa.Double),
        tick=clock.c.tick + 1,
        sweep_after=sa.bindparam("new_sweep"),
    )
)


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
                generation=1, generation_id=generation_id,
            )
        )  # fmt: skip


def read_now(tx: Tx) -> Now:
    """Both times, as of this statement."""
    row = _READ.first(tx)
    assert row is not None
    wall = tx.wall()
    return Now(wall=wall, lease=lease_time(wall, row.wall, row.lease))


def tick(tx: Tx, *, lease_seconds: float) -> bool:
    """Advance the clock by one tick; true when overdue rows may be swept now.

    A gap since the last tick (pause, jump, outage) is added to ``gap_sum``, and nothing is swept for
    one lease period after it, so that everybody who was alive can renew first. A second gap within that
    period does not postpone the sweep again: a control plane that restarts all the time still sweeps.
    """
    row = _READ.first(tx)
    assert row is not None
    wall = tx.wall()
    passed = wall - row.wall
    gap = passed if passed < 0 else max(passed - GAP, 0.0)
    lease = lease_time(wall, row.wall, row.lease)
    sweep_after = row.sweep_after
    if gap and sweep_after <= row.lease:
        sweep_after = lease + lease_seconds
    _TICK.run(tx, seen=row.tick, new_wall=wall, new_lease=lease, gap=gap, new_sweep=sweep_after)
    return bool(sweep_after <= lease)


def since_tick(tx: Tx) -> float:
    """Seconds of wall time since any control plane advanced the clock; while it stands, no deadline comes."""
    row = _READ.first(tx)
    assert row is not None
    return float(max(tx.wall() - row.wall, 0.0))


def generation(tx: Tx) -> tuple[int, str, int]:
    """The store's generation (a counter that rises when a copy was put back, a random id) and its tick."""
    row = _READ.first(tx)
    assert row is not None
    return row.generation, row.generation_id, row.tick
