"""The store's clock and its generation."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Seconds, metadata

clock = sa.Table(
    "clock",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("wall", Seconds, nullable=False),
    sa.Column("lease", Seconds, nullable=False),
    sa.Column("gap_sum", Seconds, nullable=False),
    sa.Column("tick", sa.BigInteger, nullable=False),
    sa.Column("sweep_after", Seconds, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("generation_id", sa.String(32), nullable=False),
    # PostgreSQL's system identifier and timeline: another one is another history.
    sa.Column("origin", sa.String(64)),
    # Recovery mode, since when and why: the store was set back.
    sa.Column("recovery", Seconds),
    sa.Column("recovery_wall", Seconds),
    sa.Column("recovery_why", sa.Text),
    # The session in which hosts have to say anew what they hold, and since when (lease time) it lasts.
    sa.Column("session", sa.String(64)),
    sa.Column("session_since", Seconds),
    # The guard on destruction by time: the tick of the last gap, the one that an operator let pass, and
    # how much one pass may destroy.
    sa.Column("gap_tick", sa.BigInteger, nullable=False),
    sa.Column("allowed_gap", sa.BigInteger, nullable=False),
    sa.Column("destroy_limit", sa.Integer, nullable=False),
    sa.CheckConstraint("id = 1", name="one_row"),
    sa.CheckConstraint("(session IS NULL) = (session_since IS NULL)", name="session_has_a_beginning"),
    sa.CheckConstraint("(recovery IS NULL) = (recovery_why IS NULL)", name="recovery_has_a_reason"),
)
