"""incremental backups: which data a backup is of, and who needs it as a parent"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("backups") as batch:
        batch.add_column(sa.Column("generation", sa.String(length=64), nullable=False, server_default=""))
    op.create_index(
        "ix_backups_parent",
        "backups",
        ["parent_id"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_backups_parent", "backups")
    with op.batch_alter_table("backups") as batch:
        batch.drop_column("generation")
