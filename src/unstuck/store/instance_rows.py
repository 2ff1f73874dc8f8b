"""Instances as the core sees them, and the one place that writes their next look."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import NotFound
from unstuck.core.instance.control import (
    Apply,
    CancelBackup,
    DeleteServer,
    FailIt,
    FinishDelete,
    GoBack,
    LookAgain,
    Plan,
    Settled,
    Shelve,
    StopServer,
    blocking,
    pending_outcome,
    plan_control,
    ready,
)
from unstuck.core.instance.data import Former, Instance, LiveBackup, Pending, PendingKind
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.server.control import Outcome
from unstuck.core.server.data import Failure, Server, Thing, Trouble
from unstuck.core.time import Now
from unstuck.store import instance_backups, readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, load_server, lock_host, release_room
from unstuck.store.schema.compute import operations, placements
from unstuck.store.schema.database import instances
from unstuck.store.servers import load_locked

_view = msgspec.json.Decoder(DatabaseView)
_pending = msgspec.json.Decoder(Pending)
_failure = msgspec.json.Decoder(Failure)

FACTS = (
    instances.c.id, instances.c.server_id, instances.c.project_id, instances.c.created,
    instances.c.generation, instances.c.restart, instances.c.data_recorded, instances.c.deleted,
    instances.c.removed, instances.c.protected, instances.c.trash_until_wall, instances.c.pending,
    instances.c.launched_wall, instances.c.restores, instances.c.seen, instances.c.alive,
    instances.c.seen_at, instances.c.guest, instances.c.failure, instances.c.settled,
    instances.c.configuration_id,
    instances.c.next_look, instances.c.flavor_id, instances.c.ram_mb, instances.c.volume_gb,
)  # fmt: skip
"""The columns that the facts are read from."""
ROOM = (
    sa.select(placements.c.ram_mb)
    .where(placements.c.server_id == instances.c.server_id, placements.c.state == "live")
    .scalar_subquery()
    .label("room_mb")
)
_ONE = Prepared(sa.select(*FACTS, ROOM).where(instances.c.id == sa.bindparam("instance")))
_LOCK = Prepared(
    sa.select(instances.c.id).where(instances.c.id == sa.bindparam("instance")).with_for_update()
)
_OF_SERVER = Prepared(sa.select(instances.c.id).where(instances.c.server_id == sa.bindparam("server")))
_SETTLE = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"))
    .values(settled=sa.bindparam("now_settled"), next_look=sa.bindparam("look", type_=sa.Double))
)
_LAUNCHED = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"), instances.c.launched_wall.is_(None))
    .values(launched_wall=sa.bindparam("wall"), updated_wall=sa.bindparam("wall"))
)
_ENDED = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"))
    .values(
        pending=None, flavor_id=sa.bindparam("flavor"), ram_mb=sa.bindparam("ram"),
        volume_gb=sa.bindparam("volume"), updated_wall=sa.bindparam("wall"),
    )
)  # fmt: skip
_CLOSE = Prepared(
    sa.update(operations)
    .where(operations.c.resource_id == sa.bindparam("instance"), operations.c.state == "open")
    .values(state=sa.bindparam("new_state"), reason=sa.bindparam("why"), finished_wall=sa.bindparam("wall"))
)
_HOST = Prepared(
    sa.select(placements.c.host_id).where(
        placements.c.server_id == sa.bindparam("server"), placements.c.state == "live"
    )
)

LOST_VIEW = DatabaseView(
    generation="", data=Thing.UNKNOWN, server=ServerState.UNCLEAR, step=GuestStep.WAITING,
    trouble=Trouble(
        "observation-lost", "what its agent last saw cannot be read any more in the store",
        "its agent tells it anew with its next news, or when it is started again",
    ),
)  # fmt: skip
"""Stands for a view that cannot be read: unknown, not absent (law 4)."""


class Loaded(msgspec.Struct, frozen=True):
    """An instance and its bookkeeping. ``row`` is the one that the facts were read from."""

    instance: Instance
    server_id: str
    settled: bool
    next_look: float | None
    row: Any


def facts_from(row: Any, server: Server | None, backup: LiveBackup | None) -> Instance:
    """A row with :data:`FACTS` and its room as the core sees it; what cannot be read spoils only itself."""
    bad = []
    seen = pending = failure = None
    try:
        seen = None if row.seen is None else _view.decode(row.seen)
    except msgspec.DecodeError:
        seen = LOST_VIEW
        bad.append("seen")
    try:
        pending = None if row.pending is None else _pending.decode(row.pending)
    except msgspec.DecodeError:
        pending = _lost_pending(row)
        bad.append("pending")
    if row.failure is not None:
        lost = readable.lost_failure(row.created)
        failure = readable.read(_failure, row.failure, lost)
        if failure is lost:
            bad.append("failure")
    return Instance(
        id=row.id, created=row.created, generation=row.generation, restart=row.restart,
        data_recorded=row.data_recorded, deleted=row.deleted, removed=row.removed, server=server,
        protected=row.protected, trash_until_wall=row.trash_until_wall, pending=pending,
        launched_wall=row.launched_wall, restores=row.restores, seen=seen, alive=row.alive,
        seen_at=row.seen_at, guest=row.guest, backup=backup, failure=failure,
        room_mb=row.room_mb or 0, unreadable=tuple(bad),
    )  # fmt: skip


def _lost_pending(row: Any) -> Pending:
    """Nobody can say what was asked for: it fails at once, and the instance is free again."""
    return Pending(
        kind=PendingKind.RESTART, since=row.created, patience=row.created, deadline=row.created,
        request_id="", user_id="",
    )  # fmt: skip


def load_instance(tx: Tx, instance_id: str, *, lock: bool = False) -> Loaded | None:
    """One instance, or None. ``lock`` holds its row, in a statement of its own; host and server come first,
    for who needs them too (:func:`hold`)."""
    if lock and tx.postgresql:
        _LOCK.first(tx, instance=instance_id)
    row = _ONE.first(tx, instance=instance_id)
    if row is None:
        return None
    loaded = load_server(tx, row.server_id)
    backup = None if row.removed else instance_backups.live_of(tx, row.id)
    facts = facts_from(row, None if loaded is None else loaded.server, backup)
    return Loaded(facts, row.server_id, row.settled, row.next_look, row)


def instance_of(tx: Tx, server_id: str) -> str | None:
    """The instance that lives in a server."""
    found: str | None = _OF_SERVER.scalar(tx, server=server_id)
    return found


def missing(instance_id: str) -> NotFound:
    return NotFound(f"Instance {instance_id} cannot be found.")


def hold(tx: Tx, instance_id: str, project_id: str | None, *, deleted: bool = False) -> Loaded:
    """Lock host, server and instance (in that order everywhere), and read what is so then.

    404 where it is not this project's (None: any), or gone; ``deleted``: one in the trash is found too.
    """
    row = _ONE.first(tx, instance=instance_id)
    if row is None or row.removed or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    with contextlib.suppress(NotFound):  # its server is gone: what is asked is decided on that
        load_locked(tx, row.server_id)
    loaded = load_instance(tx, instance_id, lock=True)
    assert loaded is not None
    if loaded.instance.removed or (loaded.instance.deleted and not deleted):
        raise missing(instance_id)
    return loaded


def bump_instance(tx: Tx, instance_id: str) -> str | None:
    """Say that its host has to hear of it; returns the host to notify. Takes the host's row, so before any
    lock on instances or backups."""
    row = _ONE.first(tx, instance=instance_id)
    if row is None:
        return None
    host_id = host_of(tx, row.server_id)
    if host_id is not None:
        lock_host(tx, host_id)
        bump_world(tx, host_id, row.server_id)
    return host_id


def host_of(tx: Tx, server_id: str) -> str | None:
    """The host that has the server."""
    found: str | None = _HOST.scalar(tx, server=server_id)
    return found


def next_look(plan: Plan, now: Now) -> tuple[bool, float | None]:
    """(settled, next look) of a plan: law 2, in one place."""
    match plan:
        case Settled():
            return True, None
        case LookAgain(at, _):
            return False, max(at, now.lease)
        case (
            Apply()
            | GoBack()
            | CancelBackup()
            | FailIt()
            | StopServer()
            | Shelve()
            | DeleteServer()
            | FinishDelete()
        ):
            return False, now.lease


def judge(tx: Tx, instance_id: str) -> Instance:
    """After a change: end what is over, and write when to look next. Every store function that changes an
    instance ends here; the caller holds its row."""
    loaded = load_instance(tx, instance_id)
    assert loaded is not None
    instance = loaded.instance
    if instance.launched_wall is None and not instance.deleted and ready(instance):
        _LAUNCHED.run(tx, instance=instance_id, wall=tx.now.wall)
        instance = msgspec.structs.replace(instance, launched_wall=tx.now.wall)
        if instance.pending is None:
            close_operation(tx, instance_id, Outcome("done", ""))
    outcome = pending_outcome(instance, tx.now)
    if outcome is not None:
        _end_pending(tx, loaded, outcome)
        instance = msgspec.structs.replace(instance, pending=None)
    trouble = blocking(instance)
    if trouble is not None and instance.launched_wall is None and instance.pending is None:
        close_operation(tx, instance_id, Outcome("failed", trouble.reason))  # waiting cannot help its build
    settled, look = next_look(plan_control(instance, tx.now), tx.now)
    if (settled, look) != (loaded.settled, loaded.next_look):
        _SETTLE.run(tx, instance=instance_id, now_settled=settled, look=look)
    return instance


def _end_pending(tx: Tx, loaded: Loaded, outcome: Outcome) -> None:
    """It is over. If it failed before anybody was told of it, what was so before counts again."""
    row, pending = loaded.row, loaded.instance.pending
    kept = Former(row.flavor_id, row.ram_mb, row.volume_gb)
    if pending is not None and pending.applied is None and pending.former is not None:
        kept = pending.former
    _ENDED.run(
        tx, instance=loaded.instance.id, flavor=kept.flavor_id, ram=kept.ram_mb, volume=kept.volume_gb,
        wall=tx.now.wall,
    )  # fmt: skip
    close_operation(tx, loaded.instance.id, outcome)
    if not loaded.instance.deleted:
        release_room(tx, loaded.server_id)


def close_operation(tx: Tx, instance_id: str, outcome: Outcome) -> None:
    """End what is open of an instance; what has ended stays as it is."""
    _CLOSE.run(tx, instance=instance_id, new_state=outcome.state, why=outcome.reason, wall=tx.now.wall)
