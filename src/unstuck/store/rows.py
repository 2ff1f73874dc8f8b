"""Servers as the core sees them, read in one statement, and the one place that writes their next look."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.server.control import (
    FailIt,
    FinishDelete,
    LookAgain,
    Outcome,
    PlaceIt,
    Plan,
    Settled,
    operation_outcome,
    plan_control,
)
from unstuck.core.server.data import (
    Failure,
    Fence,
    HostSeen,
    Observation,
    Operation,
    OperationKind,
    Place,
    Power,
    Server,
)
from unstuck.core.time import Now
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import hosts, operations, placements, servers

_observation = msgspec.json.Decoder(Observation)
_failure = msgspec.json.Decoder(Failure)

_JOINED = (
    sa.select(
        servers.c.id,
        servers.c.created,
        servers.c.power,
        servers.c.intent,
        servers.c.edge,
        servers.c.deleted,
        servers.c.removed,
        servers.c.seen,
        servers.c.seen_at,
        servers.c.disk_id,
        servers.c.launched_wall,
        servers.c.lease_incarnation,
        servers.c.work_deadline,
        servers.c.failure,
        servers.c.settled,
        servers.c.next_look,
        placements.c.host_id,
        placements.c.generation,
        placements.c.epoch,
        placements.c.nonce,
        hosts.c.hostname,
        hosts.c.seen.label("host_seen"),
        hosts.c.incarnation,
        hosts.c.enabled,
        operations.c.id.label("operation_id"),
        operations.c.kind,
        operations.c.edge.label("operation_edge"),
        operations.c.soft,
        operations.c.since,
        operations.c.deadline,
    )
    .select_from(servers)
    .outerjoin(placements, sa.and_(placements.c.server_id == servers.c.id, placements.c.state == "live"))
    .outerjoin(hosts, hosts.c.id == placements.c.host_id)
    .outerjoin(operations, sa.and_(operations.c.resource_id == servers.c.id, operations.c.state == "open"))
)
_ONE = _JOINED.where(servers.c.id == sa.bindparam("server_id"))
_ONE_LOCKED = _ONE.with_for_update(of=servers)


class Loaded(msgspec.Struct, frozen=True):
    """A server and its bookkeeping."""

    server: Server
    settled: bool
    next_look: float | None


def load_server(tx: Tx, server_id: str, *, lock: bool = False) -> Loaded | None:
    """One server, or None; ``lock`` holds its row until the transaction ends."""
    row = tx.execute(_ONE_LOCKED if lock else _ONE, {"server_id": server_id}).first()
    return None if row is None else _loaded(row)


def load_servers(tx: Tx, server_ids: list[str]) -> dict[str, Server]:
    """Several servers by id, for lists."""
    rows = tx.execute(_JOINED.where(servers.c.id.in_(server_ids)))
    return {row.id: _loaded(row).server for row in rows}


def _loaded(row: Any) -> Loaded:
    place = host = operation = None
    if row.host_id is not None:
        place = Place(row.host_id, Fence(row.generation, row.epoch), row.nonce)
        host = HostSeen(row.host_id, row.hostname, row.host_seen, row.incarnation, row.enabled)
    if row.operation_id is not None:
        operation = Operation(
            id=row.operation_id,
            kind=OperationKind(row.kind),
            edge=row.operation_edge,
            soft=row.soft,
            since=row.since,
            deadline=row.deadline,
        )
    server = Server(
        id=row.id,
        created=row.created,
        power=Power(row.power),
        intent=row.intent,
        edge=row.edge,
        deleted=row.deleted,
        removed=row.removed,
        place=place,
        host=host,
        seen=None if row.seen is None else _observation.decode(row.seen),
        seen_at=row.seen_at,
        disk_recorded=row.disk_id is not None,
        launched_wall=row.launched_wall,
        lease_incarnation=row.lease_incarnation,
        work_deadline=row.work_deadline,
        operation=operation,
        failure=None if row.failure is None else _failure.decode(row.failure),
    )
    return Loaded(server, row.settled, row.next_look)


def lock_host(tx: Tx, host_id: str) -> None:
    """Take the host's row, in a statement of its own, before deciding on rows that hang from it.

    On PostgreSQL at READ COMMITTED a condition inside the deciding UPDATE is not enough: two placers
    of 3 on a host of 4 both succeeded when it was measured.
    """
    tx.execute(sa.update(hosts).where(hosts.c.id == host_id).values(version=hosts.c.version + 1))


def bump_world(tx: Tx, host_id: str, server_id: str) -> None:
    """Say that the host has to hear of this server; the caller holds the host's row."""
    version = sa.select(hosts.c.version).where(hosts.c.id == host_id).scalar_subquery()
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(world_version=version))


def next_look(plan: Plan, now: Now) -> tuple[bool, float | None]:
    """(settled, next look) of a plan: law 2, in one place."""
    match plan:
        case Settled():
            return True, None
        case LookAgain(at, _):
            return False, max(at, now.lease)
        case PlaceIt() | FailIt() | FinishDelete():
            return False, now.lease


def judge(tx: Tx, server_id: str) -> Server:
    """After a change: close the operation if it is over, and write when to look next.

    Every store function that changes a server ends here, so no path can forget either.
    """
    loaded = load_server(tx, server_id, lock=True)
    assert loaded is not None
    server = loaded.server
    if server.operation is not None:
        outcome = operation_outcome(server, server.operation)
        if outcome is not None:
            close_operation(tx, server.operation.id, outcome)
            server = msgspec.structs.replace(server, operation=None)
    settled, look = next_look(plan_control(server, tx.now), tx.now)
    values: dict[str, Any] = {}
    if (settled, look) != (loaded.settled, loaded.next_look):
        values = {"settled": settled, "next_look": look}
    if settled and server.lease_incarnation is not None:
        values |= {"lease_incarnation": None, "work_deadline": None}
    if values:
        tx.execute(sa.update(servers).where(servers.c.id == server_id).values(values))
    return server


def close_operation(tx: Tx, operation_id: str, outcome: Outcome) -> None:
    """End an open operation; an ended one stays as it is (final states are final)."""
    tx.execute(
        sa.update(operations)
        .where(operations.c.id == operation_id, operations.c.state == "open")
        .values(state=outcome.state, reason=outcome.reason, finished_wall=tx.now.wall)
    )
