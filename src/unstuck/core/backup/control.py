"""What the control plane does next for one backup. Total: no state without a next look or an end.

Nobody comes, nobody renews, nothing moves: the blob store is asked for a manifest first, because a finished
backup is never thrown away for a lost report; then the next attempt is offered, or the backup ends with its
reason. The instance is usable all along, whatever happens here.
"""

from __future__ import annotations

from typing import assert_never

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
    Unanswered,
    Verified,
)

LEASE = 30.0
"""Seconds without a word from its agent after which an attempt belongs to nobody."""
STOP = 60.0
"""Seconds that an agent has to stop what is not wanted any more; then it is given up as it is."""
ASK_AGAIN = 5.0
"""Seconds between two questions to a blob store that does not answer."""
KEPT = 3600.0
"""Seconds between two looks at a deleted backup that is kept for its children; the last one's end is told."""


class NextAttempt(msgspec.Struct, frozen=True, tag=True):
    """Offer another attempt, under a new nonce; why the last one was given up."""

    reason: str


class AskStore(msgspec.Struct, frozen=True, tag=True):
    """Look for a manifest of any attempt, the newest first."""

    why: str


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Read the manifest and list the objects, under a lease of the controller's own."""

    attempt: int
    digest: str


class End(msgspec.Struct, frozen=True, tag=True):
    """Finish it, once and for all."""

    ended: Ended


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Remove the objects that nothing refers to: of dead attempts, or all of a deleted backup."""

    everything: bool


class LookAgain(msgspec.Struct, frozen=True, tag=True):
    """Somebody else has the next step; look again at ``at`` whatever happens."""

    at: float
    reason: str


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left to do."""


Plan = NextAttempt | AskStore | Verify | End | Collect | LookAgain | Settled


def plan_backup(backup: Backup, now: float) -> Plan:
    """The next step for one backup, at lease time ``now``."""
    if backup.ended is not None:
        return _after_the_end(backup, now)
    if backup.verdict is not None or backup.verify_since is not None:
        return _verifying(backup, now)
    attempt = backup.attempt
    if isinstance(attempt.report, Done):
        return _unless_deleted(backup) or Verify(attempt.number, attempt.report.digest)
    if attempt.claimed is None:
        return _unclaimed(backup, attempt, now)
    return _claimed(backup, attempt, attempt.claimed, now)


def stop_wanted(backup: Backup) -> str | None:
    """Why the agent that runs it should stop, told with every answer to it; None while it should go on."""
    if backup.deleted:
        return "the backup was deleted"
    if backup.cancelled:
        return backup.cancel_reason or "the backup was cancelled"
    if backup.instance_gone:
        return "the instance was deleted"
    return None


def stalled_at(backup: Backup, claimed: Claimed) -> float:
    """When the attempt counts as stuck unless it moves."""
    return claimed.moved + backup.limits.stalls[claimed.phase]


def put_off(claimed: Claimed) -> str:
    """What the blob store said last, as the end of a sentence; empty while it takes pieces."""
    return f": {claimed.put_off}" if claimed.put_off else ""


def _total_at(backup: Backup) -> float | None:
    return None if backup.limits.total is None else backup.created + backup.limits.total


def _unclaimed(backup: Backup, attempt: Attempt, now: float) -> Plan:
    if (reason := stop_wanted(backup)) is not None:
        return _end_or_ask(backup, reason, now)
    if now >= attempt.granted + backup.limits.claim:
        waited = f"no agent of the instance took it within {backup.limits.claim:.0f} s"
        return _end_or_ask(backup, waited, now)
    total = _total_at(backup)
    if total is not None and now >= total:
        return _end_or_ask(backup, "it took longer than it was given in all", now)
    return LookAgain(_first(attempt.granted + backup.limits.claim, total), "the instance's agent takes it")


def _claimed(backup: Backup, attempt: Attempt, claimed: Claimed, now: float) -> Plan:
    """Somebody runs it, or did."""
    total = _total_at(backup)
    stop = stop_wanted(backup)
    stop_at = None if stop is None or backup.stop_since is None else backup.stop_since + STOP
    if isinstance(attempt.report, Gave):
        retry = stop is None and not attempt.report.final
        return _give_up(backup, stop or attempt.report.reason, now, retry=retry)
    if now >= claimed.heard + LEASE:
        return _give_up(backup, stop or "its agent was not heard of any more", now, retry=stop is None)
    if stop is not None and stop_at is not None and now >= stop_at:
        return _give_up(backup, stop, now, retry=False)
    if now >= stalled_at(backup, claimed):
        limit = backup.limits.stalls[claimed.phase]
        stuck = f"{_word(claimed.phase)} and nothing moved for {limit:.0f} s{put_off(claimed)}"
        return _give_up(backup, stop or stuck, now, retry=stop is None)
    if total is not None and now >= total:
        return _give_up(backup, "it took longer than it was given in all", now, retry=False)
    until = _first(claimed.heard + LEASE, stalled_at(backup, claimed), total, stop_at)
    return LookAgain(until, "its agent stops it" if stop else "its agent works on it")


