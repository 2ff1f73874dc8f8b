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
    sa.CheckConstraint("id = 1", name="one_row"),
)
