"""Images. No status is stored: an upload has a lease, and what has data is active."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

images = sa.Table(
    "images",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("name", sa.String(255), index=True),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("updated", Seconds, nullable=False),
    sa.Column("visibility", sa.String(16), nullable=False),
    sa.Column("protected", sa.Boolean, nullable=False),
    sa.Column("os_hidden", sa.Boolean, nullable=False),
    sa.Column("disk_format", sa.String(16)),
    sa.Column("container_format", sa.String(16)),
    sa.Column("min_disk", sa.Integer, nullable=False),
    sa.Column("min_ram", sa.Integer, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("properties", sa.Text, nullable=False),
    sa.Column("data_name", sa.String(128), unique=True),
    sa.Column("size", sa.BigInteger),
    sa.Column("virtual_size", sa.BigInteger),
    sa.Column("checksum", sa.String(32)),
    sa.Column("sha512", sa.String(128)),
    sa.Column("deactivated", sa.Boolean, nullable=False, default=False, server_default=sa.text("false")),
    sa.Column("upload_nonce", sa.String(32)),
    sa.Column("upload_since", Seconds),
    sa.Column("upload_until", Seconds, index=True),
    # The server of whose disk it is made, or was.
    sa.Column("source_server", Id),
    # A deleted image keeps its row, so that its id is never used again and its file is known as garbage.
    sa.Column("deleted_wall", Seconds),
    sa.Index(
        "ix_images_live_project", "project_id",
        sqlite_where=sa.text("deleted_wall IS NULL"), postgresql_where=sa.text("deleted_wall IS NULL"),
    ),
    sa.CheckConstraint("visibility IN ('public', 'community', 'shared', 'private')", name="visibility"),
    sa.CheckConstraint("min_disk >= 0 AND min_ram >= 0", name="minimums"),
    # An upload has an owner and an end; there is no row that says saving for ever.
    sa.CheckConstraint(
        "(upload_nonce IS NULL) = (upload_until IS NULL) AND (upload_nonce IS NULL) = (upload_since IS NULL)",
        name="upload_has_end",
    ),
    sa.CheckConstraint("data_name IS NULL OR upload_nonce IS NULL", name="data_only_once"),
    sa.CheckConstraint("data_name IS NOT NULL OR NOT deactivated", name="deactivated_has_data"),
    sa.CheckConstraint(
        "(data_name IS NULL) = (size IS NULL) AND (data_name IS NULL) = (sha512 IS NULL)"
        " AND (data_name IS NULL) = (checksum IS NULL) AND (data_name IS NULL) = (virtual_size IS NULL)",
        name="data_complete",
    ),
    sa.CheckConstraint("data_name IS NULL OR disk_format IS NOT NULL", name="data_has_format"),
    sa.CheckConstraint(
        "deleted_wall IS NULL OR (data_name IS NULL AND upload_nonce IS NULL AND NOT protected)",
        name="deleted_is_final",
    ),
)  # fmt: skip

# Whom a shared image is shared with. Their rows go with the image; its own row stays when it is deleted.
image_members = sa.Table(
    "image_members",
    metadata,
    sa.Column("image_id", Id, sa.ForeignKey("images.id"), primary_key=True),
    sa.Column("member_id", Id, primary_key=True, index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created", Seconds, nullable=False),
    sa.Column("updated", Seconds, nullable=False),
    sa.CheckConstraint("status IN ('pending', 'accepted', 'rejected')", name="status"),
)
