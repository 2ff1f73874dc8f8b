"""Every state explains itself (law 10): why, since when, who holds it, what comes next, and by when.

A function of the same facts as the status, total over them; nothing here is stored either.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from unstuck.core.generation import Awaited, Dispute
from unstuck.core.server.control import (
    AWAY,
    NO_HOST_DEADLINE,
    STALL,
    away,
    satisfied,
    waiting_since,
)
from unstuck.core.server.data import (
    Gone,
    Guest,
    Mute,
    Off,
    OperationKind,
    Paused,
    Power,
    Running,
    Server,
    Shelf,
    Step,
    Trouble,
    Unclear,
)
from unstuck.core.server.status import MARKED, SILENT, final_trouble, status
from unstuck.core.time import Now

NOBODY = "nobody"


class Condition(msgspec.Struct, frozen=True):
    """Something that people should know of besides the status."""

    code: str
    message: str
    remedy: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``since_seconds`` and ``by_seconds`` are from now; ``since`` is wall time. None where there is none."""

    status: str
    task: str | None
    host_status: str
    reason: str
    since_seconds: float | None
    since: float | None
    holder: str
    next: str
    by_seconds: float | None
    conditions: tuple[Condition, ...] = ()


class Why(msgspec.Struct, frozen=True):
    """The part of an explanation that differs by state. ``since`` and ``by`` are lease times."""

    reason: str
    next: str
    holder: str = NOBODY
    since: float | None = None
    by: float | None = None


def explain(server: Server, now: Now) -> Explanation:
    """Why a server is in its state."""
    shown = status(server, now)
    why = _why(server, now)
    ago = None if why.since is None else max(now.lease - why.since, 0.0)
    return Explanation(
        status=shown.status,
        task=shown.task_state,
        host_status=shown.host_status,
        reason=why.reason,
        since_seconds=ago,
        since=None if ago is None else now.wall - ago,
        holder=why.holder,
        next=why.next,
        by_seconds=None if why.by is None else max(why.by - now.lease, 0.0),
        conditions=_conditions(server, now),
    )


def _why(server: Server, now: Now) -> Why:
    if server.removed:
        return _removed()
    if server.deleted and server.disputed is not None:
        return Why(
            "the server is to be deleted; store and host do not agree on it, and until that is settled "
            "nothing of it is removed",
            "an administrator settles it with `unstuck doctor`",
            since=server.operation.since if server.operation else None,
        )
    if server.deleted:
        return _deleting(server, now)
    if server.place is None:
        return _unplaced(server)
    if away(server, now):
        return _silent(server, now)
    trouble = final_trouble(server)
    if trouble is not None:
        return _final(server, trouble)
    if satisfied(server):
        return _at_rest(server)
    return _working(server)


def _removed() -> Why:
    return Why("the server was deleted, and nothing is left of it", "nothing: this is final")


def buried(told: Explanation, hostname: str) -> Explanation:
    """Of a deleted server with a tombstone: for its user it is gone, on its host it may not be."""
    return msgspec.structs.replace(
        told,
        reason=f"the server was deleted while its host {hostname} was silent; its address and its room there "
        "stay taken until the host was seen without it (a tombstone)",
        holder=f"host agent on {hostname}",
        next="when the agent is back it removes what is left and reports; then address and room are free",
    )


def held_back(told: Explanation, awaited: Awaited, now: Now) -> Explanation:
    """Of a server without a host, while hosts have yet to say what they hold."""
    names = ", ".join(awaited.hosts)
    by = None if awaited.until is None else max(awaited.until - now.lease, 0.0)
    if by is None:
        following = "it goes on when they have; a host that will not come back has to be disabled"
    else:
        following = f"it goes on when they have, or after {by:.0f} s without those that are silent"
    what = f"{names} has not said yet what it holds, since the store was opened"
    waits = Condition(
        "host-unheard",
        f"{what}: it may have this server, or use its address",
        "start the agent there, or disable it",
    )
    return msgspec.structs.replace(
        told, reason=f"{told.reason}; {what}", holder="the control plane", next=following, by_seconds=by,
        conditions=(*told.conditions, waits),
    )  # fmt: skip


