"""Why an instance is in its state, who has the next step, and by when somebody looks again (law 10). Pure."""

from __future__ import annotations

from typing import assert_never

import msgspec

from unstuck.core.instance.control import (
    Apply,
    CancelBackup,
    DeleteServer,
    FailIt,
    FinishDelete,
    LookAgain,
    Settled,
    Shelve,
    StopServer,
    blocking,
    busy_until,
    host_silent,
    plan_control,
)
from unstuck.core.instance.data import Instance
from unstuck.core.instance.status import fault_of
from unstuck.core.instance.view import ServerState
from unstuck.core.server.explain import explain as explain_server
from unstuck.core.time import Now

CONTROL = "the control plane"
AGENT = "the instance's agent"
NOBODY = "nobody"


class Explained(msgspec.Struct, frozen=True):
    """``by``: lease time at which somebody looks again whatever happens; None when nothing is to come."""

    why: str
    holder: str
    next: str
    by: float | None


def explain(instance: Instance, now: Now) -> Explained:
    """Why it is as it is, and what comes next."""
    why = _why(instance, now)
    plan = plan_control(instance, now)
    match plan:
        case Settled():
            return Explained(why, NOBODY, _settled(instance, now), None)
        case LookAgain(at, reason):
            return Explained(why, _holder(instance, now), reason, at)
        case Apply():
            return Explained(why, CONTROL, "its host and guest are told", now.lease)
        case CancelBackup(_, reason):
            return Explained(why, CONTROL, f"the backup that runs is cancelled: {reason}", now.lease)
        case FailIt(_, reason, remedy):
            return Explained(reason, CONTROL, remedy, now.lease)
        case StopServer():
            return Explained(why, CONTROL, "its server is stopped; its data stays in the trash", now.lease)
        case Shelve():
            return Explained(why, CONTROL, "it gives its host's memory back", now.lease)
        case DeleteServer():
            return Explained(why, CONTROL, "its server and its data are removed", now.lease)
        case FinishDelete():
            return Explained(why, CONTROL, "its record is closed", now.lease)
        case _ as never:
            assert_never(never)


def _settled(instance: Instance, now: Now) -> str:
    fault = fault_of(instance)
    if fault is not None:
        return fault.remedy
    return "it is seen again when its host is back" if host_silent(instance, now) else "nothing"


def _holder(instance: Instance, now: Now) -> str:
    if instance.deleted or instance.server is None:
        return CONTROL
    if instance.server.place is None:
        return CONTROL
    seen = instance.server.seen
    if seen is None or instance.guest == 0 or host_silent(instance, now):
        return "its host"
    return AGENT


def _why(instance: Instance, now: Now) -> str:
    if instance.removed:
        return "it was deleted, and nothing is left of it"
    if instance.deleted:
        return (
            "it was deleted" if instance.trash_until_wall is None else "it was deleted, and is in the trash"
        )
    fault = fault_of(instance)
    if fault is not None:
        return fault.reason
    if instance.pending is not None:
        wait = "it waits" if instance.pending.applied is None else "it is being done"
        return f"a {instance.pending.kind.value} was asked for; {wait}"
    if host_silent(instance, now) and instance.server is not None and instance.server.place is not None:
        return "its host has been silent for a while; what is shown is what was seen last"
    if instance.launched_wall is None:
        return _building(instance, now)
    if busy_until(instance, now) is not None:
        return "a backup runs; the instance is usable"
    return _running(instance)


def _building(instance: Instance, now: Now) -> str:
    if instance.guest == 0 and instance.server is not None:
        return f"its server is built: {explain_server(instance.server, now).reason}"
    seen = instance.seen
    if seen is None:
        return "its guest agent starts"
    if seen.trouble is not None:
        return seen.trouble.reason
    return f"its guest agent is {seen.step.value}"


def _running(instance: Instance) -> str:
    seen, trouble = instance.seen, blocking(instance)
    if trouble is not None:
        return trouble.reason
    if seen is None or not instance.alive:
        return "its guest agent is silent; the database itself may well be usable"
    if seen.trouble is not None:
        return seen.trouble.reason
    match seen.server:
        case ServerState.UP:
            return "its database answers"
        case ServerState.STARTING:
            return "its database starts"
        case ServerState.DOWN:
            return "its database is down"
        case ServerState.CRASHED:
            return "its database has crashed; its agent starts it again"
        case ServerState.UNCLEAR:
            return "its database is alive and does not answer in time"
        case _ as never:
            assert_never(never)
