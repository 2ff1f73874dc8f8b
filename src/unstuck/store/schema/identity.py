"""Projects, users, roles, who has which role where, application credentials, and what signs tokens."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

identity_state = sa.Table(
    "identity_state",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("token_key", sa.LargeBinary(32), nullable=False),
    # Rises with every change that may invalidate a token, so that processes may cache verified tokens.
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.CheckConstraint("id = 1", name="one_row"),
    sa.CheckConstraint("length(token_key) = 32", name="key_length"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, unique=True),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("extra", sa.Text, nullable=False),
    sa.CheckConstraint("name <> ''", name="name_given"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("password_hash", sa.Text),
    sa.Column("enabled", sa.Boolean, nullable=False),
    # A token names the epoch it was made in; a new password or a disabled user ends all tokens before.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("default_project_id", Id),
    sa.Column("extra", sa.Text, nullable=False),
    sa.CheckConstraint("name <> ''", name="name_given"),
)

roles = sa.Table(
    "roles",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("description", sa.Text),
    sa.CheckConstraint("name <> ''", name="name_given"),
)

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("description", sa.Text, nullable=False),
    sa.CheckConstraint("name <> ''", name="name_given"),
)

group_members = sa.Table(
    "group_members",
    metadata,
    sa.Column("group_id", Id, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("user_id", Id, sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True),
)

group_role_assignments = sa.Table(
    "group_role_assignments",
    metadata,
    sa.Column("group_id", Id, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "project_id", Id, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True, index=True
    ),
    sa.Column("role_id", Id, sa.ForeignKey("roles.id", ondelete="CASCADE"), primary_key=True),
)

role_assignments = sa.Table(
    "role_assignments",
    metadata,
    sa.Column("user_id", Id, sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "project_id", Id, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True, index=True
    ),
    sa.Column("role_id", Id, sa.ForeignKey("roles.id", ondelete="CASCADE"), primary_key=True),
)

app_credentials = sa.Table(
    "app_credentials",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", Id, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    sa.Column("project_id", Id, sa.ForeignKey("projects.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("secret_hash", sa.Text, nullable=False),
    sa.Column("unrestricted", sa.Boolean, nullable=False),
    sa.Column("expires_at", Seconds),
    sa.Column("role_ids", sa.Text, nullable=False),
    sa.UniqueConstraint("user_id", "name"),
)

token_revocations = sa.Table(
    "token_revocations",
    metadata,
    sa.Column("audit_id", sa.String(64), primary_key=True),
    # The row may go once the token would have expired anyway.
    sa.Column("expires_at", Seconds, nullable=False, index=True),
)
