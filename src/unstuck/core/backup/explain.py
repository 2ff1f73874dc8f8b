"""Why a backup is in its state, who holds it, what comes next and by when (law 10). Pure."""

from __future__ import annotations

from typing import assert_never

import msgspec

from unstuck.core.backup.control import (
    AskStore,
    Collect,
    End,
    LookAgain,
    NextAttempt,
    Settled,
    Verify,
    plan_backup,
    put_off,
    stop_wanted,
)
from unstuck.core.backup.data import Backup, Unanswered


class Explained(msgspec.Struct, frozen=True):
    """``by``: lease time at which somebody looks again whatever happens; None when nothing is to come."""

    why: str
    holder: str
    next: str
    by: float | None


def explain(backup: Backup, now: float) -> Explained:
    plan = plan_backup(backup, now)
    match plan:
        case Settled():
            return Explained(_ended(backup), "nobody", "nothing", None)
        case LookAgain(at, reason):
            return Explained(_why(backup), _holder(backup), reason, at)
        case NextAttempt(reason):
            return Explained(reason, "the control plane", "another attempt is offered", now)
        case AskStore(why):
            return Explained(_away(backup) or why, "the control plane", "the blob store is asked", now)
        case Verify(attempt, _):
            what = f"attempt {attempt} has written its manifest"
            return Explained(_away(backup) or what, "the control plane", "it is verified", now)
        case End(ended):
            return Explained(ended.reason or "it is verified", "the control plane", "it ends", now)
        case Collect():
            trouble = f"; it could not be removed: {backup.trouble}" if backup.trouble else ""
            why = f"{_ended(backup)}{trouble}"
            return Explained(why, "the control plane", "what is left in the blob store is removed", now)
        case _ as never:
            assert_never(never)


def _why(backup: Backup) -> str:
    if backup.ended is not None:
        return _ended(backup)
    number, most = backup.attempt.number, backup.limits.attempts
    run = f"attempt {number} of {most}"
    stop = stop_wanted(backup)
    if stop is not None:
        return f"{run} is to stop: {stop}"
    claimed = backup.attempt.claimed
    if claimed is None:
        return f"{run} is offered"
    return f"{run} is {claimed.phase.value}, {claimed.bytes} bytes so far{put_off(claimed)}"


def _ended(backup: Backup) -> str:
    assert backup.ended is not None
    if backup.deleted:
        return "it was deleted"
    return backup.ended.reason or "it is complete and verified"


def _holder(backup: Backup) -> str:
    if backup.ended is not None or backup.attempt.claimed is None:
        return "nobody"
    return f"incarnation {backup.attempt.claimed.incarnation} of the instance's agent"


def _away(backup: Backup) -> str | None:
    """What the blob store said last, if that was nothing."""
    for said in (backup.verdict, backup.store):
        if isinstance(said, Unanswered):
            return f"the blob store gave no answer: {said.reason}"
    return None
