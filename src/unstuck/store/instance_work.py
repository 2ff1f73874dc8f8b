"""What the control loop does for instances. One function is one transaction, and decides again in it."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core import guard
from unstuck.core.instance.control import (
    LIMITS,
    Apply,
    CancelBackup,
    DeleteServer,
    FinishDelete,
    GoBack,
    Shelve,
    StopServer,
    pending_outcome,
    plan_control,
)
from unstuck.core.instance.data import SERVICE_PROJECT, Instance, Pending, PendingKind, System
from unstuck.core.server.control import Outcome
from unstuck.core.server.data import Failure, Flavor, OperationKind, Power, Running, Server
from unstuck.core.time import Now
from unstuck.store import archives, instance_backups
from unstuck.store.clock import may_destroy
from unstuck.store.engine import Tx
from unstuck.store.generation import recovery
from unstuck.store.instance_rows import (
    Loaded,
    close_operation,
    hold,
    host_of,
    judge,
    load_instance,
)
from unstuck.store.instances import set_spec, spec_of, write
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, set_room
from unstuck.store.schema.database import instances
from unstuck.store.servers import Caller, change_intent, delete_server

HELD = 60.0
"""Seconds until the next look where time may destroy nothing now."""

_DUE = Prepared(
    sa.select(instances.c.id)
    .where(sa.not_(instances.c.settled), instances.c.next_look <= sa.bindparam("now"))
    .order_by(instances.c.next_look)
    .limit(sa.bindparam("most"))
)
_POSTPONE = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"), sa.not_(instances.c.settled))
    .values(next_look=sa.bindparam("look"))
)


class Facts(msgspec.Struct, frozen=True):
    """What the loop decides on."""

    instance: Instance
    now: Now


def due_instances(tx: Tx, limit: int) -> list[str]:
    """Ids of instances whose next look is due, the longest overdue first."""
    return _DUE.scalars(tx, now=tx.now.lease, most=limit)


def instance_facts(tx: Tx, instance_id: str) -> Facts | None:
    loaded = load_instance(tx, instance_id)
    return None if loaded is None else Facts(loaded.instance, tx.now)


def postpone_instance(tx: Tx, instance_id: str, seconds: float) -> None:
    """Nothing could be done now; look again in ``seconds`` of lease time."""
    _POSTPONE.run(tx, instance=instance_id, look=tx.now.lease + seconds)


def review_instance(tx: Tx, instance_id: str) -> None:
    """Judge a due instance again: the facts may have aged, and its next look must lie ahead."""
    if load_instance(tx, instance_id, lock=True) is not None:
        judge(tx, instance_id)


def _still(tx: Tx, instance_id: str, kind: type[Any]) -> Loaded | None:
    """The instance, held, if this is still its next step; else it is judged anew."""
    loaded = hold(tx, instance_id, None, deleted=True)
    if isinstance(plan_control(loaded.instance, tx.now), kind):
        return loaded
    judge(tx, instance_id)
    return None


def apply_pending(tx: Tx, instance_id: str) -> str | None:
    """Tell host and guest of what is pending; returns the host to notify."""
    loaded = _still(tx, instance_id, Apply)
    if loaded is None:
        return None
    instance = loaded.instance
    pending, server = instance.pending, instance.server
    assert pending is not None
    assert server is not None
    if pending_outcome(instance, tx.now) is not None:  # too late: nobody was told, so nothing is undone
        judge(tx, instance_id)
        return None
    by = Caller(pending.request_id, pending.user_id, SERVICE_PROJECT, admin=True)
    raised = _needs_new_guest(instance, server, pending)
    if pending.kind is PendingKind.RESTART:
        write(tx, instance_id, restart=instance.restart + 1)
    else:
        _make_of(tx, loaded, pending)
    if raised:
        _raise(tx, server, by, soft=instance.alive)
    else:
        assert server.place is not None
        bump_world(tx, server.place.host_id, loaded.server_id)
    told = msgspec.structs.replace(pending, applied=tx.now.lease, guest=instance.guest if raised else -1)
    write(tx, instance_id, pending=msgspec.json.encode(told).decode())
    judge(tx, instance_id)
    return host_of(tx, loaded.server_id)


def _needs_new_guest(instance: Instance, server: Server, pending: Pending) -> bool:
    """A restart is the agent's work, if there is one; what else is asked for needs a new guest process."""
    if pending.kind is not PendingKind.RESTART:
        return True
    runs = server.seen is not None and isinstance(server.seen.guest, Running)
    return not (runs and instance.alive and server.power is Power.ON)


def _make_of(tx: Tx, loaded: Loaded, pending: Pending) -> None:
    spec = spec_of(tx, loaded.server_id)
    columns: dict[str, Any] = {}
    if pending.flavor is not None:
        spec = msgspec.structs.replace(spec, flavor=pending.flavor)
    if pending.flavor_copy:
        columns["flavor"] = pending.flavor_copy
        columns["flavor_id"] = loaded.row.flavor_id
    if pending.system is not None:
        _set_system(tx, loaded, pending.system)
        return
    if pending.images:
        spec = msgspec.structs.replace(spec, images=pending.images)
        columns["image_id"] = pending.image_id
    set_spec(tx, loaded.server_id, spec, **columns)


