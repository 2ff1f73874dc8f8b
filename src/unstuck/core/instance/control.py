"""What the control plane does next for one instance, and when it has to look again.

The server's own planner places it, and its host runs it; the guest makes the data. What is left here: to give
requests that take the datastore down to host and guest at the right moment, to see what came of them, to
end what nobody comes for with its reason, and deletes with their trash.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from unstuck.core.backup.control import LEASE as BACKUP_LEASE
from unstuck.core.instance.data import Instance, Pending, PendingKind
from unstuck.core.instance.view import ServerState
from unstuck.core.server.control import Outcome, away, satisfied
from unstuck.core.server.data import Gone, Power, Running, Server, Thing, Trouble
from unstuck.core.server.status import SILENT, final_trouble
from unstuck.core.time import Now

PATIENCE = 60.0
"""Seconds that a restart or resize waits for a backup that runs, before it cancels it."""
LIMITS = {
    PendingKind.RESTART: 300.0,
    PendingKind.RESIZE: 900.0,
    PendingKind.RESIZE_VOLUME: 900.0,
    PendingKind.REBUILD: 900.0,
    PendingKind.UPGRADE: 900.0,
}
"""Seconds after which such a request has failed, unless it came about."""
NO_AGENT = 1800.0
"""Seconds without any word from a guest agent, its server running, after which a new instance has failed."""
LOOK = 2.0
"""Seconds between two looks at an instance that somebody else works on; their reports are sooner."""
LOOK_BUILD = 10.0
LOOK_TRASH = 3600.0
LOOK_HELD = 60.0
AGENT_ABSENT = "agent-absent"
SERVER_GONE = "server-gone"


class Apply(msgspec.Struct, frozen=True, tag=True):
    """Tell host and guest of what is pending: no backup is in the way (any more)."""


class GoBack(msgspec.Struct, frozen=True, tag=True):
    """The upgrade has failed: its former version counts again, with the data as it is."""

    reason: str


class CancelBackup(msgspec.Struct, frozen=True, tag=True):
    """What is pending has waited long enough for the backup that runs."""

    backup_id: str
    reason: str


class FailIt(msgspec.Struct, frozen=True, tag=True):
    """Nobody comes: ERROR with this reason and remedy. A later word of its agent lifts it again."""

    code: str
    reason: str
    remedy: str


class StopServer(msgspec.Struct, frozen=True, tag=True):
    """It is in the trash: its server stands still, and keeps the volume."""


class Shelve(msgspec.Struct, frozen=True, tag=True):
    """It is in the trash and stands still: only its volume's room is kept on its host."""


class DeleteServer(msgspec.Struct, frozen=True, tag=True):
    """Its time in the trash is over, or it has none: the server goes, with the volume."""


class FinishDelete(msgspec.Struct, frozen=True, tag=True):
    """The server is gone: nothing is left of the instance."""


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Nothing to do until somebody wants or reports something else."""


class LookAgain(msgspec.Struct, frozen=True, tag=True):
    """Somebody else has the next step; look again at ``at`` (lease time) whatever happens."""

    at: float
    reason: str


Plan = (
    Apply
    | GoBack
    | CancelBackup
    | FailIt
    | StopServer
    | Shelve
    | DeleteServer
    | FinishDelete
    | Settled
    | LookAgain
)


def plan_control(instance: Instance, now: Now) -> Plan:
    """The control plane's next step for one instance."""
    if instance.removed:
        return Settled()
    if instance.deleted:
        return _plan_delete(instance, now)
    if instance.server is None or instance.server.removed or instance.server.deleted:
        return _without_server(instance)
    if instance.pending is not None:
        return _plan_pending(instance, instance.server, instance.pending, now)
    if instance.launched_wall is not None or instance.failure is not None:
        return Settled()
    return _plan_build(instance, instance.server, now)


