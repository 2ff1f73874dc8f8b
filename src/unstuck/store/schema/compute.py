"""Hosts, servers, placements, operations and what the compute API keeps beside them.

The CHECKs are law 2 in the schema's words: no unsettled row without a next look, no running work
without owner and deadline, no open operation without a deadline.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

hosts = sa.Table(
    "hosts",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("secret_hash", sa.String(64), nullable=False),
    sa.Column("machine_id", sa.String(64), nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("disabled_reason", sa.String(255)),
    # By an operator's explicit act: declared lost, then struck off. The row of one that was struck off
    # stays, because tombstones hang from it, and it may join again.
    sa.Column("forced_down", sa.Boolean, nullable=False),
    sa.Column("struck_wall", Seconds),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("ram_mb", sa.Integer, nullable=False),
    sa.Column("disk_gb", sa.Integer, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    # Why servers there cannot have networks; empty where they can. A column, because placement asks it.
    sa.Column("no_networks", sa.Text, nullable=False),
    sa.Column("unknown", sa.Text, nullable=False),
    # Raised by every transaction that decides on this host's rows, in a statement of its own.
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("start_token", sa.String(64)),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("seen", Seconds, nullable=False),
    sa.Column("seen_wall", Seconds, nullable=False),
    # The generation and the session in which it last said what it holds; by how much its wall clock differs.
    sa.Column("told", sa.BigInteger, nullable=False),
    sa.Column("told_session", sa.String(64)),
    sa.Column("skew", Seconds),
)

join_tokens = sa.Table(
    "join_tokens",
    metadata,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("expires_wall", Seconds, nullable=False),
    # The one host that it let in.
    sa.Column("host_id", Id),
)

servers = sa.Table(
    "servers",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("user_id", Id, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("description", sa.String(255)),
    sa.Column("image_id", Id, nullable=False),
    sa.Column("flavor_id", sa.String(255), nullable=False),
    sa.Column("flavor", sa.Text, nullable=False),
    sa.Column("key_name", sa.String(255)),
    sa.Column("user_data", sa.Text),
    sa.Column("meta", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("requested_zone", sa.String(255)),
    sa.Column("config_drive", sa.Boolean, nullable=False),
    sa.Column("disk_config", sa.String(16), nullable=False),
    sa.Column("reservation_id", sa.String(64), nullable=False),
    sa.Column("launch_index", sa.Integer, nullable=False),
    sa.Column("access_ipv4", sa.String(64), nullable=False),
    sa.Column("access_ipv6", sa.String(64), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.Column("updated_wall", Seconds, nullable=False),
    # Intent: what the user wants.
    sa.Column("power", sa.String(16), nullable=False),
    sa.Column("intent", sa.BigInteger, nullable=False),
    sa.Column("edge", sa.BigInteger, nullable=False),
    sa.Column("edge_soft", sa.Boolean, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("deleted_wall", Seconds),
    # Who locked it against members, and why.
    sa.Column("locked_by", sa.String(8)),
    sa.Column("locked_reason", sa.String(255)),
    # An operator's marks: the latest number, since when it waits for a host anew, marked as failed.
    sa.Column("mark", sa.BigInteger, nullable=False),
    sa.Column("waiting", Seconds),
    sa.Column("marked_wall", Seconds),
    # Assignment: the epoch of the latest grant; the grants themselves are placements.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("world_version", sa.BigInteger, nullable=False),
    # Observation: what its host last saw, and the report it came with.
    sa.Column("seen", sa.Text),
    sa.Column("seen_at", Seconds, nullable=False),
    sa.Column("seen_wall", Seconds),
    sa.Column("seen_incarnation", sa.BigInteger, nullable=False),
    sa.Column("seen_sequence", sa.BigInteger, nullable=False),
    sa.Column("disk_id", sa.String(128)),
    # Nonces of disks that a rebuild has the present one replace; none is removed before that is recorded.
    sa.Column("replaced", sa.Text, nullable=False),
    # What it was before a resize that is neither confirmed nor taken back: room for both is kept.
    sa.Column("before", sa.Text),
    # Shelved: with all of its room, or with that of its disk only.
    sa.Column("shelved", sa.String(16)),
    # The image that is to be made of its disk; there is an open operation, with its deadline, as long.
    sa.Column("capture", Id),
    sa.Column("launched_wall", Seconds),
    # Work in progress, its owner and its deadline.
    sa.Column("lease_incarnation", sa.BigInteger),
    sa.Column("work_deadline", Seconds),
    sa.Column("failure", sa.Text),
    # What store and host do not agree on, until an operator settles it.
    sa.Column("disputed", sa.String(16)),
    sa.Column("removed", sa.Boolean, nullable=False),
    sa.Column("removed_wall", Seconds),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("next_look", Seconds),
    sa.CheckConstraint("settled OR next_look IS NOT NULL", name="unsettled_has_next_look"),
    sa.CheckConstraint("(lease_incarnation IS NULL) = (work_deadline IS NULL)", name="work_has_deadline"),
    sa.CheckConstraint("deleted OR NOT removed", name="removed_is_deleted"),
    sa.CheckConstraint("settled OR NOT removed", name="removed_is_settled"),
    sa.CheckConstraint("power IN ('on', 'paused', 'suspended', 'off')", name="power"),
    sa.CheckConstraint("shelved IN ('kept', 'offloaded')", name="shelved"),
    sa.CheckConstraint("shelved IS NULL OR power = 'off'", name="shelved_is_off"),
    sa.CheckConstraint("locked_by IN ('owner', 'admin')", name="locked_by"),
    sa.CheckConstraint("locked_by IS NOT NULL OR locked_reason IS NULL", name="reason_of_a_lock"),
    sa.CheckConstraint("(deleted_wall IS NULL) = (NOT deleted)", name="deleted_since"),
    sa.CheckConstraint("(removed_wall IS NULL) = (NOT removed)", name="removed_since"),
)
# SQLite takes a partial index only for a query that says the same in the same words: there SQLAlchemy writes
# a truth value as a comparison (tests/store/test_plans.py holds them together).
sa.Index("ix_servers_due", servers.c.next_look, postgresql_where=sa.text("NOT settled"),
         sqlite_where=sa.text("settled = 0"))  # fmt: skip
# Counts of what is at rest. Most servers run, so these two stay small and are seldom written.
sa.Index("ix_servers_off", servers.c.id,
         postgresql_where=sa.text("settled AND NOT removed AND failure IS NULL AND power = 'off'"),
         sqlite_where=sa.text("settled = 1 AND removed = 0 AND failure IS NULL AND power = 'off'"),
)  # fmt: skip
sa.Index("ix_servers_failed", servers.c.id,
         postgresql_where=sa.text("settled AND NOT removed AND failure IS NOT NULL"),
         sqlite_where=sa.text("settled = 1 AND removed = 0 AND failure IS NOT NULL"))  # fmt: skip
sa.Index("ix_servers_project", servers.c.project_id, servers.c.removed, servers.c.created_wall, servers.c.id)

placements = sa.Table(
    "placements",
    metadata,
    sa.Column("server_id", Id, sa.ForeignKey("servers.id"), primary_key=True),
    sa.Column("generation", sa.BigInteger, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True),
    sa.Column("host_id", Id, sa.ForeignKey("hosts.id"), nullable=False),
    sa.Column("nonce", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("ram_mb", sa.Integer, nullable=False),
    sa.Column("disk_gb", sa.Integer, nullable=False),
    sa.Column("granted", Seconds, nullable=False),
    sa.CheckConstraint("state IN ('live', 'tombstone')", name="state"),
)
sa.Index("ix_placements_host", placements.c.host_id)
sa.Index("ix_placements_tombstone", placements.c.granted,
         postgresql_where=sa.text("state = 'tombstone'"),
         sqlite_where=sa.text("state = 'tombstone'"))  # fmt: skip
sa.Index("uq_placements_live", placements.c.server_id, unique=True,
         postgresql_where=sa.text("state = 'live'"), sqlite_where=sa.text("state = 'live'"))  # fmt: skip

operations = sa.Table(
    "operations",
    metadata,
    # Server, kind and request: 40 + 16 + 40 characters and what is between them.
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("resource_kind", sa.String(16), nullable=False),
    sa.Column("resource_id", Id, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("edge", sa.BigInteger, nullable=False),
    sa.Column("soft", sa.Boolean, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("user_id", Id, nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("host", sa.String(255)),
    sa.Column("since", Seconds, nullable=False),
    sa.Column("started_wall", Seconds, nullable=False),
    sa.Column("finished_wall", Seconds),
    sa.Column("deadline", Seconds),
    sa.CheckConstraint("state IN ('open', 'done', 'superseded', 'failed')", name="state"),
    sa.CheckConstraint("(state = 'open') = (finished_wall IS NULL)", name="open_or_finished"),
    sa.CheckConstraint("state <> 'open' OR deadline IS NOT NULL", name="open_has_deadline"),
)
sa.Index("ix_operations_resource", operations.c.resource_id, operations.c.started_wall)
sa.Index("uq_operations_open", operations.c.resource_id, unique=True,
         postgresql_where=sa.text("state = 'open'"), sqlite_where=sa.text("state = 'open'"))  # fmt: skip

# As literals, so that the planner sees that the partial indexes hold what is asked for.
OPEN = operations.c.state == sa.literal_column("'open'")
TOMBSTONE = placements.c.state == sa.literal_column("'tombstone'")

asks = sa.Table(
    "asks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("host_id", Id, sa.ForeignKey("hosts.id"), nullable=False),
    sa.Column("server_id", Id, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("argument", sa.Text, nullable=False),
    sa.Column("answer", sa.Text),
    sa.Column("since", Seconds, nullable=False),
    sa.Column("deadline", Seconds, nullable=False),
)
sa.Index("ix_asks_host", asks.c.host_id)
sa.Index("ix_asks_deadline", asks.c.deadline)

# What opens a server's console, once: the grant that it is for, and who asked for it.
console_tokens = sa.Table(
    "console_tokens",
    metadata,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("server_id", Id, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("user_id", Id, nullable=False),
    sa.Column("deadline", Seconds, nullable=False),
)
sa.Index("ix_console_tokens_server", console_tokens.c.server_id)
sa.Index("ix_console_tokens_deadline", console_tokens.c.deadline)

flavors = sa.Table(
    "flavors",
    metadata,
    sa.Column("id", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("ram_mb", sa.Integer, nullable=False),
    sa.Column("disk_gb", sa.Integer, nullable=False),
    sa.Column("ephemeral_gb", sa.Integer, nullable=False),
    sa.Column("swap_mb", sa.Integer, nullable=False),
    sa.Column("rxtx_factor", Seconds, nullable=False),
    sa.Column("is_public", sa.Boolean, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("extra_specs", sa.Text, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
)

flavor_access = sa.Table(
    "flavor_access",
    metadata,
    sa.Column("flavor_id", sa.String(255), sa.ForeignKey("flavors.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("project_id", Id, primary_key=True),
)

keypairs = sa.Table(
    "keypairs",
    metadata,
    sa.Column("user_id", Id, primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("type", sa.String(16), nullable=False),
    sa.Column("public_key", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
)

# Only what differs from the built-in limits is written down.
quotas = sa.Table(
    "quotas",
    metadata,
    sa.Column("project_id", Id, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("resource", sa.String(64), primary_key=True),
    sa.Column("hard_limit", sa.Integer, nullable=False),
    sa.CheckConstraint("hard_limit >= -1", name="limit"),
)

quota_defaults = sa.Table(
    "quota_defaults",
    metadata,
    sa.Column("resource", sa.String(64), primary_key=True),
    sa.Column("hard_limit", sa.Integer, nullable=False),
    sa.CheckConstraint("hard_limit >= -1", name="limit"),
)
