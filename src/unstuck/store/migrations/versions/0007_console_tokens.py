"""console tokens"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "console_tokens",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("server_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_console_tokens")),
    )
    op.create_index("ix_console_tokens_server", "console_tokens", ["server_id"])
    op.create_index("ix_console_tokens_deadline", "console_tokens", ["deadline"])


def downgrade() -> None:
    op.drop_table("console_tokens")