def readdressed(told: Explanation, reasons: list[str]) -> Explanation:
    """Of a server that was given other addresses than it had at first."""
    found = tuple(
        Condition("readdressed", reason, "nothing has to be done: it was never started with the other one")
        for reason in reasons
    )
    return msgspec.structs.replace(told, conditions=(*told.conditions, *found))


def _deleting(server: Server, now: Now) -> Why:
    since = server.operation.since if server.operation else None
    if server.place is None:
        return Why(
            "the server is to be deleted, and no host has anything of it",
            "the control plane removes it",
            holder="the control plane",
            since=since,
            by=now.lease,
        )
    assert server.host is not None
    if away(server, now):
        return Why(
            f"the server is to be deleted, but {_quiet(server, now)}",
            "the control plane removes it for its user and leaves a tombstone: when the host is back it "
            "removes what is left, and only then the address is free again",
            holder="the control plane",
            since=since,
            by=now.lease,
        )
    return Why(
        f"the server is to be deleted; the host agent on {server.host.hostname} removes guest, ports, disk",
        "the host reports it removed; if it is silent for a minute, the server is removed with a tombstone",
        holder=_holder(server),
        since=since,
        by=server.host.seen + AWAY,
    )


def _unplaced(server: Server) -> Why:
    if server.failure is not None:
        return Why(
            server.failure.reason,
            f"nothing happens by itself; what helps: {server.failure.remedy}",
            since=waiting_since(server) + (NO_HOST_DEADLINE if server.failure.code == "no-host" else 0.0),
        )
    return Why(
        "the server waits for a host with room for its flavor",
        "the control plane looks for a host every few seconds; if none has room in time it fails, saying so",
        holder="the control plane",
        since=waiting_since(server),
        by=waiting_since(server) + NO_HOST_DEADLINE,
    )


def _quiet(server: Server, now: Now) -> str:
    assert server.host is not None
    if server.host.lost:
        return f"the host {server.host.hostname} was declared lost by an operator"
    return (
        f"the host agent on {server.host.hostname} has been silent for {now.lease - server.host.seen:.0f} s"
    )


def _silent(server: Server, now: Now) -> Why:
    assert server.host is not None
    started = server.disk_recorded or server.launched_wall is not None
    # What it last said may be older than what it did: it may have started a guest and not come to say so.
    guest = (
        "a guest that was started there runs on" if started else "if a guest was started there, it runs on"
    )
    wanted = "" if satisfied(server) else "; what was asked for waits for it"
    return Why(
        f"{_quiet(server, now)}; {guest}{wanted}",
        "when the agent is back it looks and reports; delete is accepted at once",
        since=server.host.seen,
    )


def _final(server: Server, trouble: Trouble) -> Why:
    return Why(
        trouble.reason,
        f"nothing happens by itself; what helps: {trouble.remedy}",
        holder=_holder(server),
        since=server.seen_at,
    )


def _at_rest(server: Server) -> Why:
    assert server.seen is not None
    if server.before is not None:
        return Why(
            f"the server has its new flavor, and {_guest_words(server.seen.guest, server.power)}; room for "
            "the former one is kept",
            "its user confirms the resize, or takes it back",
            holder=_holder(server),
            since=server.seen_at,
        )
    if server.shelved is not None:
        room = "all of its room" if server.shelved is Shelf.KEPT else "only the room of its disk"
        return Why(
            f"the server is shelved, with {room} kept on its host: "
            f"{_guest_words(server.seen.guest, server.power)}",
            "its user unshelves it",
            holder=_holder(server),
            since=server.seen_at,
        )
    return Why(
        _guest_words(server.seen.guest, server.power),
        "nothing, until somebody asks for something else or the guest changes",
        holder=_holder(server),
        since=server.seen_at,
    )


