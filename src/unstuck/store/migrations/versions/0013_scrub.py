"""stored backups are read again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_WHERE_POSTGRESQL = "ended = 'COMPLETED' AND NOT deleted"
_WHERE_SQLITE = "ended = 'COMPLETED' AND deleted = 0"


def upgrade() -> None:
    with op.batch_alter_table("backups", schema=None) as batch_op:
        batch_op.add_column(sa.Column("scrub", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("scrub_look", sa.Double(), server_default="0", nullable=False))
        batch_op.create_index(
            "ix_backups_scrub",
            ["scrub_look"],
            unique=False,
            postgresql_where=sa.text(_WHERE_POSTGRESQL),
            sqlite_where=sa.text(_WHERE_SQLITE),
        )


def downgrade() -> None:
    with op.batch_alter_table("backups", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_backups_scrub",
            postgresql_where=sa.text(_WHERE_POSTGRESQL),
            sqlite_where=sa.text(_WHERE_SQLITE),
        )
        batch_op.drop_column("scrub_look")
        batch_op.drop_column("scrub")
