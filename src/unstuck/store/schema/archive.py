"""The archive of instances' logs: its generations, the ledger of their pieces, and the marks of time in them.

Positions sort as text. The CHECKs are law 2: what is not over has a next look.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

archives = sa.Table(
    "archives",
    metadata,
    # The instance's id and the number of the archive generation.
    sa.Column("id", Id, primary_key=True),
    sa.Column("instance_id", Id, nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    # Names the instance's data.
    sa.Column("generation", sa.String(64), nullable=False),
    # Empty until the control loop has made its key and said where it goes.
    sa.Column("prefix", sa.String(255), nullable=False),
    sa.Column("location", sa.String(255), nullable=False),
    sa.Column("recipient", sa.String(128), nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("recipients", sa.Text, nullable=False),
    sa.Column("digest_key", sa.String(64), nullable=False),
    # Seconds after which a part of the log that is not full is kept all the same.
    sa.Column("timeout", sa.Integer, nullable=False),
    sa.Column("opened_wall", Seconds, nullable=False),
    # The log that is there without a gap.
    sa.Column("timeline", sa.BigInteger, nullable=False),
    sa.Column("start", sa.String(64), nullable=False),
    sa.Column("stop", sa.String(64), nullable=False),
    sa.Column("closed", sa.String(16)),
    sa.Column("closed_wall", Seconds),
    # Up to when the newest mark was known to hold when its host's agent was replaced.
    sa.Column("known_wall", Seconds),
    # Automatic bases that were asked for since one was complete, and when the next one is due.
    sa.Column("bases", sa.Integer, nullable=False),
    sa.Column("base_after", Seconds, nullable=False),
    # Why what is not needed could not be removed, when that was tried last.
    sa.Column("trouble", sa.Text),
    sa.Column("removed", sa.Boolean, nullable=False),
    sa.Column("owner", sa.String(64)),
    sa.Column("lease_until", Seconds),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("removed OR next_look IS NOT NULL", name="what_is_there_has_a_next_look"),
    sa.CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name="owner_has_a_lease"),
    sa.CheckConstraint("(closed IS NULL) = (closed_wall IS NULL)", name="closed_since"),
    sa.UniqueConstraint("instance_id", "number", name="uq_archives_number"),
)
sa.Index(
    "uq_archives_open",
    archives.c.instance_id,
    unique=True,
    postgresql_where=sa.text("closed IS NULL AND NOT removed"),
    sqlite_where=sa.text("closed IS NULL AND removed = 0"),
)
sa.Index(
    "ix_archives_due",
    archives.c.next_look,
    postgresql_where=sa.text("NOT removed"),
    sqlite_where=sa.text("removed = 0"),
)

# Each piece of a log once: whoever comes with other data under its name has another history.
archive_pieces = sa.Table(
    "archive_pieces",
    metadata,
    sa.Column("archive_id", Id, sa.ForeignKey("archives.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("timeline", sa.BigInteger, nullable=False),
    # Where it begins and where the next one does; empty for what has no place in the log.
    sa.Column("start", sa.String(64), nullable=False),
    sa.Column("stop", sa.String(64), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    # The try that goes on, whose name was written down before anything was made under it (law 3).
    sa.Column("trying", sa.String(64)),
    # The one that was completed: its folder, its pieces (JSON), when.
    sa.Column("tag", sa.String(64)),
    sa.Column("chunks", sa.Text),
    sa.Column("kept_wall", Seconds),
    # It is not counted any more, and its objects go.
    sa.Column("dropped", sa.Boolean, nullable=False),
    sa.CheckConstraint("(tag IS NULL) = (kept_wall IS NULL)", name="kept_since"),
)
sa.Index(
    "ix_archive_pieces_place", archive_pieces.c.archive_id, archive_pieces.c.timeline, archive_pieces.c.start
)

# When something was so, by the store's clock.
archive_marks = sa.Table(
    "archive_marks",
    metadata,
    sa.Column("archive_id", Id, sa.ForeignKey("archives.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("wall", Seconds, primary_key=True),
    sa.Column("timeline", sa.BigInteger, nullable=False),
    sa.Column("position", sa.String(64), nullable=False),
    # Up to when nothing else can have happened, where that is long before the next mark.
    sa.Column("held", Seconds),
)
