"""Networks, subnets and ports. An address is taken by the row that holds it, and by nothing else."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.store.schema.base import Id, Seconds, metadata

networks = sa.Table(
    "networks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("mtu", sa.Integer, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    # Raised by every transaction that takes an address, in a statement of its own.
    sa.Column("version", sa.BigInteger, nullable=False),
)

subnets = sa.Table(
    "subnets",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("network_id", Id, sa.ForeignKey("networks.id"), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("cidr", sa.String(64), nullable=False),
    sa.Column("gateway", sa.String(64)),
    sa.Column("first", sa.String(64), nullable=False),
    sa.Column("last", sa.String(64), nullable=False),
    # Where the search for a free address begins: only that, an address is free because no port has it.
    sa.Column("cursor", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("created_wall", Seconds, nullable=False),
)

ports = sa.Table(
    "ports",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("network_id", Id, sa.ForeignKey("networks.id"), nullable=False),
    sa.Column("subnet_id", Id, sa.ForeignKey("subnets.id"), nullable=False),
    sa.Column("project_id", Id, nullable=False),
    sa.Column("server_id", Id, sa.ForeignKey("servers.id"), nullable=False),
    sa.Column("mac", sa.String(32), nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    # The address as a number, in which the next free one is found without reading all.
    sa.Column("number", sa.BigInteger, nullable=False),
    # Its user named this very address, so no other one will do.
    sa.Column("asked", sa.Boolean, nullable=False),
    sa.Column("created_wall", Seconds, nullable=False),
    sa.UniqueConstraint("network_id", "address"),
    sa.UniqueConstraint("network_id", "number"),
    sa.UniqueConstraint("network_id", "mac"),
)
sa.Index("ix_ports_server", ports.c.server_id)
