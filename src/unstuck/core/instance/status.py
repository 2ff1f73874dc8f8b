"""The public status of an instance, and its operating status: functions of facts, nothing here is stored.

The words are the database API's own (none may be invented: clients know them); ``reference`` is that API's
status model, with two differences. A backup shows only while an agent holds it, and a server's failure
outranks it. And what cannot be seen is left open (an empty operating status), never made an error.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from unstuck.core.instance.control import blocking, busy_until, host_silent
from unstuck.core.instance.data import Instance, PendingKind
from unstuck.core.instance.view import ServerState
from unstuck.core.server.data import Gone, Off, OperationKind, Power, Server
from unstuck.core.time import Now

BUILD = "BUILD"
ACTIVE = "ACTIVE"
BACKUP = "BACKUP"
REBOOT = "REBOOT"
RESIZE = "RESIZE"
UPGRADE = "UPGRADE"
RESTART_REQUIRED = "RESTART_REQUIRED"
SHUTDOWN = "SHUTDOWN"
ERROR = "ERROR"

_OPERATES = frozenset({ACTIVE, BACKUP, RESTART_REQUIRED})
UNSEEN = ""
"""The operating status where it cannot be known."""


class Fault(msgspec.Struct, frozen=True):
    """Why it is in ERROR, what helps, and since when (wall time), where that is known."""

    reason: str
    remedy: str
    since: float | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    status: str
    operating_status: str
    fault: Fault | None = None


def status(instance: Instance, now: Now) -> Status:
    """Both statuses of one instance as of ``now``."""
    shown, fault = _status(instance, now)
    operating = _operating(instance, now) if shown in _OPERATES else UNSEEN
    return Status(shown, operating, fault)


def _status(instance: Instance, now: Now) -> tuple[str, Fault | None]:
    if instance.deleted:
        return SHUTDOWN, None
    fault = fault_of(instance)
    if fault is not None:
        return ERROR, fault
    server = instance.server
    if server is None or instance.launched_wall is None:
        return BUILD, None
    if instance.pending is not None:
        return _pending(instance.pending.kind), None
    if _is_off(server):
        return SHUTDOWN, None
    if server.operation is not None and server.operation.kind is OperationKind.REBOOT:
        return REBOOT, None
    if busy_until(instance, now) is not None:
        return BACKUP, None
    configured = None if instance.seen is None else instance.seen.configured
    if configured is not None and configured.waiting:
        return RESTART_REQUIRED, None
    return ACTIVE, None


def fault_of(instance: Instance) -> Fault | None:
    """Why it is in ERROR; None where it is not."""
    failure = instance.failure
    if failure is None and instance.server is not None:
        failure = instance.server.failure
    if failure is not None:
        return Fault(failure.reason, failure.remedy, failure.since)
    trouble = blocking(instance)
    return None if trouble is None else Fault(trouble.reason, trouble.remedy)


def _pending(kind: PendingKind) -> str:
    match kind:
        case PendingKind.RESTART:
            return REBOOT
        case PendingKind.RESIZE | PendingKind.RESIZE_VOLUME:
            return RESIZE
        case PendingKind.REBUILD:
            return BUILD
        case PendingKind.UPGRADE:
            return UPGRADE
        case _ as never:
            assert_never(never)


def _is_off(server: Server) -> bool:
    """Somebody stopped its server, or it powered itself off, and it is seen to be down."""
    seen = server.seen
    return server.power is Power.OFF and seen is not None and isinstance(seen.guest, Gone | Off)


def _operating(instance: Instance, now: Now) -> str:
    """The datastore, as its agent saw it last; open where its host is silent, ERROR where only it is."""
    if host_silent(instance, now):
        return UNSEEN
    seen = instance.seen
    if seen is None or not instance.alive:
        return ERROR
    match seen.server:
        case ServerState.UP:
            return "HEALTHY"
        case ServerState.STARTING:
            return BUILD
        case ServerState.DOWN | ServerState.CRASHED:
            return SHUTDOWN
        case ServerState.UNCLEAR:
            return "BLOCKED"
        case _ as never:
            assert_never(never)
