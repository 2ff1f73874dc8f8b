"""A backup is verified by being restored: what comes next. Pure.

The instance that it is restored into is thrown away, whatever comes of it: as long as there is one, the
verification is not settled. What could not be found out says nothing of the backup (law 4).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

LIMIT = 6 * 3600.0
"""Seconds that all of it may take."""
LOOK = 5.0
ASK_LOOK = 1.0
CHECK = 300.0
"""Seconds that reading the restored data may take."""
ASKS = 5
"""Times that the restored database is asked."""
DAMAGED = "backup-damaged"
"""The code of what a restore says that finds a backup damaged."""


class Result(StrEnum):
    SOUND = "sound"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    """It could not be found out."""


class State(StrEnum):
    """The throw-away instance, as it is now."""

    NONE = "none"
    """There has never been one."""
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    LEAVING = "leaving"
    """Its delete is accepted, and not over."""
    GONE = "gone"


class Verdict(msgspec.Struct, frozen=True):
    """``detail``: what was read, in words."""

    result: Result
    reason: str
    detail: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What the last verification of a backup found. ``when``: wall time; ``seconds``: from the request for an
    instance to one that can be used, None where none could."""

    id: str
    when: float
    seconds: float | None
    result: Result
    reason: str
    detail: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """``code``, ``reason``: why the instance failed. ``ask_until``: lease time until which the question that
    was put last is open; ``answer``: what was said to it. Times are lease time."""

    deadline: float
    state: State
    code: str = ""
    reason: str = ""
    backup_deleted: bool = False
    asks: int = 0
    ask_until: float | None = None
    answer: Verdict | None = None
    verdict: Verdict | None = None


class Make(msgspec.Struct, frozen=True, tag=True):
    """Create the throw-away instance, under the ids that the row names."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Have the restored data read."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Write down what came of it: it stands on the backup from then on."""

    verdict: Verdict


class Remove(msgspec.Struct, frozen=True, tag=True):
    """Delete the throw-away instance, without any time in the trash."""


class LookAgain(msgspec.Struct, frozen=True, tag=True):
    at: float
    reason: str


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left of it but its result."""


Plan = Make | Ask | Finish | Remove | LookAgain | Settled


def plan_verification(seen: Verification, now: float) -> Plan:
    """The next step at lease time ``now``."""
    if seen.verdict is not None:
        return _after(seen, now)
    if seen.answer is not None:
        return Finish(seen.answer)
    if seen.backup_deleted:
        return _unknown("the backup was deleted")
    if now >= seen.deadline:
        return _unknown(f"it took longer than it may; at last: {_what(seen)}")
    match seen.state:
        case State.NONE:
            return Make()
        case State.BUILDING:
            return LookAgain(min(now + LOOK, seen.deadline), "it is restored")
        case State.FAILED:
            if seen.code == DAMAGED:
                return Finish(Verdict(Result.DAMAGED, seen.reason))
            return _unknown(f"it could not be restored: {seen.reason}")
        case State.LEAVING | State.GONE:
            return _unknown("the instance that it was restored into was deleted by somebody else")
        case State.READY:
            return _ready(seen, now)


def _ready(seen: Verification, now: float) -> Plan:
    if seen.ask_until is not None and now < seen.ask_until:
        return LookAgain(min(now + ASK_LOOK, seen.deadline), "what was restored is read")
    if seen.asks >= ASKS:
        return _unknown(f"what was restored was asked {ASKS} times and gave no answer")
    return Ask()


def _after(seen: Verification, now: float) -> Plan:
    match seen.state:
        case State.NONE | State.GONE:
            return Settled()
        case State.LEAVING:
            return LookAgain(now + LOOK, "what it was restored into is removed")
        case State.BUILDING | State.READY | State.FAILED:
            return Remove()


def _unknown(reason: str) -> Finish:
    return Finish(Verdict(Result.UNKNOWN, reason))


def _what(seen: Verification) -> str:
    words = {
        State.NONE: "there was no room to restore it", State.BUILDING: "it was restored",
        State.READY: "what was restored was read",
    }  # fmt: skip
    return seen.reason or words.get(seen.state, seen.state.value)
