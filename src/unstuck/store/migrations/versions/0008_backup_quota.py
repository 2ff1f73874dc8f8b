"""backups counted from an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_backups_quota",
        "backups",
        ["project_id", "made_by"],
        postgresql_where=sa.text("NOT deleted"),
        sqlite_where=sa.text("deleted = 0"),
    )


def downgrade() -> None:
    op.drop_index("ix_backups_quota", table_name="backups")