def _guest_words(guest: Guest, power: Power) -> str:
    match guest:
        case Running():
            return "the guest runs, as it should"
        case Paused():
            return "the guest is paused, as it should be"
        case Off():
            return "the guest powered itself off"
        case Mute():
            return "the guest process lives but does not answer"
        case Gone():
            if power is Power.SUSPENDED:
                return "the guest's memory waits on the disk, and no process runs, as it should be"
            return "the guest is off, as it should be" if power is Power.OFF else "the guest does not run"
        case Unclear(reason):
            return f"the guest's state cannot be seen: {reason}"
        case _ as never:
            assert_never(never)


_STEPS = {
    Step.CLAIMED: ("the host has begun", "it looks at what is there"),
    Step.FETCHING: ("the host fetches the image", "it verifies the image and makes the root disk"),
    Step.DISK: ("the host makes the root disk", "it makes the port and starts the guest"),
    Step.NETWORK: ("the host makes the port", "it starts the guest"),
    Step.STARTING: ("the host starts the guest", "the guest is seen running"),
    Step.SAVING: ("the host saves the guest's memory", "it is whole on the disk, and the process has ended"),
    Step.CAPTURING: ("the host makes an image of the disk and delivers it", "the image is active"),
    Step.PAUSING: ("the host pauses the guest", "the guest is seen standing still"),
    Step.STOPPING: ("the host ends the guest process", "the guest is seen to be gone"),
    Step.REMOVING: ("the host removes guest, ports and disk", "the host reports it removed"),
    Step.AT_REST: ("the host has reported and takes up what was asked for", "it acts on what was asked for"),
    Step.WAITING: ("the host waits", "it looks again"),
    Step.REMOVED: ("the host has removed it", "the control plane takes note"),
}


def _working(server: Server) -> Why:
    assert server.host is not None
    seen, operation = server.seen, server.operation
    since = operation.since if operation is not None else server.seen_at
    limits = [operation.deadline] if operation is not None else []
    if server.work_deadline is not None:
        limits.append(server.work_deadline)
    by = min(limits, default=server.host.seen + AWAY)
    if seen is None:
        taken = server.lease_incarnation is not None
        reason = "the host has claimed the server" if taken else "the server was given to the host"
        return Why(reason, "the host agent fetches the image and starts", _holder(server), since, by)
    if operation is None and isinstance(seen.guest, Off):
        return Why(
            "the guest powered itself off; the host clears its process away",
            "the guest process is seen to be gone",
            _holder(server),
            since,
            by,
        )
    if seen.intent < server.intent:
        return Why(
            f"{_asked(operation.kind if operation else None)}; the host has not acted on it yet",
            "the host agent hears of it, acts and reports",
            _holder(server),
            since,
            by,
        )
    reason, following = _STEPS[seen.step]
    if seen.step is Step.DISK and server.disk_recorded:
        # The report of a disk is the last one before the guest runs: a host that is silent since may have
        # come further (docs/demo.txt).
        reason = (
            "the root disk is made and recorded; the host makes the port and starts the guest, or just has"
        )
        following = "the host reports that the guest runs"
    if seen.trouble is not None:
        reason = f"{reason}: {seen.trouble.reason}"
    if isinstance(seen.guest, Gone) and seen.guest.last_error:
        reason = f"{reason} (the last start failed: {seen.guest.last_error})"
    return Why(reason, following, _holder(server), since, by)


