"""archive silences"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("archives", schema=None) as batch_op:
        batch_op.add_column(sa.Column("known_wall", sa.Double(), nullable=True))

    with op.batch_alter_table("archive_marks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("held", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("archive_marks", schema=None) as batch_op:
        batch_op.drop_column("held")

    with op.batch_alter_table("archives", schema=None) as batch_op:
        batch_op.drop_column("known_wall")
