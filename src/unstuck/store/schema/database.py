"""Database instances, their backups, and the keys that backups are sealed with.

The CHECKs are law 2 again: no unsettled row without a next look. One live backup of an instance, by an index
and not by a look before an insert.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

datastores = sa.Table(
    "datastores",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("default_version_id", Id),
)

datastore_versions = sa.Table(
    "datastore_versions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("datastore_id", Id, sa.ForeignKey("datastores.id", ondelete="CASCADE"), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    # What runs it in the guest: postgresql.
    sa.Column("manager", sa.String(32), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    # Images of the service project that its instances boot from (role root, and kernel for machines).
    sa.Column("image_id", Id),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.UniqueConstraint("datastore_id", "name", name="uq_datastore_versions_name"),
)

# Configuration groups: parameters that instances of one datastore's version may have.
configurations = sa.Table(
    "configurations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("datastore_version_id", Id, sa.ForeignKey("datastore_versions.id"), nullable=False),
    # JSON, as its owner wrote them; what they are in the server's file is core.datastores' business.
    sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("updated_wall", Seconds, nullable=False),
)
sa.Index("ix_configurations_project", configurations.c.project_id, configurations.c.id)

instances = sa.Table(
    "instances",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("user_id", Id, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("server_id", Id, nullable=False, unique=True),
    sa.Column("datastore_version_id", Id, sa.ForeignKey("datastore_versions.id"), nullable=False),
    sa.Column("flavor_id", sa.String(255), nullable=False),
    sa.Column("ram_mb", sa.Integer, nullable=False),
    sa.Column("volume_gb", sa.Integer, nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("is_public", sa.Boolean, nullable=False),
    sa.Column("allowed_cidrs", sa.Text, nullable=False),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("updated_wall", Seconds, nullable=False),
    # Intent. origin: JSON of core.instance.want.Origin; generation names the data (law 3).
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("generation", sa.String(64), nullable=False),
    sa.Column("restart", sa.BigInteger, nullable=False),
    # Always empty: parameters are the configuration's. Control planes before this one ask for it.
    sa.Column("settings", sa.Text, nullable=False),
    # Held: a configuration is deleted only under its lock, when no instance has it.
    sa.Column("configuration_id", Id),
    sa.Column("protected", sa.Boolean, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("deleted_wall", Seconds),
    # An accepted restart or resize that has not come about yet: JSON of core.instance.data.Pending.
    sa.Column("pending", sa.Text),
    # The backup that it is made from, held by it as a reader until its data is recorded.
    sa.Column("restores", Id),
    # What its backups' deadlines are where they are not the operator's: JSON of core.backup.limits.Wish.
    sa.Column("backup_limits", sa.Text),
    # Observation: JSON of core.instance.view.DatabaseView, and the report that it came with.
    sa.Column("data_recorded", sa.Boolean, nullable=False),
    sa.Column("seen", sa.Text),
    sa.Column("alive", sa.Boolean, nullable=False),
    sa.Column("seen_at", Seconds, nullable=False),
    sa.Column("seen_wall", Seconds),
    sa.Column("seen_incarnation", sa.BigInteger, nullable=False),
    sa.Column("seen_sequence", sa.BigInteger, nullable=False),
    # The guest agent's present process, and the starts of former ones, which never register again.
    sa.Column("guest", sa.BigInteger, nullable=False),
    sa.Column("guest_start", sa.String(64)),
    sa.Column("guest_former", sa.Text, nullable=False),
    # The hello that it came with, by its host's incarnation and sequence.
    sa.Column("hello_incarnation", sa.BigInteger, nullable=False),
    sa.Column("hello_sequence", sa.BigInteger, nullable=False),
    # When it could be used for the first time.
    sa.Column("launched_wall", Seconds),
    # Bookkeeping. trash_until_wall: until when a deleted one can be brought back; removed: nothing is left.
    sa.Column("failure", sa.Text),
    sa.Column("marked_wall", Seconds),
    sa.Column("trash_until_wall", Seconds),
    sa.Column("removed", sa.Boolean, nullable=False),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("settled OR next_look IS NOT NULL", name="unsettled_has_a_next_look"),
    sa.CheckConstraint("deleted = (deleted_wall IS NOT NULL)", name="deleted_since"),
    sa.CheckConstraint("deleted OR NOT removed", name="only_deleted_ones_are_removed"),
    sa.CheckConstraint("pending IS NULL OR NOT settled", name="pending_is_unsettled"),
)
sa.Index("ix_instances_project", instances.c.project_id, instances.c.created_wall)
# In SQLite's words, as for servers: else it is not taken.
sa.Index(
    "ix_instances_due",
    instances.c.next_look,
    postgresql_where=sa.text("NOT settled"),
    sqlite_where=sa.text("settled = 0"),
)
# What is made of a configuration.
sa.Index("ix_instances_configuration", instances.c.configuration_id,
         postgresql_where=sa.text("configuration_id IS NOT NULL"),
         sqlite_where=sa.text("configuration_id IS NOT NULL"))  # fmt: skip
# Who still reads a backup.
sa.Index("ix_instances_restores", instances.c.restores,
         postgresql_where=sa.text("restores IS NOT NULL"),
         sqlite_where=sa.text("restores IS NOT NULL"))  # fmt: skip

backups = sa.Table(
    "backups",
    metadata,
    sa.Column("id", Id, primary_key=True),
    # Rises with each change: a change is written only over the version that it was decided on (law 5).
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("instance_id", Id, nullable=False),
    sa.Column("instance_name", sa.String(255), nullable=False),
    sa.Column("datastore_version_id", Id, sa.ForeignKey("datastore_versions.id"), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("description", sa.Text),
    # The archive generation whose log goes on from its end.
    sa.Column("archive_id", Id),
    # The backup that has to be restored before it; and what names the data that it is of.
    sa.Column("parent_id", Id),
    sa.Column("generation", sa.String(64), nullable=False, server_default=""),
    # The backup that this one is the retry of.
    sa.Column("retry_of", Id),
    # Who wanted it: "user", or what made it by itself: "schedule:<id>", "base:<why>", "verify:<id>".
    sa.Column("made_by", sa.String(128), nullable=False, server_default="user"),
    # What its last verification by a restore found: JSON of core.backup.verification.Verified; and why it is
    # known to be damaged.
    sa.Column("verified", sa.Text),
    sa.Column("damaged", sa.Text),
    # How far its pieces have been read again: JSON of core.backup.scrub.Scrub; and when to go on.
    sa.Column("scrub", sa.Text),
    sa.Column("scrub_look", Seconds, nullable=False, server_default="0"),
    # Retention leaves it alone, whatever the policy says.
    sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
    # Names the occasion of an automatic one: of one occasion there is one backup, also a deleted one.
    sa.Column("made_key", sa.String(255)),
    # Name of the store of objects that it goes to; where that is, is the operator's setting.
    sa.Column("location", sa.String(255), nullable=False),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("updated_wall", Seconds, nullable=False),
    # All that decides what comes next: JSON of core.backup.data.Backup.
    sa.Column("facts", sa.Text, nullable=False),
    # Copied out of the facts in the same transaction, for indexes and lists.
    sa.Column("ended", sa.String(16)),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("removed", sa.Boolean, nullable=False),
    # The key pair: its public half, and its private half wrapped to ``recipients`` (JSON).
    sa.Column("recipient", sa.String(128), nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("recipients", sa.Text, nullable=False),
    # Of the manifest that made it COMPLETED: its prefix, digest, size of the data, and what it says of it.
    sa.Column("prefix", sa.String(255)),
    sa.Column("digest", sa.String(64)),
    sa.Column("size", sa.BigInteger),
    sa.Column("checked", sa.Text),
    # The controller that verifies or collects, and until when.
    sa.Column("owner", sa.String(64)),
    sa.Column("lease_until", Seconds),
    # Since when it has not been settled, or was settled last.
    sa.Column("since", Seconds, nullable=False),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("settled OR next_look IS NOT NULL", name="unsettled_has_a_next_look"),
    sa.CheckConstraint("deleted OR NOT removed", name="only_deleted_ones_are_removed"),
    sa.CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name="owner_has_a_lease"),
    sa.CheckConstraint("ended IS NOT NULL OR NOT settled", name="live_is_unsettled"),
)
sa.Index(
    "uq_backups_live",
    backups.c.instance_id,
    unique=True,
    postgresql_where=sa.text("ended IS NULL"),
    sqlite_where=sa.text("ended IS NULL"),
)
sa.Index(
    "uq_backups_made_key",
    backups.c.instance_id,
    backups.c.made_key,
    unique=True,
    postgresql_where=sa.text("made_key IS NOT NULL"),
    sqlite_where=sa.text("made_key IS NOT NULL"),
)
# A page of a list is read from one of these, from where the last one ended: whatever lies before it.
for _name, _columns in {
    "ix_backups_project": (backups.c.project_id, backups.c.created_wall, backups.c.id),
    "ix_backups_instance": (backups.c.instance_id, backups.c.created_wall, backups.c.id),
    "ix_backups_all": (backups.c.created_wall, backups.c.id),
}.items():
    sa.Index(_name, *_columns, postgresql_where=sa.text("NOT deleted"), sqlite_where=sa.text("deleted = 0"))
# How many a project has asked for, or has of those that were made by themselves: no more entries are read
# than its quota allows.
sa.Index("ix_backups_quota", backups.c.project_id, backups.c.made_by,
         postgresql_where=sa.text("NOT deleted"), sqlite_where=sa.text("deleted = 0"))  # fmt: skip
# Who needs a backup as a parent.
sa.Index("ix_backups_parent", backups.c.parent_id,
         postgresql_where=sa.text("parent_id IS NOT NULL"),
         sqlite_where=sa.text("parent_id IS NOT NULL"))  # fmt: skip
sa.Index(
    "ix_backups_due",
    backups.c.next_look,
    postgresql_where=sa.text("NOT settled"),
    sqlite_where=sa.text("settled = 0"),
)

# What is to be read again. The condition in SQLite's words: else it is not taken.
sa.Index(
    "ix_backups_scrub",
    backups.c.scrub_look,
    postgresql_where=sa.text("ended = 'COMPLETED' AND NOT deleted"),
    sqlite_where=sa.text("ended = 'COMPLETED' AND deleted = 0"),
)

# Every attempt there ever was, so that its objects can be found and collected.
backup_attempts = sa.Table(
    "backup_attempts",
    metadata,
    sa.Column("backup_id", Id, sa.ForeignKey("backups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("nonce", sa.String(64), nullable=False, unique=True),
    sa.Column("since_wall", Seconds, nullable=False),
    # When it was taken, and by which host.
    sa.Column("taken_wall", Seconds),
    sa.Column("host_id", Id),
    sa.Column("reason", sa.Text),
)

# Where a project's, or one instance's, backups go: a name of a store that an operator has set up.
backup_strategies = sa.Table(
    "backup_strategies",
    metadata,
    sa.Column("project_id", Id, primary_key=True),
    # Empty for the project's own.
    sa.Column("instance_id", sa.String(36), primary_key=True),
    sa.Column("container", sa.String(255), nullable=False),
)

# One key pair per project: backups' keys are wrapped to its public half; its private half is wrapped to the
# cloud's root key, which lies outside the store.
project_keys = sa.Table(
    "project_keys",
    metadata,
    sa.Column("project_id", Id, primary_key=True),
    sa.Column("public", sa.String(128), nullable=False),
    sa.Column("wrapped", sa.Text, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
)

# The public halves of the cloud's keys, so that a control plane with other ones is noticed at its start.
cloud_keys = sa.Table(
    "cloud_keys",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cloud_id", Id, nullable=False),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("signing", sa.String(128), nullable=False),
    sa.Column("recovery", sa.String(128), nullable=False),
    # The id of the folder that is the store of objects called "local".
    sa.Column("folder", Id, nullable=False),
)
