"""Servers as the core sees them, read in one statement, and the one place that writes their next look."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.generation import Dispute
from unstuck.core.server.control import (
    EndCapture,
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
    Flavor,
    Former,
    HostSeen,
    Lock,
    Observation,
    Operation,
    OperationKind,
    Place,
    Power,
    Server,
    Shelf,
    Spec,
)
from unstuck.core.time import Now
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import hosts, operations, placements, servers
from unstuck.store.schema.images import images

_observation = msgspec.json.Decoder(Observation)


@functools.lru_cache(1024)
def _seen(text: str) -> Observation:
    """Servers at rest were mostly seen in the same words; an observation is frozen, so they share it."""
    return _observation.decode(text)


REPLACED = msgspec.json.Decoder(tuple[str, ...])
_failure = msgspec.json.Decoder(Failure)
_former = msgspec.json.Decoder(Former)
_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)

JOINED = (
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
        servers.c.replaced,
        servers.c.before,
        servers.c.shelved,
        servers.c.capture,
        servers.c.launched_wall,
        servers.c.lease_incarnation,
        servers.c.work_deadline,
        servers.c.failure,
        servers.c.disputed,
        servers.c.waiting,
        servers.c.marked_wall,
        servers.c.locked_by,
        servers.c.locked_reason,
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
        hosts.c.forced_down,
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
_ONE = Prepared(JOINED.where(servers.c.id == sa.bindparam("server_id")))
_LOCK_SERVER = Prepared(
    sa.select(servers.c.id).where(servers.c.id == sa.bindparam("server_id")).with_for_update()
)
_LOCK_HOST = Prepared(
    sa.update(hosts).where(hosts.c.id == sa.bindparam("host")).values(version=hosts.c.version + 1)
)
_BUMP = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        world_version=sa.select(hosts.c.version).where(hosts.c.id == sa.bindparam("host")).scalar_subquery()
    )
)
_SETTLE = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        settled=sa.bindparam("now_settled"),
        next_look=sa.bindparam("look"),
        lease_incarnation=sa.bindparam("owner"),
        work_deadline=sa.bindparam("limit"),
    )
)
_SPEC = Prepared(sa.select(servers.c.spec).where(servers.c.id == sa.bindparam("server")))
_ROOM = Prepared(
    sa.update(placements)
    .where(placements.c.server_id == sa.bindparam("server"), placements.c.state == "live")
    .values(vcpus=sa.bindparam("cpus"), ram_mb=sa.bindparam("memory"), disk_gb=sa.bindparam("disk"))
)
# A new intent, so that the row rests only when its host has said that nothing of the image is left there.
_NO_CAPTURE = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(capture=None, intent=servers.c.intent + 1)
)
_NO_IMAGE = Prepared(
    sa.update(images)
    .where(
        images.c.id == sa.bindparam("image"), images.c.data_name.is_(None), images.c.deleted_wall.is_(None)
    )
    .values(
        deleted_wall=sa.bindparam("wall"), protected=False, properties="{}", tags="[]",
        upload_nonce=None, upload_since=None, upload_until=None,
    )
)  # fmt: skip
_UNMARK = Prepared(sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(marked_wall=None))
_CLOSE = Prepared(
    sa.update(operations)
    .where(operations.c.id == sa.bindparam("operation"), operations.c.state == "open")
    .values(state=sa.bindparam("new_state"), reason=sa.bindparam("why"), finished_wall=sa.bindparam("wall"))
)


class Loaded(msgspec.Struct, frozen=True):
    """A server and its bookkeeping."""

    server: Server
    settled: bool
    next_look: float | None


def load_server(tx: Tx, server_id: str, *, lock: bool = False) -> Loaded | None:
    """One server, or None; ``lock`` holds its row until the transaction ends.

    The lock is a statement of its own: on PostgreSQL a joined ``FOR UPDATE`` that had to wait sees the
    newest server, but its placement and operation as they were before (a barrier test showed a delete
    that overlooked the placement it had waited for).
    """
    if lock and tx.postgresql:
        _LOCK_SERVER.first(tx, server_id=server_id)
    row = _ONE.first(tx, server_id=server_id)
    return None if row is None else loaded_from(row)


def load_servers(tx: Tx, server_ids: list[str]) -> dict[str, Server]:
    """Several servers by id, for lists."""
    rows = tx.execute(JOINED.where(servers.c.id.in_(server_ids)))
    return {row.id: loaded_from(row).server for row in rows}


def loaded_from(row: Any) -> Loaded:
    """A row of :data:`JOINED` (which may have further columns) as the core sees it."""
    place = host = operation = None
    if row.host_id is not None:
        place = Place(row.host_id, Fence(row.generation, row.epoch), row.nonce)
        host = HostSeen(
            row.host_id, row.hostname, row.host_seen, row.incarnation, row.enabled, row.forced_down
        )
    if row.operation_id is not None:
        operation = Operation(
            id=row.operation_id,
            kind=OperationKind(row.kind),
            edge=row.operation_edge,
            soft=row.soft,
            since=row.since,
            deadline=row.deadline,
        )
    seen, failure, spoiled = _facts(row)
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
        seen=seen,
        seen_at=row.seen_at,
        disk_recorded=row.disk_id is not None,
        launched_wall=row.launched_wall,
        lease_incarnation=row.lease_incarnation,
        work_deadline=row.work_deadline,
        operation=operation,
        failure=failure,
        disputed=None if row.disputed is None else Dispute(row.disputed),
        unreadable=spoiled,
        waiting=row.waiting,
        marked_wall=row.marked_wall,
        replaced=() if row.replaced == "[]" else readable.read(REPLACED, row.replaced, ()),
        before=None if row.before is None else readable.read(_former, row.before, readable.FORMER),
        shelved=None if row.shelved is None else Shelf(row.shelved),
        capture=row.capture,
        locked=None if row.locked_by is None else Lock(row.locked_by == "admin", row.locked_reason),
    )
    return Loaded(server, row.settled, row.next_look)


def _facts(row: Any) -> tuple[Observation | None, Failure | None, tuple[str, ...]]:
    """What was seen, why it failed, and which of the two cannot be read: that spoils no other row."""
    try:
        seen = None if row.seen is None else _seen(row.seen)
        failure = None if row.failure is None else _failure.decode(row.failure)
    except msgspec.DecodeError:
        seen = None if row.seen is None else readable.read(_observation, row.seen, readable.UNSEEN)
        lost = readable.lost_failure(row.created)
        failure = None if row.failure is None else readable.read(_failure, row.failure, lost)
        bad = (("seen", seen is readable.UNSEEN), ("failure", failure is lost))
        return seen, failure, tuple(name for name, is_bad in bad if is_bad)
    return seen, failure, ()


def lock_host(tx: Tx, host_id: str) -> None:
    """Take the host's row, in a statement of its own, before deciding on rows that hang from it.

    On PostgreSQL at READ COMMITTED a condition inside the deciding UPDATE is not enough: two placers
    of 3 on a host of 4 both succeeded when it was measured.
    """
    _LOCK_HOST.run(tx, host=host_id)


def bump_world(tx: Tx, host_id: str, server_id: str) -> None:
    """Say that the host has to hear of this server; the caller holds the host's row."""
    _BUMP.run(tx, host=host_id, server=server_id)


