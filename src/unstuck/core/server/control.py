"""What the control plane does next for one server, and when it has to look again.

The host does everything on the host; the control plane admits, places, finishes deletes and sees to it
that no row is left without a next look (law 2).
"""

from __future__ import annotations

import msgspec

from unstuck.core.server.data import (
    Gone,
    Observation,
    Off,
    Operation,
    OperationKind,
    Paused,
    Power,
    Running,
    Server,
    Step,
    Thing,
)
from unstuck.core.time import Now

AWAY = 60.0
"""Seconds without a word from a host after which it is shown as away."""
NO_HOST_DEADLINE = 300.0
"""Seconds that a server waits for a host with room before it fails."""
PLACE_RETRY = 5.0
AWAITED_RETRY = 1.0
"""Seconds until the next look where hosts have yet to say what they hold."""
IMAGE_FAILED = "image-failed"
"""The trouble of a host that has given up to make an image: no fault of the server."""
STALL = 600.0
"""Seconds of work on one server without progress after which that is shown as a condition."""


class PlaceIt(msgspec.Struct, frozen=True, tag=True):
    """Grant it to a host that has room."""


class FailIt(msgspec.Struct, frozen=True, tag=True):
    """Nobody can take it in time: the end, with reason and remedy; delete always leaves it."""

    code: str
    reason: str
    remedy: str


class FinishDelete(msgspec.Struct, frozen=True, tag=True):
    """The deleted server is gone for its user. ``tombstone``: its host still has to clean up."""

    tombstone: bool


class EndCapture(msgspec.Struct, frozen=True, tag=True):
    """The image that was to be made of its disk has not come in time: it is given up, and removed."""


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Nothing to do until somebody wants or reports something else."""


class LookAgain(msgspec.Struct, frozen=True, tag=True):
    """Somebody else has the next step; look again at ``at`` (lease time) whatever happens."""

    at: float
    reason: str


Plan = PlaceIt | FailIt | FinishDelete | EndCapture | Settled | LookAgain


def plan_control(server: Server, now: Now) -> Plan:
    """The control plane's next step for one server."""
    if server.deleted:
        return _plan_delete(server, now)
    if server.failure is not None and server.place is None:
        return Settled()
    if server.place is None:
        if now.lease >= waiting_since(server) + NO_HOST_DEADLINE:
            return FailIt(
                "no-host",
                "No valid host was found: none that can run it had room for the flavor within five minutes",
                "delete the server; create it again when there is room, or with a smaller flavor",
            )
        return PlaceIt()
    if capture_is_late(server, now):
        return EndCapture()
    if satisfied(server):
        return Settled()
    return _wait_for_host(server, now)


def capture_is_late(server: Server, now: Now) -> bool:
    """No image is made for ever (law 2): its deadline, which moves as long as bytes arrive, is over."""
    operation = server.operation
    if server.capture is None or operation is None or operation.kind is not OperationKind.IMAGE:
        return False
    return now.lease >= operation.deadline


def waiting_since(server: Server) -> float:
    """Since when (lease time) a server without a host waits for one: its creation, or an operator's mark."""
    return server.created if server.waiting is None else server.waiting


def _plan_delete(server: Server, now: Now) -> Plan:
    if server.removed:
        return Settled()
    if server.disputed is not None:
        return Settled()  # the delete is kept, and held until an operator has settled the dispute
    if server.place is None:
        return FinishDelete(tombstone=False)
    if server.seen is not None and server.seen.step is Step.REMOVED:
        return FinishDelete(tombstone=False)
    if away(server, now):
        return FinishDelete(tombstone=True)
    assert server.host is not None
    return LookAgain(server.host.seen + AWAY, "the host removes guest, ports and disk")


def _wait_for_host(server: Server, now: Now) -> LookAgain:
    assert server.host is not None
    if away(server, now):
        return LookAgain(now.lease + AWAY, f"host {server.host.hostname} has been silent for over a minute")
    limit = server.host.seen + AWAY
    if server.operation is not None and server.operation.deadline > now.lease:
        limit = min(limit, server.operation.deadline)
    if server.work_deadline is not None and server.work_deadline > now.lease:
        limit = min(limit, server.work_deadline)
    return LookAgain(limit, "the host agent works on it")


def away(server: Server, now: Now) -> bool:
    """The host has been silent for so long that people should be told (never a reason to act on guests)."""
    host = server.host
    return host is not None and (host.lost or now.lease >= host.seen + AWAY)


def satisfied(server: Server) -> bool:
    """What the host last saw is what the user wants, or can only be changed by the user."""
    seen = server.seen
    if seen is None or seen.intent < server.intent:
        return False
    if seen.trouble is not None and seen.trouble.final:
        return True
    return reached(server, seen)


def reached(server: Server, seen: Observation) -> bool:
    """The observed guest is what power and edge ask for, on the disk that is wanted; no image is missing."""
    if server.capture is not None:
        return False
    match seen.guest:
        case Running(at):
            return server.power is Power.ON and at >= server.edge and server.disk_recorded
        case Paused(at):
            return server.power is Power.PAUSED and at >= server.edge and server.disk_recorded
        case Off():
            return False
        case Gone():
            # The disk of a server that never had one is not missed; a rebuild asks for one, and is over
            # when what it replaced is gone too.
            if server.power is Power.SUSPENDED:
                return seen.memory is Thing.PRESENT
            # A resize is over when the disk has grown. Both are when the host rests.
            at_rest = seen.step is Step.AT_REST
            rebuilt = not server.replaced or (server.disk_recorded and at_rest)
            return server.power is Power.OFF and rebuilt and (server.before is None or at_rest)
        case _:
            return False


class Outcome(msgspec.Struct, frozen=True):
    """How an operation ended: ``done``, ``superseded`` or ``failed``, and why."""

    state: str
    reason: str


def operation_outcome(server: Server, operation: Operation) -> Outcome | None:
    """Whether an open operation is over, judged by facts alone; None while it goes on."""
    seen = server.seen
    if server.deleted:
        if operation.kind is not OperationKind.DELETE:
            return Outcome("superseded", "the server was deleted")
        return Outcome("done", "") if server.removed else None
    if server.failure is not None and server.place is None:
        return Outcome("failed", server.failure.reason)
    if seen is None or seen.intent < server.intent:
        return None
    if seen.trouble is not None and (seen.trouble.final or seen.trouble.code == IMAGE_FAILED):
        return Outcome("failed", seen.trouble.reason)
    if reached(server, seen):
        return Outcome("done", "")
    return None
