"""Actions on servers besides stop, start, reboot and delete. One function is one transaction.

Each returns the host to notify, and raises ``Conflict`` and ``NotFound``.
"""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from unstuck.core.errors import Forbidden
from unstuck.core.server.data import OperationKind, Power, Server
from unstuck.store.engine import Tx
from unstuck.store.readdress import ADDRESS_TAKEN
from unstuck.store.rows import bump_world, judge
from unstuck.store.schema.compute import servers
from unstuck.store.server_lists import check_owner, within_project
from unstuck.store.servers import (
    Caller,
    change_intent,
    load_for_change,
    load_locked,
    note_done,
    refuse_unless,
)


def pause_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants its CPUs to stand still; it keeps its memory, and its process."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "pause", frozenset({"active"}))
    return _level(tx, server, OperationKind.PAUSE, caller, Power.PAUSED)


def unpause_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants it to run on."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "unpause", frozenset({"paused"}))
    return _level(tx, server, OperationKind.UNPAUSE, caller, Power.ON)


def suspend_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants its memory on the disk, and no process."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "suspend", frozenset({"active"}))
    return _level(tx, server, OperationKind.SUSPEND, caller, Power.SUSPENDED)


def resume_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants it to run on from where it was. Also the way out of a suspend that is overdue."""
    server = load_for_change(tx, server_id, caller)
    operation = server.operation
    late = operation is not None and operation.kind is OperationKind.SUSPEND
    if operation is None or not late or server.deleted or tx.now.lease < operation.deadline:
        refuse_unless(server, tx, "resume", frozenset({"suspended"}))
    return _level(tx, server, OperationKind.RESUME, caller, Power.ON)


def _level(tx: Tx, server: Server, kind: OperationKind, caller: Caller, power: Power) -> str | None:
    """Another level of the same guest process: the edge stays."""
    change_intent(tx, server, kind, caller, power=power, edge=server.edge, soft=False)
    return server.place.host_id if server.place else None


def lock_server(tx: Tx, server_id: str, project_id: str | None, caller: Caller, reason: str | None) -> None:
    """Protect it from members. Its owner does not take over an administrator's lock, nor changes his own."""
    check_owner(tx, server_id, project_id)
    server = load_locked(tx, server_id)
    owner = _is_owner(tx, server_id, caller)
    note_done(tx, server, OperationKind.LOCK, caller)
    if server.locked is not None and owner:
        return
    _write(tx, server_id, locked_by="owner" if owner else "admin", locked_reason=reason)


def unlock_server(tx: Tx, server_id: str, project_id: str | None, caller: Caller) -> None:
    """Lift the lock; one that an administrator set is lifted by administrators only (403)."""
    check_owner(tx, server_id, project_id)
    server = load_locked(tx, server_id)
    if server.locked is not None and server.locked.by_admin and not caller.admin:
        raise Forbidden(f"Instance {server_id} was locked by an administrator, who alone can unlock it.")
    note_done(tx, server, OperationKind.UNLOCK, caller)
    _write(tx, server_id, locked_by=None, locked_reason=None)


def reset_state(tx: Tx, server_id: str, state: Literal["active", "error"], caller: Caller) -> str | None:
    """An operator's mark; no status is written, and whatever the host sees then is the truth.

    ``active``: the host looks anew, with a new budget of starts and fetches; a server that found no host
    waits for one again. ``error``: shown as failed by an operator, until an action succeeds or the mark
    is taken back.
    """
    server = load_locked(tx, server_id)
    number = server.intent + 1
    values: dict[str, float | None] = {"intent": number, "mark": number}
    values["marked_wall"] = tx.now.wall if state == "error" else None
    if state == "active" and server.place is None and not (server.deleted or _addressless(server)):
        values |= {"failure": None, "waiting": tx.now.lease}
    _write(tx, server_id, **values)
    note_done(tx, server, OperationKind.RESET, caller)
    if server.place is not None:
        bump_world(tx, server.place.host_id, server_id)
    judge(tx, server_id)
    return server.place.host_id if server.place else None


def _addressless(server: Server) -> bool:
    """The address that its user had asked for is another's: it would be built without a network."""
    return server.failure is not None and server.failure.code == ADDRESS_TAKEN


def _is_owner(tx: Tx, server_id: str, caller: Caller) -> bool:
    project = tx.execute(sa.select(servers.c.project_id).where(servers.c.id == server_id)).scalar_one()
    return bool(project == caller.project_id)


def _write(tx: Tx, server_id: str, **values: float | str | None) -> None:
    stamped = {**values, "updated_wall": tx.now.wall}
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(stamped))


pause_own = within_project(pause_server)
unpause_own = within_project(unpause_server)
suspend_own = within_project(suspend_server)
resume_own = within_project(resume_server)
