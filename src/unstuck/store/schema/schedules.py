"""What is done about backups by itself: schedules and retention. Their rows are the work items."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

backup_schedules = sa.Table(
    "backup_schedules",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("instance_id", Id, sa.ForeignKey("instances.id"), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("cron", sa.String(255), nullable=False),
    sa.Column("timezone", sa.String(64), nullable=False),
    # What a tick makes: a backup, or a verification of the last one, with the owner's own statement.
    sa.Column("kind", sa.String(16), nullable=False, server_default="backup"),
    sa.Column("query", sa.Text, nullable=False, server_default=""),
    sa.Column("database", sa.String(255), nullable=False, server_default=""),
    # What becomes of a tick that nobody saw: core.backup.schedule.Missed.
    sa.Column("missed", sa.String(16), nullable=False),
    # Every so many-th of its backups is a full one; 1: all.
    sa.Column("full_every", sa.Integer, nullable=False, server_default="1"),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("updated_wall", Seconds, nullable=False),
    # Lease time before which there is no tick.
    sa.Column("starts", Seconds, nullable=False),
    # Wall time of the next tick: wall time is what its user means.
    sa.Column("planned", Seconds),
    # The tick that made a backup last, how many did, were in somebody's way, or were seen by nobody.
    sa.Column("last_run", Seconds),
    sa.Column("made_count", sa.BigInteger, nullable=False),
    sa.Column("skipped_count", sa.BigInteger, nullable=False),
    sa.Column("missed_count", sa.BigInteger, nullable=False),
    # JSON of core.backup.schedule.Outcome, the newest first.
    sa.Column("history", sa.Text, nullable=False),
    # Settled: paused, or its instance is gone. next_look: lease time; it is looked at when this or
    # ``planned`` has come. ``held``: lease time until which a step that failed is not tried again.
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.Column("held", Seconds, nullable=False),
    sa.CheckConstraint(
        "settled OR (next_look IS NOT NULL AND planned IS NOT NULL)", name="unsettled_has_a_next_look"
    ),
    sa.CheckConstraint("settled OR NOT paused", name="paused_is_settled"),
)
sa.Index(
    "ix_backup_schedules_instance",
    backup_schedules.c.instance_id,
    backup_schedules.c.created_wall,
    backup_schedules.c.id,
)
sa.Index(
    "ix_backup_schedules_project",
    backup_schedules.c.project_id,
    backup_schedules.c.created_wall,
    backup_schedules.c.id,
)
for _name, _column in {
    "ix_backup_schedules_planned": backup_schedules.c.planned,
    "ix_backup_schedules_due": backup_schedules.c.next_look,
}.items():
    sa.Index(_name, _column, postgresql_where=sa.text("NOT settled"), sqlite_where=sa.text("settled = 0"))

# How long backups of an instance are kept. It is there from its first automatic backup on.
backup_retention = sa.Table(
    "backup_retention",
    metadata,
    sa.Column("instance_id", Id, sa.ForeignKey("instances.id"), primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    # JSON of core.backup.retention.Policy; NULL: as everybody has it.
    sa.Column("policy", sa.Text),
    # When it was looked at last, why nothing could be done then, and what went: JSON, the newest first.
    sa.Column("looked_wall", Seconds),
    sa.Column("trouble", sa.Text),
    sa.Column("removed", sa.Text, nullable=False),
    # Settled: its instance is gone, and so is everything that it was about. next_look: lease time.
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("settled OR next_look IS NOT NULL", name="unsettled_has_a_next_look"),
)
sa.Index(
    "ix_backup_retention_due",
    backup_retention.c.next_look,
    postgresql_where=sa.text("NOT settled"),
    sqlite_where=sa.text("settled = 0"),
)

# A backup that is verified by being restored into an instance that is thrown away. Its ids are written down
# before there is any: whoever comes next makes the same one, or removes it.
backup_verifications = sa.Table(
    "backup_verifications",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("backup_id", Id, sa.ForeignKey("backups.id"), nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("made_by", sa.String(128), nullable=False),
    sa.Column("query", sa.Text, nullable=False),
    sa.Column("database", sa.String(255), nullable=False),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("deadline", Seconds, nullable=False),
    # The datastore's version that it is restored into, where that is another one: an upgrade is rehearsed.
    sa.Column("version_id", Id),
    # The throw-away instance.
    sa.Column("instance_id", Id, nullable=False, unique=True),
    sa.Column("server_id", Id, nullable=False),
    sa.Column("port_id", Id, nullable=False),
    # Lease time at which it was seen to be usable for the first time.
    sa.Column("restored", Seconds),
    # The question to it, how often it was put, and until when (lease time) the last one is open.
    sa.Column("ask_id", Id),
    sa.Column("asks", sa.Integer, nullable=False),
    sa.Column("ask_until", Seconds),
    # Why it does not go on.
    sa.Column("trouble", sa.Text),
    # JSON of core.backup.verification.Verdict, and when it was written.
    sa.Column("verdict", sa.Text),
    sa.Column("finished_wall", Seconds),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("settled OR next_look IS NOT NULL", name="unsettled_has_a_next_look"),
    sa.CheckConstraint("verdict IS NOT NULL OR NOT settled", name="settled_has_a_verdict"),
)
sa.Index(
    "uq_backup_verifications_live",
    backup_verifications.c.backup_id,
    unique=True,
    postgresql_where=sa.text("verdict IS NULL"),
    sqlite_where=sa.text("verdict IS NULL"),
)
sa.Index(
    "ix_backup_verifications_backup",
    backup_verifications.c.backup_id,
    backup_verifications.c.created_wall,
    backup_verifications.c.id,
)
sa.Index(
    "ix_backup_verifications_due",
    backup_verifications.c.next_look,
    postgresql_where=sa.text("NOT settled"),
    sqlite_where=sa.text("settled = 0"),
)
