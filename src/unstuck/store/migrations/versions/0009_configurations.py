"""configurations"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "configurations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("datastore_version_id", sa.String(length=64), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("created_wall", sa.Double(), nullable=False),
        sa.Column("updated_wall", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["datastore_version_id"],
            ["datastore_versions.id"],
            name=op.f("fk_configurations_datastore_version_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_configurations")),
    )
    op.create_index("ix_configurations_project", "configurations", ["project_id", "id"])
    op.add_column("instances", sa.Column("configuration_id", sa.String(length=64), nullable=True))
    op.create_index(
        "ix_instances_configuration", "instances", ["configuration_id"],
        postgresql_where=sa.text("configuration_id IS NOT NULL"),
        sqlite_where=sa.text("configuration_id IS NOT NULL"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("ix_instances_configuration", "instances")
    op.drop_column("instances", "configuration_id")
    op.drop_index("ix_configurations_project", "configurations")
    op.drop_table("configurations")