def _without_server(instance: Instance) -> Plan:
    if instance.failure is not None and instance.failure.code == SERVER_GONE and instance.pending is None:
        return Settled()
    return FailIt(
        SERVER_GONE,
        "the server of the instance was deleted, by an administrator and not through the database API",
        "delete the instance; restore a backup of it into a new one",
    )


def _plan_build(instance: Instance, server: Server, now: Now) -> Plan:
    if server.failure is not None or blocking(instance) is not None:
        return Settled()  # whoever mends it, the agent's next word is looked at
    runs = server.seen is not None and satisfied(server)
    if not runs or instance.guest > 0 or host_silent(instance, now):
        # Until it runs the server's own deadlines count, and then what its guest agent says.
        return LookAgain(now.lease + LOOK_BUILD, "host and guest build it")
    if now.lease >= server.seen_at + NO_AGENT:
        return FailIt(
            AGENT_ABSENT,
            f"its server runs, and no guest agent has said a word for {NO_AGENT / 60:.0f} minutes",
            "look at the server's console log; delete the instance and create it again, or have an "
            "administrator rebuild it",
        )
    return LookAgain(min(now.lease + LOOK_BUILD, server.seen_at + NO_AGENT), "its guest agent starts")


def busy_until(instance: Instance, now: Now) -> float | None:
    """When the lease of a backup that runs in it ends; None where none runs (one that nobody has taken yet
    is in nobody's way)."""
    backup = instance.backup
    if backup is None or backup.heard is None or now.lease >= backup.heard + BACKUP_LEASE:
        return None
    return backup.heard + BACKUP_LEASE


def _plan_pending(instance: Instance, server: Server, pending: Pending, now: Now) -> Plan:
    why = upgrade_failed(instance, now)
    if why is not None:
        return GoBack(why)
    if pending.applied is not None:
        return LookAgain(min(now.lease + LOOK, max(pending.deadline, now.lease)), "host and guest do it")
    until = busy_until(instance, now)
    backup = instance.backup
    if until is not None and backup is not None and not backup.cancelled:
        if now.lease >= pending.patience:
            return CancelBackup(backup.id, f"a {_word(pending.kind)} of the instance went before it")
        return LookAgain(min(until, pending.patience), "a backup runs in it")
    if server.place is None or away(server, now):
        # Told to a host that is away it would come as a surprise when it is back; its deadline ends it.
        return LookAgain(min(now.lease + LOOK, max(pending.deadline, now.lease)), "its host is away")
    return Apply()


def _word(kind: PendingKind) -> str:
    match kind:
        case PendingKind.RESTART:
            return "restart"
        case PendingKind.RESIZE | PendingKind.RESIZE_VOLUME:
            return "resize"
        case PendingKind.REBUILD:
            return "rebuild"
        case PendingKind.UPGRADE:
            return "upgrade"
        case _ as never:
            assert_never(never)


def _plan_delete(instance: Instance, now: Now) -> Plan:
    server = instance.server
    if server is None or server.removed:
        return FinishDelete()
    if server.deleted:
        seconds = LOOK if server.disputed is None else LOOK_HELD
        return LookAgain(now.lease + seconds, "its server is removed")
    until = instance.trash_until_wall
    if until is None or now.wall >= until:
        return DeleteServer()
    if server.power is not Power.OFF:
        return StopServer()
    left = until - now.wall
    if away(server, now):
        return LookAgain(now.lease + min(left, LOOK_HELD), "its host is away; it is in the trash")
    if server.seen is None or not isinstance(server.seen.guest, Gone) or not satisfied(server):
        return LookAgain(now.lease + min(left, LOOK), "its server stops")
    if instance.room_mb > 0:
        return Shelve()
    return LookAgain(now.lease + min(left, LOOK_TRASH), "it is in the trash")