def _give_up(backup: Backup, reason: str, now: float, *, retry: bool) -> Plan:
    """The attempt is over for us; but it may have ended well unheard."""
    return _found(backup, reason, now) or (
        NextAttempt(reason)
        if retry and backup.attempt.number < backup.limits.attempts
        else End(Ended(Ending.FAILED, reason))
    )


def _end_or_ask(backup: Backup, reason: str, now: float) -> Plan:
    """Nobody runs the latest attempt; an earlier one may have ended well unheard."""
    if backup.attempt.number == 1 and not backup.set_back:
        return End(Ended(Ending.FAILED, reason))  # nobody ever began
    return _found(backup, reason, now) or End(Ended(Ending.FAILED, reason))


def _found(backup: Backup, reason: str, now: float) -> Plan | None:
    """What the blob store knows comes first; None when it has nothing, or has not answered for too long."""
    if backup.deleted:
        return None
    match backup.store:
        case Present(attempt, digest):
            return Verify(attempt, digest)
        case Absent(attempt) if attempt >= backup.attempt.number:
            return None
        case Unanswered(since, _) if now >= since + backup.limits.unknown:
            return None
        case Absent() | Unanswered() | None:
            return AskStore(reason)
        case _ as never:
            assert_never(never)


def _verifying(backup: Backup, now: float) -> Plan:
    if (ends := _unless_deleted(backup)) is not None:
        return ends
    match backup.verdict:
        case Verified():
            return End(Ended(Ending.COMPLETED, ""))
        case Rotten(reason):
            return _rotten(backup, reason)
        case None:
            return _verify_again(backup)  # nobody has tried to its end: that is not the backup's fault
        case Unanswered(_, reason):
            assert backup.verify_since is not None
            if now >= backup.verify_since + backup.limits.verify:
                return End(Ended(Ending.FAILED, f"it could not be verified in time: {reason}"))
            return _verify_again(backup)
        case _ as never:
            assert_never(never)


def _verify_again(backup: Backup) -> Plan:
    match backup.attempt.report, backup.store:
        case Done(digest), _:
            return Verify(backup.attempt.number, digest)
        case _, Present(attempt, digest):
            return Verify(attempt, digest)
        case _:
            return AskStore("a manifest was seen")


def _rotten(backup: Backup, reason: str) -> Plan:
    if stop_wanted(backup) is None and backup.attempt.number < backup.limits.attempts:
        return NextAttempt(reason)
    return End(Ended(Ending.FAILED, reason))


def _unless_deleted(backup: Backup) -> Plan | None:
    """A backup that is complete may be cancelled too late; deleted, it is never completed."""
    return End(Ended(Ending.FAILED, "the backup was deleted")) if backup.deleted else None


def _after_the_end(backup: Backup, now: float) -> Plan:
    """Objects of dead attempts go when it ends, and once more when no late upload can arrive any more.

    A reader is one that was heard of lately (``readers``), so that it holds nothing up for ever. A child
    holds its parent's objects until it has gone itself, or has failed.
    """
    assert backup.ended is not None
    everything = backup.deleted or backup.ended.ending is Ending.FAILED
    if not backup.litter:
        return Settled()
    if backup.deleted and backup.readers:
        return LookAgain(now + ASK_AGAIN, "somebody reads it")
    if backup.deleted and backup.children and backup.ended.ending is Ending.COMPLETED:
        return LookAgain(now + KEPT, "incremental backups need it")
    if backup.swept and now < backup.collect_after:
        return LookAgain(backup.collect_after, "late uploads can still arrive")
    return Collect(everything)


def _first(*times: float | None) -> float:
    return min(time for time in times if time is not None)


def _word(phase: Phase) -> str:
    """For a sentence that goes on with "and nothing moved"."""
    match phase:
        case Phase.STARTING:
            return "it waited for the server to begin a backup"
        case Phase.COPYING:
            return "it copied the data"
        case Phase.FINISHING:
            return "it waited for the server to end the backup"
        case Phase.UPLOADING:
            return "it waited for the blob store"
        case _ as never:
            assert_never(never)
