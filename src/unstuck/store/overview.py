"""The cloud as a whole: what is not settled, and what hosts should have."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.time import Now
from unstuck.store.clock import since_tick
from unstuck.store.engine import Tx
from unstuck.store.figures import OPENED, UNSETTLED_SINCE, moving
from unstuck.store.host_lists import HostRow, list_hosts
from unstuck.store.schema.compute import OPEN, TOMBSTONE, hosts, operations, placements, servers
from unstuck.store.schema.database import instances
from unstuck.store.schema.network import ports


class Unsettled(msgspec.Struct, frozen=True):
    """Rows of one kind that are not settled. Ages in seconds of lease time; ``overdue``: their next look
    is past."""

    count: int
    overdue: int
    oldest_seconds: float | None
    oldest_id: str | None


class Overview(msgspec.Struct, frozen=True):
    unsettled: dict[str, Unsettled]
    tombstones: int
    hosts: tuple[HostRow, ...]
    now: Now
    clock_age: float


def overview(tx: Tx) -> Overview:
    """Counts of what is on its way, and every host's last word."""
    now = tx.now
    found = {
        "server": _unsettled(tx, now, servers, sa.not_(servers.c.settled), servers.c.next_look),
        "instance": _unsettled(tx, now, instances, moving(sa.literal(now.wall)), instances.c.next_look),
        "operation": _unsettled(tx, now, operations, OPEN, operations.c.deadline),
    }
    of_members = placements.join(hosts, hosts.c.id == placements.c.host_id)
    tombstones = tx.execute(
        sa.select(sa.func.count()).select_from(of_members).where(TOMBSTONE, hosts.c.struck_wall.is_(None))
    ).scalar_one()
    return Overview(found, tombstones, list_hosts(tx).rows, now, since_tick(tx))


def tombstone(tx: Tx, server_id: str) -> str | None:
    """The name of the host that still has to be seen without a deleted server; None where none has."""
    query = (
        sa.select(hosts.c.hostname)
        .join(placements, placements.c.host_id == hosts.c.id)
        .where(placements.c.server_id == server_id, TOMBSTONE)
        .order_by(placements.c.granted.desc())
    )
    name: str | None = tx.execute(query).scalars().first()
    return name


def _unsettled(
    tx: Tx, now: Now, table: sa.Table, waiting: sa.ColumnElement[bool], due: sa.ColumnElement[float]
) -> Unsettled:
    """A server is unsettled since the request that is still open, or else since what was last seen."""
    if table is servers:
        opened = sa.and_(operations.c.resource_id == servers.c.id, OPEN)
        since = sa.func.coalesce(operations.c.since, servers.c.seen_at)
        source: sa.FromClause = servers.outerjoin(operations, opened)
    elif table is instances:
        since, source = UNSETTLED_SINCE, instances.outerjoin(operations, OPENED)
    else:
        since, source = sa.func.coalesce(operations.c.since, 0.0), table
    query = sa.select(table.c.id, since.label("since"), due.label("due")).select_from(source).where(waiting)
    oldest = tx.execute(query.order_by(since, table.c.id).limit(1)).first()
    count = tx.execute(sa.select(sa.func.count()).select_from(table).where(waiting)).scalar_one()
    late = tx.execute(
        sa.select(sa.func.count()).select_from(table).where(waiting, due < now.lease)
    ).scalar_one()
    if oldest is None:
        return Unsettled(count, late, None, None)
    return Unsettled(count, late, max(now.lease - oldest.since, 0.0), oldest.id)


class ExpectedPort(msgspec.Struct, frozen=True):
    id: str
    network_id: str
    mac: str
    address: str


class Expected(msgspec.Struct, frozen=True):
    """A placement: what a host should have of one server."""

    server_id: str
    name: str
    project_id: str
    generation: int
    epoch: int
    nonce: str
    state: str
    deleted: bool
    power: str
    disk_id: str | None
    ports: tuple[ExpectedPort, ...]


class Inventory(msgspec.Struct, frozen=True):
    """All placements by host id."""

    hosts: tuple[HostRow, ...]
    placements: dict[str, list[Expected]]
    now: Now


def inventory(tx: Tx) -> Inventory:
    """Everything that hosts should have: three statements however much it is."""
    by_server: dict[str, list[ExpectedPort]] = {}
    for row in tx.execute(
        sa.select(ports.c.server_id, ports.c.id, ports.c.network_id, ports.c.mac, ports.c.address)
    ):
        port = ExpectedPort(row.id, row.network_id, row.mac, row.address)
        by_server.setdefault(row.server_id, []).append(port)
    found: dict[str, list[Expected]] = {}
    query = (
        sa.select(
            placements.c.host_id, placements.c.server_id, placements.c.generation, placements.c.epoch,
            placements.c.nonce, placements.c.state, servers.c.name, servers.c.project_id,
            servers.c.deleted, servers.c.power, servers.c.disk_id,
        )
        .join(servers, servers.c.id == placements.c.server_id)
        .order_by(placements.c.host_id, placements.c.server_id)
    )  # fmt: skip
    for row in tx.execute(query):
        values = {key: row._mapping[key] for key in Expected.__struct_fields__ if key != "ports"}
        expected = Expected(**values, ports=tuple(by_server.get(row.server_id, ())))
        found.setdefault(row.host_id, []).append(expected)
    return Inventory(list_hosts(tx).rows, found, tx.now)