def _set_system(tx: Tx, loaded: Loaded, system: System) -> None:
    spec = msgspec.structs.replace(spec_of(tx, loaded.server_id), images=system.images)
    set_spec(tx, loaded.server_id, spec, image_id=system.image_id)
    write(tx, loaded.instance.id, datastore_version_id=system.version_id)


def go_back(tx: Tx, instance_id: str) -> str | None:
    """The upgrade has failed: the former version counts again, and a new guest process is started with it.
    Returns the host to notify."""
    loaded = _still(tx, instance_id, GoBack)
    if loaded is None:
        return None
    plan = plan_control(loaded.instance, tx.now)
    pending, server = loaded.instance.pending, loaded.instance.server
    assert isinstance(plan, GoBack)
    assert pending is not None
    assert pending.before is not None
    assert server is not None
    _set_system(tx, loaded, pending.before)
    by = Caller(f"{pending.request_id}-back"[:64], pending.user_id, SERVICE_PROJECT, admin=True)
    _raise(tx, server, by, soft=loaded.instance.alive)
    back = msgspec.structs.replace(
        pending, back=plan.reason, applied=tx.now.lease, guest=loaded.instance.guest,
        deadline=tx.now.lease + LIMITS[pending.kind],
    )  # fmt: skip
    write(tx, instance_id, pending=msgspec.json.encode(back).decode())
    judge(tx, instance_id)
    return host_of(tx, loaded.server_id)


def _raise(tx: Tx, server: Server, by: Caller, *, soft: bool) -> None:
    """A new guest process; the old one is asked to end by itself first, where there is one that hears."""
    off = server.power is Power.OFF
    kind = OperationKind.START if off else OperationKind.REBOOT
    change_intent(tx, server, kind, by, power=Power.ON, edge=server.intent + 1, soft=soft and not off)


def cancel_for_pending(tx: Tx, instance_id: str) -> str | None:
    """The backup that runs has been waited for long enough: cancel it, saying why."""
    loaded = _still(tx, instance_id, CancelBackup)
    if loaded is None:
        return None
    plan = plan_control(loaded.instance, tx.now)
    assert isinstance(plan, CancelBackup)
    instance_backups.cancel(tx, instance_id, plan.reason)
    host_id = host_of(tx, loaded.server_id)
    if host_id is not None:
        bump_world(tx, host_id, loaded.server_id)
    judge(tx, instance_id)
    return host_id


def fail_instance(tx: Tx, instance_id: str, code: str, reason: str, remedy: str) -> None:
    """Record that nobody comes; not if somebody has come meanwhile."""
    from unstuck.core.instance.control import FailIt

    loaded = _still(tx, instance_id, FailIt)
    if loaded is None:
        return
    close_operation(tx, instance_id, Outcome("failed", reason))
    failure = msgspec.json.encode(Failure(code, reason, remedy, tx.now.wall)).decode()
    write(tx, instance_id, failure=failure, pending=None)
    judge(tx, instance_id)


def stop_trashed(tx: Tx, instance_id: str) -> str | None:
    """A deleted instance stands still while it is kept; returns the host to notify."""
    loaded = _still(tx, instance_id, StopServer)
    if loaded is None:
        return None
    server = loaded.instance.server
    assert server is not None
    change_intent(
        tx, server, OperationKind.STOP, _by_itself(server), power=Power.OFF, edge=server.edge, soft=False
    )
    judge(tx, instance_id)
    return host_of(tx, loaded.server_id)


def _by_itself(server: Server) -> Caller:
    """For what the control plane does of its own accord; a request id of its own for each intent."""
    return Caller(f"req-{server.intent}-{server.id}"[:64], SERVICE_PROJECT, SERVICE_PROJECT, admin=True)


def shelve(tx: Tx, instance_id: str) -> None:
    """In the trash it needs no more than its volume's room."""
    loaded = _still(tx, instance_id, Shelve)
    if loaded is None:
        return
    set_room(tx, loaded.server_id, Flavor(0, 0, spec_of(tx, loaded.server_id).flavor.disk_gb))
    judge(tx, instance_id)


def delete_instance_server(tx: Tx, instance_id: str) -> str | None:
    """The server goes, with the volume. Where only time has decided that, not while the store's clock or its
    memory is in doubt. Returns the host to notify."""
    loaded = _still(tx, instance_id, DeleteServer)
    if loaded is None:
        return None
    server, timed = loaded.instance.server, loaded.instance.trash_until_wall is not None
    assert server is not None
    if timed and (recovery(tx) is not None or isinstance(may_destroy(tx), guard.Suspended)):
        postpone_instance(tx, instance_id, HELD)
        return None
    host_id = delete_server(tx, loaded.server_id, _by_itself(server))
    judge(tx, instance_id)
    return host_id


def finish_instance(tx: Tx, instance_id: str) -> None:
    """Nothing is left of it."""
    loaded = load_instance(tx, instance_id, lock=True)
    if loaded is None or loaded.instance.removed:
        return
    if not isinstance(plan_control(loaded.instance, tx.now), FinishDelete):
        judge(tx, instance_id)
        return
    write(tx, instance_id, removed=True, settled=True, next_look=None, alive=False)
    archives.look_at(tx, instance_id)
