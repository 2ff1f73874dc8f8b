"""Why an instance is in its state, since when, who holds it, what comes next, and by when (law 10).

A function of the same facts as its status. Where its server has the next step, the server explains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from unstuck.core.instance.control import (
    NO_AGENT,
    busy_until,
    host_silent,
)
from unstuck.core.instance.data import Instance, Pending, PendingKind
from unstuck.core.instance.status import fault_of, status
from unstuck.core.instance.view import Configured, DatabaseView, GuestStep, ServerState
from unstuck.core.server.control import away, satisfied
from unstuck.core.server.data import Power, Server
from unstuck.core.server.explain import NOBODY, Condition, Explanation, Why
from unstuck.core.server.explain import explain as explain_server
from unstuck.core.server.status import host_status
from unstuck.core.time import Now

CONTROL = "the control plane"


def explain(instance: Instance, now: Now) -> Explanation:
    """Why an instance is in its state."""
    shown = status(instance, now)
    why = _why(instance, now)
    ago = None if why.since is None else max(now.lease - why.since, 0.0)
    return Explanation(
        status="DELETED" if instance.removed else shown.status,
        task=None if instance.pending is None else instance.pending.kind.value,
        host_status="" if instance.server is None else host_status(instance.server, now),
        reason=why.reason,
        since_seconds=ago,
        since=None if ago is None else now.wall - ago,
        holder=why.holder,
        next=why.next,
        by_seconds=None if why.by is None else max(why.by - now.lease, 0.0),
        conditions=() if instance.removed else _conditions(instance, now),
    )


def _why(instance: Instance, now: Now) -> Why:
    server = instance.server
    if instance.removed:
        return Why("the instance was deleted, and nothing is left of it", "nothing: this is final")
    if instance.deleted:
        return _deleted(instance, now)
    fault = fault_of(instance)
    if fault is not None:
        return Why(
            fault.reason, f"nothing happens by itself; what helps: {fault.remedy}", since=instance.seen_at
        )
    if server is None or server.removed or server.deleted:
        return Why("its server is gone", "the control plane takes note", CONTROL, by=now.lease)
    if instance.pending is not None:
        return _pending(instance, server, instance.pending, now)
    if instance.launched_wall is None:
        return _built(instance, server, now)
    if host_silent(instance, now):
        return _by_server(server, now, "the instance was seen in this state last; ")
    return _in_use(instance, server, now)


def _deleted(instance: Instance, now: Now) -> Why:
    server, until = instance.server, instance.trash_until_wall
    if server is None or server.removed:
        return Why(
            "its server is gone", "the control plane removes what is left of its row", CONTROL, by=now.lease
        )
    if server.deleted:
        return _by_server(server, now, "the instance is removed: ")
    if until is None or now.wall >= until:
        return Why(
            "the instance is deleted, and its time in the trash is over"
            if until
            else "the instance is deleted",
            "the control plane has its server removed, with the volume; not while the store's clock or "
            "memory is in doubt",
            CONTROL,
            by=now.lease,
        )
    left = until - now.wall
    stands = "it stands still" if server.power is Power.OFF and satisfied(server) else "its server stops"
    return Why(
        f"the instance is deleted and in the trash; {stands}, and its volume is kept",
        "it can be brought back (undelete) until its server is removed with the volume",
        holder=NOBODY,
        by=now.lease + left,
    )


def _by_server(server: Server, now: Now, before: str) -> Why:
    """The server's own explanation."""
    said = explain_server(server, now)
    return Why(
        f"{before}{said.reason}",
        said.next,
        said.holder,
        None if said.since_seconds is None else now.lease - said.since_seconds,
        None if said.by_seconds is None else now.lease + said.by_seconds,
    )


def _word(kind: PendingKind) -> str:
    match kind:
        case PendingKind.RESTART:
            return "the instance is to be restarted"
        case PendingKind.RESIZE:
            return "the instance is to get another flavor"
        case PendingKind.RESIZE_VOLUME:
            return "the instance is to get a larger volume"
        case PendingKind.REBUILD:
            return "the instance is to get another system; its volume stays"
        case PendingKind.UPGRADE:
            return "the instance is to get another version of its datastore; its volume stays"
        case _ as never:
            assert_never(never)


def _pending(instance: Instance, server: Server, pending: Pending, now: Now) -> Why:
    word = f"{pending.back}; it goes back to its former version" if pending.back else _word(pending.kind)
    if pending.applied is None:
        until = busy_until(instance, now)
        backup = instance.backup
        if until is not None and backup is not None and not backup.cancelled:
            return Why(
                f"{word}, and waits for backup {backup.id}, which runs in it",
                "the backup ends, or is cancelled for this",
                CONTROL,
                pending.since,
                pending.patience,
            )
        if away(server, now):
            return _late(_by_server(server, now, f"{word}, and its host is away: "), pending)
        return Why(word, "host and guest are told", CONTROL, pending.since, now.lease)
    if not satisfied(server):
        return _late(_by_server(server, now, f"{word}: "), pending)
    step = (
        "its guest agent has not said anything since" if not instance.alive else _guest_words(instance.seen)
    )
    return Why(
        f"{word}; {step}", "the datastore answers again", _agent(instance), pending.since, pending.deadline
    )