def ready(instance: Instance) -> bool:
    """It can be used: the data of the wanted generation is there, what was to be made in it is, and the
    datastore answers."""
    seen = instance.seen
    return (
        seen is not None
        and instance.alive
        and instance.data_recorded
        and seen.data is Thing.PRESENT
        and seen.generation == instance.generation
        and seen.server is ServerState.UP
        and seen.applied
        and seen.restart >= instance.restart
    )


def pending_outcome(instance: Instance, now: Now) -> Outcome | None:
    """Whether what is pending is over, judged by facts alone; None while it goes on."""
    pending, server = instance.pending, instance.server
    if pending is None:
        return None
    if instance.deleted:
        return Outcome("superseded", "the instance was deleted")
    if server is None or server.removed or server.deleted:
        return Outcome("failed", "the server of the instance is gone")
    if upgrade_failed(instance, now) is not None:
        return None  # it goes back first
    if pending.applied is not None:
        if _came_about(instance, server, pending):
            return Outcome("failed" if pending.back else "done", pending.back)
        trouble = final_trouble(server)
        if trouble is not None:
            return Outcome("failed", _after_all(pending, trouble.reason))
    if now.lease >= pending.deadline:
        return Outcome("failed", _after_all(pending, _why_late(instance, server, pending, now)))
    return None


def _after_all(pending: Pending, reason: str) -> str:
    return f"{pending.back}; its former version did not come up either: {reason}" if pending.back else reason


def upgrade_failed(instance: Instance, now: Now) -> str | None:
    """Why an upgrade that host and guest were told of has failed, and its former version counts again; None
    where it goes on, or goes back already."""
    pending, server = instance.pending, instance.server
    if pending is None or pending.kind is not PendingKind.UPGRADE or pending.before is None:
        return None
    if pending.applied is None or pending.back or server is None or server.removed or server.deleted:
        return None
    if instance.deleted or _came_about(instance, server, pending):
        return None
    trouble = final_trouble(server)
    if trouble is not None:
        return f"the upgrade failed: {trouble.reason}"
    seen = instance.seen
    new = instance.guest > pending.guest and instance.alive
    if new and seen is not None and seen.trouble is not None and seen.trouble.final:
        return f"the upgrade failed: {seen.trouble.reason}"
    if now.lease >= pending.deadline:
        return f"the upgrade failed: {_why_late(instance, server, pending, now)}"
    return None


def _came_about(instance: Instance, server: Server, pending: Pending) -> bool:
    """The server is as wanted, and the datastore answers: by the word of an agent that was started since,
    where the guest was."""
    if server.seen is None or server.seen.intent < server.intent or not satisfied(server):
        return False
    return isinstance(server.seen.guest, Running) and instance.guest > pending.guest and ready(instance)


def _why_late(instance: Instance, server: Server, pending: Pending, now: Now) -> str:
    after = f"it did not come about in {pending.deadline - pending.since:.0f} s"
    if server.place is None or away(server, now):
        return f"{after}: its host is away"
    if pending.applied is None:
        return f"{after}: a backup was in its way"
    if not satisfied(server):
        return f"{after}: its server is not up"
    if not instance.alive:
        return f"{after}: its guest agent is silent; the request stands, and is done when it is back"
    return f"{after}: the datastore does not answer"


def blocking(instance: Instance) -> Trouble | None:
    """What its host or its guest said last, where waiting cannot help. What the guest said before it was told
    of a restart or resize counts no more: that may well mend it."""
    server, pending = instance.server, instance.pending
    if server is not None and (trouble := final_trouble(server)) is not None:
        return trouble
    seen = instance.seen
    if seen is None or seen.trouble is None or not seen.trouble.final or seen.server is ServerState.UP:
        return None
    return None if pending is not None and pending.applied is not None else seen.trouble


def host_silent(instance: Instance, now: Now) -> bool:
    """Nothing can be said of it: its host has not spoken for a while."""
    server = instance.server
    if server is None or server.host is None:
        return True
    return server.host.lost or now.lease >= server.host.seen + SILENT
