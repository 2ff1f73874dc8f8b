"""How a backup's facts change: each function is one thing that happened, as of lease time ``now``.

They refuse what is late instead of repairing it: a report of an attempt that was given up, a claim of
one that somebody else holds, anything after the end (law 5).
"""

from __future__ import annotations

import msgspec

from unstuck.core.backup.data import (
    Absent,
    Attempt,
    Backup,
    Claimed,
    Done,
    Ended,
    Ending,
    Gave,
    Phase,
    Present,
    Rotten,
    StoreSaid,
    Unanswered,
    Verified,
)

UPLOAD_AT_LONGEST = 600.0
"""Seconds after which an upload that was under way when its attempt ended can no longer arrive."""


class Late(Exception):
    """It belongs to an attempt that is over, or to an incarnation that is not the last one."""


def claim(backup: Backup, nonce: str, incarnation: int, now: float) -> Backup:
    """An agent takes the attempt. The same incarnation asking again gets the same grant."""
    attempt = _live(backup, nonce)
    if attempt.claimed is not None and attempt.claimed.incarnation == incarnation:
        return _with(backup, attempt, claimed=msgspec.structs.replace(attempt.claimed, heard=now))
    if attempt.claimed is not None:
        raise Late("another incarnation of the agent has it")
    return _with(backup, attempt, claimed=Claimed(incarnation, now, now, Phase.STARTING))


def renew(
    backup: Backup, nonce: str, incarnation: int, phase: Phase, size: int, idle: float, now: float,
    put_off: str = "",
) -> Backup:  # fmt: skip
    """The agent lives; ``idle`` is the age of its last progress in seconds, by its own count."""
    attempt = _mine(backup, nonce, incarnation)
    assert attempt.claimed is not None
    before = attempt.claimed
    # Never back: a word that was delayed on its way would make work look older than it is.
    moved = max(before.moved, now - max(idle, 0.0))
    claimed = Claimed(incarnation, now, moved, phase, max(size, before.bytes), put_off)
    return _with(backup, attempt, claimed=claimed)


def report(backup: Backup, nonce: str, incarnation: int, said: Done | Gave, now: float) -> Backup:
    """How the attempt ended, by its agent. The first word counts; the same again is no news at any time."""
    latest = backup.attempt
    if latest.nonce == nonce and latest.report is not None and _holds(latest, incarnation):
        return backup
    attempt = _mine(backup, nonce, incarnation)
    assert attempt.claimed is not None
    claimed = msgspec.structs.replace(attempt.claimed, heard=now)
    return _with(backup, attempt, claimed=claimed, report=said)


def superseded(backup: Backup, incarnation: int) -> Backup:
    """A newer incarnation of the agent has registered: what an older one held is given up at once."""
    claimed = backup.attempt.claimed
    if backup.ended is not None or backup.attempt.report is not None:
        return backup
    if claimed is None or claimed.incarnation >= incarnation:
        return backup
    return _with(backup, backup.attempt, report=Gave("its agent was started anew"))


def next_attempt(backup: Backup, nonce: str, now: float) -> Backup:
    """Offer another run under a name of its own; what the last one left is litter."""
    if backup.ended is not None:
        raise Late("the backup has ended")
    attempt = Attempt(backup.attempt.number + 1, nonce, now)
    return msgspec.structs.replace(
        backup, attempt=attempt, store=None, verdict=None, verify_since=None, litter=True
    )


def store_said(backup: Backup, said: StoreSaid) -> Backup:
    """An answer of the blob store; of several that say nothing, the first one's time counts."""
    if backup.ended is not None:
        return backup
    if isinstance(said, Unanswered) and isinstance(backup.store, Unanswered):
        said = Unanswered(backup.store.since, said.reason)
    if isinstance(backup.store, Present) and not isinstance(said, Present | Absent):
        return backup
    return msgspec.structs.replace(backup, store=said)


def verifying(backup: Backup, now: float) -> Backup:
    """A controller has begun; its time runs from the first of them."""
    since = backup.verify_since if backup.verify_since is not None else now
    return backup if backup.ended is not None else msgspec.structs.replace(backup, verify_since=since)


def verifier_vanished(backup: Backup, now: float) -> Backup:
    """A controller's lease is over and it has said nothing. Its successor tries; then the deadline counts."""
    if backup.ended is not None or backup.verify_since is None or backup.verdict is not None:
        return backup
    return msgspec.structs.replace(backup, verdict=Unanswered(now, "the controller that asked has vanished"))


def verified(backup: Backup, verdict: Verified | Rotten | Unanswered) -> Backup:
    if backup.ended is not None:
        return backup
    return msgspec.structs.replace(backup, verdict=verdict)


def end(backup: Backup, ended: Ended, now: float) -> Backup:
    """The first end stands."""
    if backup.ended is not None:
        return backup
    dirty = ended.ending is Ending.FAILED or backup.attempt.number > 1
    return msgspec.structs.replace(
        backup, ended=ended, litter=dirty, collect_after=now + UPLOAD_AT_LONGEST if dirty else now
    )


def collected(backup: Backup, now: float) -> Backup:
    """A complete listing after the removal was empty. What arrives later is for the next time."""
    return msgspec.structs.replace(backup, swept=True, litter=now < backup.collect_after, trouble=None)


def not_collected(backup: Backup, reason: str) -> Backup:
    return msgspec.structs.replace(backup, trouble=reason)


def cancel(backup: Backup, now: float, reason: str = "") -> Backup:
    """Somebody wants it stopped; the end comes with the agent's answer, or without it soon after."""
    if backup.ended is not None or backup.cancelled:
        return backup
    stop = _first_stop(backup, now)
    return msgspec.structs.replace(backup, cancelled=True, cancel_reason=reason, stop_since=stop)


def instance_deleted(backup: Backup, now: float) -> Backup:
    if backup.ended is not None:
        return backup
    return msgspec.structs.replace(backup, instance_gone=True, stop_since=_first_stop(backup, now))


def delete(backup: Backup, now: float) -> Backup:
    """Accepted in every state, and final for its user at once."""
    if backup.deleted:
        return backup
    stop = _first_stop(backup, now)
    return msgspec.structs.replace(backup, deleted=True, litter=True, swept=False, stop_since=stop)


def _first_stop(backup: Backup, now: float) -> float:
    return now if backup.stop_since is None else backup.stop_since


def _holds(attempt: Attempt, incarnation: int) -> bool:
    return attempt.claimed is not None and attempt.claimed.incarnation == incarnation


def _live(backup: Backup, nonce: str) -> Attempt:
    if backup.ended is not None or backup.attempt.nonce != nonce or backup.attempt.report is not None:
        raise Late("this attempt is over")
    return backup.attempt


def _mine(backup: Backup, nonce: str, incarnation: int) -> Attempt:
    if backup.ended is not None or backup.attempt.nonce != nonce:
        raise Late("this attempt is over")
    claimed = backup.attempt.claimed
    if claimed is None or claimed.incarnation != incarnation:
        raise Late("another incarnation of the agent has it")
    return backup.attempt


def _with(backup: Backup, attempt: Attempt, **changes: object) -> Backup:
    return msgspec.structs.replace(backup, attempt=msgspec.structs.replace(attempt, **changes))