def _asked(kind: OperationKind | None) -> str:
    match kind:
        case OperationKind.STOP:
            return "the server is to be stopped"
        case OperationKind.START:
            return "the server is to be started"
        case OperationKind.REBOOT:
            return "the server is to be rebooted"
        case OperationKind.PAUSE:
            return "the server is to be paused"
        case OperationKind.UNPAUSE:
            return "the server is to be unpaused"
        case OperationKind.SUSPEND:
            return "the server is to be suspended"
        case OperationKind.RESUME:
            return "the server is to be resumed"
        case OperationKind.REBUILD:
            return "the server is to be rebuilt"
        case OperationKind.RESIZE:
            return "the server is to get another flavor"
        case OperationKind.CONFIRM:
            return "the server keeps its new flavor"
        case OperationKind.IMAGE:
            return "an image is to be made of the server's disk"
        case OperationKind.SHELVE:
            return "the server is to be shelved"
        case OperationKind.OFFLOAD:
            return "the server gives up its CPUs and memory"
        case OperationKind.UNSHELVE:
            return "the server is to be unshelved"
        case OperationKind.REVERT:
            return "the server is to get its former flavor again"
        case OperationKind.LOCK | OperationKind.UNLOCK | OperationKind.RESET:
            return "the server is looked at anew"
        case OperationKind.READDRESS:
            return "the server gets another address"
        case OperationKind.CREATE:
            return "the server is to be built"
        case OperationKind.DELETE:
            return "the server is to be deleted"
        case None:
            return "something else is wanted of the server"
        case _ as never:
            assert_never(never)


def _holder(server: Server) -> str:
    if server.host is None:
        return NOBODY
    return f"host agent on {server.host.hostname}, incarnation {server.host.incarnation}"


def _disputed(kind: Dispute, deleted: bool) -> Condition:
    match kind:
        case Dispute.UNKNOWN:
            what = "the store was set back and had lost this server; it was adopted as its host has it"
        case Dispute.MISSING:
            what = (
                "the store was set back, and the server's host has no disk of it: it was deleted since the "
                "copy was made, or its disk was lost"
            )
        case _ as never:
            assert_never(never)
    held = "; its delete is kept and held until then" if deleted else ""
    return Condition("disputed", what, f"an administrator settles it with `unstuck doctor`{held}")


def _conditions(server: Server, now: Now) -> tuple[Condition, ...]:
    if server.removed:
        return ()
    found: list[Condition] = []
    if server.disputed is not None:
        found.append(_disputed(server.disputed, server.deleted))
    if server.unreadable:
        what = f"the store cannot read {', '.join(server.unreadable)} of this server's row"
        remedy = (
            "put the column back from a backup of the store, or delete the server; others are not touched"
        )
        found.append(Condition("record-unreadable", what, remedy))
    if server.host is not None and (server.host.lost or now.lease >= server.host.seen + SILENT):
        code = "host-away" if away(server, now) else "host-silent"
        found.append(
            Condition(
                code, _quiet(server, now), "look at the host and its agent; no guest is touched meanwhile"
            )
        )
    if server.seen is not None and server.seen.trouble is not None:
        trouble = server.seen.trouble
        found.append(Condition(trouble.code, trouble.reason, trouble.remedy))
    if server.marked_wall is not None:
        found.append(Condition("marked", *MARKED))
    if server.locked is not None:
        who = "an administrator" if server.locked.by_admin else "its owner"
        why = f": {server.locked.reason}" if server.locked.reason else ""
        found.append(Condition("locked", f"locked by {who}, so that no member changes it{why}", "unlock it"))
    if server.failure is not None:
        found.append(Condition(server.failure.code, server.failure.reason, server.failure.remedy))
    if server.operation is not None and now.lease > server.operation.deadline:
        late = now.lease - server.operation.deadline
        found.append(
            Condition(
                "overdue",
                f"{_asked(server.operation.kind)}, and that is {late:.0f} s later than it should be",
                "see the reason; delete is accepted at any time",
            )
        )
    if server.work_deadline is not None and now.lease > server.work_deadline:
        found.append(
            Condition("stalled", f"the host has made no progress for {STALL:.0f} s", "look at the host's log")
        )
    return tuple(found)