def _late(why: Why, pending: Pending) -> Why:
    return Why(why.reason, why.next, why.holder, pending.since, pending.deadline)


def _built(instance: Instance, server: Server, now: Now) -> Why:
    if server.seen is None or not satisfied(server) or host_silent(instance, now):
        return _by_server(server, now, "the instance is built; its server: ")
    if instance.guest == 0:
        return Why(
            "its server runs, and its guest agent has not said hello yet",
            "the guest agent says hello; if none does in half an hour, the instance fails, saying so",
            NOBODY,
            server.seen_at,
            server.seen_at + NO_AGENT,
        )
    if not instance.alive:
        return Why(
            "its guest agent said hello, and is silent now", "it is started anew", NOBODY, instance.seen_at
        )
    return Why(
        _guest_words(instance.seen), "the datastore answers, with all that was asked for in it",
        _agent(instance), instance.seen_at,
    )  # fmt: skip


_STEPS = {
    GuestStep.LOOKING: "its guest agent looks at what is there",
    GuestStep.MAKING: "its guest agent makes the data",
    GuestStep.RESTORING: "its guest agent restores the backup",
    GuestStep.STARTING: "its guest agent starts the datastore",
    GuestStep.APPLYING: "its guest agent makes databases and users",
    GuestStep.READY: "the datastore is ready",
    GuestStep.RESTARTING: "its guest agent restarts the datastore",
    GuestStep.WAITING: "its guest agent waits",
}


def _guest_words(seen: DatabaseView | None) -> str:
    if seen is None:
        return "its guest agent has not looked yet"
    words = _STEPS[seen.step]
    if seen.total > 0 and seen.step is GuestStep.RESTORING:
        words = f"{words} ({seen.done} of {seen.total} bytes)"
    return words if seen.trouble is None else f"{words}: {seen.trouble.reason}"


def _in_use(instance: Instance, server: Server, now: Now) -> Why:
    seen = instance.seen
    if not satisfied(server):
        return _by_server(server, now, "its server changes: ")
    if server.power is Power.OFF:
        return Why("its server is off", "a restart of the instance starts it", since=server.seen_at)
    if not instance.alive:
        return Why(
            "its guest agent is silent; the database may well be in use",
            "the agent is started anew within its guest; a restart of the instance starts the guest anew",
            _agent(instance),
            instance.seen_at,
        )
    until = busy_until(instance, now)
    if until is not None and instance.backup is not None:
        return Why(
            f"backup {instance.backup.id} runs in it; it can be used meanwhile",
            "the backup goes on, or ends with its reason",
            _agent(instance),
            by=until,
        )
    if seen is not None and seen.server is not ServerState.UP:
        return Why(
            f"its database server is {seen.server.value}; {_guest_words(seen)}",
            "the guest agent brings it up",
            _agent(instance),
            instance.seen_at,
        )
    return Why(
        "the database answers, as it should", "nothing, until somebody asks for something else",
        _agent(instance), instance.seen_at,
    )  # fmt: skip


def _agent(instance: Instance) -> str:
    return NOBODY if instance.guest == 0 else f"guest agent, process {instance.guest}"


def _conditions(instance: Instance, now: Now) -> tuple[Condition, ...]:
    found: list[Condition] = []
    if instance.unreadable:
        found.append(
            Condition(
                "record-unreadable",
                f"the store cannot read {', '.join(instance.unreadable)} of this instance's row",
                "put the column back from a backup of the store; what was seen its agent tells anew",
            )
        )
    if instance.server is not None:
        found += explain_server(instance.server, now).conditions
    seen, failure = instance.seen, instance.failure
    if seen is not None and seen.trouble is not None:
        found.append(Condition(seen.trouble.code, seen.trouble.reason, seen.trouble.remedy))
    if seen is not None and seen.configured is not None:
        found += _configuration(seen.configured)
    if failure is not None:
        found.append(Condition(failure.code, failure.reason, failure.remedy))
    if instance.guest > 0 and not instance.alive and not host_silent(instance, now):
        found.append(
            Condition(
                "agent-silent", "the guest agent has not been heard of for more than a lease",
                "restart the instance; its data is not touched by that",
            )
        )  # fmt: skip
    if instance.protected:
        found.append(Condition("protected", "its owner has protected it from being deleted", "lift that"))
    return tuple(found)


def _configuration(configured: Configured) -> Iterator[Condition]:
    if configured.refused:
        yield Condition(
            "parameters-refused",
            f"its parameters are not used, the last that worked are: {configured.refused}",
            "change them in its configuration group, or give it more memory",
        )
    if configured.waiting:
        yield Condition(
            "restart-required",
            f"these parameters come with the datastore's next start: {', '.join(configured.waiting)}",
            "restart the instance",
        )
