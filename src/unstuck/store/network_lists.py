"""Networks, subnets and ports as users see them."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.store.engine import Tx
from unstuck.store.schema.compute import hosts, placements, servers
from unstuck.store.schema.network import networks, ports, subnets


class NetworkRow(msgspec.Struct, frozen=True):
    id: str
    name: str
    project_id: str
    shared: bool
    mtu: int
    created_wall: float
    subnets: tuple[str, ...]


class SubnetRow(msgspec.Struct, frozen=True):
    id: str
    network_id: str
    name: str
    project_id: str
    cidr: str
    gateway: str | None
    first: str
    last: str
    created_wall: float


class PortRow(msgspec.Struct, frozen=True):
    """``launched``: its guest has run, so the port has been made; ``host`` is where it is."""

    id: str
    network_id: str
    subnet_id: str
    project_id: str
    server_id: str
    mac: str
    address: str
    created_wall: float
    host: str | None
    launched: bool


def list_networks(tx: Tx, project_id: str | None) -> list[NetworkRow]:
    """The networks that a project may use: shared ones and its own (``None``: all)."""
    found: dict[str, list[str]] = {}
    for row in tx.execute(sa.select(subnets.c.id, subnets.c.network_id).order_by(subnets.c.id)):
        found.setdefault(row.network_id, []).append(row.id)
    query = sa.select(networks).order_by(networks.c.created_wall, networks.c.id)
    if project_id is not None:
        query = query.where(sa.or_(networks.c.shared, networks.c.project_id == project_id))
    return [
        NetworkRow(
            row.id, row.name, row.project_id, row.shared, row.mtu, row.created_wall,
            tuple(found.get(row.id, ())),
        )
        for row in tx.execute(query)
    ]  # fmt: skip


def list_subnets(tx: Tx, project_id: str | None) -> list[SubnetRow]:
    """The subnets of the networks that a project may use."""
    query = (
        sa.select(*(subnets.c[name] for name in SubnetRow.__struct_fields__))
        .join(networks, networks.c.id == subnets.c.network_id)
        .order_by(subnets.c.created_wall, subnets.c.id)
    )
    if project_id is not None:
        query = query.where(sa.or_(networks.c.shared, networks.c.project_id == project_id))
    return [SubnetRow(**row._mapping) for row in tx.execute(query)]


def list_ports(
    tx: Tx,
    project_id: str | None,
    *,
    server_ids: list[str] | None = None,
    port_id: str | None = None,
) -> list[PortRow]:
    """A project's ports (``None``: all), narrowed down to some servers' or to one."""
    query = (
        sa.select(
            ports.c.id, ports.c.network_id, ports.c.subnet_id, ports.c.project_id, ports.c.server_id,
            ports.c.mac, ports.c.address, ports.c.created_wall, hosts.c.hostname.label("host"),
            servers.c.launched_wall.is_not(None).label("launched"),
        )
        .join(servers, servers.c.id == ports.c.server_id)
        .outerjoin(placements, sa.and_(placements.c.server_id == servers.c.id, placements.c.state == "live"))
        .outerjoin(hosts, hosts.c.id == placements.c.host_id)
        .order_by(ports.c.created_wall, ports.c.id)
    )  # fmt: skip
    if project_id is not None:
        query = query.where(ports.c.project_id == project_id)
    if server_ids is not None:
        query = query.where(ports.c.server_id.in_(server_ids))
    if port_id is not None:
        query = query.where(ports.c.id == port_id)
    return [PortRow(**row._mapping) for row in tx.execute(query)]
