"""upgrades are rehearsed by a verification into another version"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("backup_verifications", schema=None) as batch_op:
        batch_op.add_column(sa.Column("version_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("backup_verifications", schema=None) as batch_op:
        batch_op.drop_column("version_id")