def next_look(plan: Plan, now: Now) -> tuple[bool, float | None]:
    """(settled, next look) of a plan: law 2, in one place."""
    match plan:
        case Settled():
            return True, None
        case LookAgain(at, _):
            return False, max(at, now.lease)
        case PlaceIt() | FailIt() | FinishDelete() | EndCapture():
            return False, now.lease


def judge(tx: Tx, server_id: str, *, locked: bool = False) -> Server:
    """After a change: close the operation if it is over, and write when to look next.

    Every store function that changes a server ends here, so no path can forget either. ``locked``: the
    caller has changed the server's row, so that it holds it.
    """
    loaded = load_server(tx, server_id, lock=not locked)
    assert loaded is not None
    server = loaded.server
    if server.operation is not None:
        outcome = operation_outcome(server, server.operation)
        if outcome is not None:
            close_operation(tx, server.operation.id, outcome)
            if server.operation.kind is OperationKind.REVERT:
                release_room(tx, server_id)  # nothing of the other flavor runs any more
            if server.operation.kind is OperationKind.IMAGE:
                server = drop_capture(tx, server)
            server = msgspec.structs.replace(server, operation=None)
            if outcome.state == "done" and server.marked_wall is not None:
                _UNMARK.run(tx, server=server_id)  # something succeeded: the operator's mark is out of date
                server = msgspec.structs.replace(server, marked_wall=None)
    settled, look = next_look(plan_control(server, tx.now), tx.now)
    owner, limit = server.lease_incarnation, server.work_deadline
    if settled:
        owner = limit = None
    if (settled, look, owner) != (loaded.settled, loaded.next_look, server.lease_incarnation):
        _SETTLE.run(tx, server=server_id, now_settled=settled, look=look, owner=owner, limit=limit)
    return server


def drop_capture(tx: Tx, server: Server) -> Server:
    """No image is wanted of its disk any more; one that has no data is removed, as the compute API does.

    Where a host has to hear of it, the caller holds that host's row.
    """
    if server.capture is None:
        return server
    _NO_CAPTURE.run(tx, server=server.id)
    _NO_IMAGE.run(tx, image=server.capture, wall=tx.now.wall)
    if server.place is not None:
        lock_host(tx, server.place.host_id)
        bump_world(tx, server.place.host_id, server.id)
    return msgspec.structs.replace(server, capture=None, intent=server.intent + 1)


def made_of(tx: Tx, server_id: str) -> Spec | None:
    """What a server is made of; None where that cannot be read."""
    return readable.read(_spec, _SPEC.scalar(tx, server=server_id), None)


def release_room(tx: Tx, server_id: str) -> None:
    """Keep no more room on its host than for what it is made of now."""
    spec = made_of(tx, server_id)
    if spec is not None:
        set_room(tx, server_id, spec.flavor)


def set_room(tx: Tx, server_id: str, size: Flavor) -> None:
    """The room that is taken for a server; more than before only under its host's lock."""
    _ROOM.run(tx, server=server_id, cpus=size.vcpus, memory=size.ram_mb, disk=size.disk_gb)


def close_operation(tx: Tx, operation_id: str, outcome: Outcome) -> None:
    """End an open operation; an ended one stays as it is (final states are final)."""
    _CLOSE.run(tx, operation=operation_id, new_state=outcome.state, why=outcome.reason, wall=tx.now.wall)
