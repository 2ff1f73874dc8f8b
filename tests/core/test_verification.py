"""What comes next for a verification: of every state, with and without a verdict."""

from __future__ import annotations

import msgspec
import pytest

from unstuck.core.backup.verification import (
    ASKS,
    DAMAGED,
    Ask,
    Finish,
    LookAgain,
    Make,
    Remove,
    Result,
    Settled,
    State,
    Verdict,
    Verification,
    plan_verification,
)

NEW = Verification(deadline=1000.0, state=State.NONE)
SOUND = Verdict(Result.SOUND, "", "2 rows")


def plan(state: State, now: float = 0.0, **more: object) -> object:
    return plan_verification(msgspec.structs.replace(NEW, state=state, **more), now)


def result(found: object) -> tuple[Result, str]:
    assert isinstance(found, Finish)
    return found.verdict.result, found.verdict.reason


def test_it_is_restored_read_judged_and_thrown_away() -> None:
    assert plan(State.NONE) == Make()
    assert isinstance(plan(State.BUILDING), LookAgain)
    assert plan(State.READY) == Ask()
    assert isinstance(plan(State.READY, asks=1, ask_until=10.0), LookAgain)
    assert plan(State.READY, asks=1, ask_until=10.0, answer=SOUND) == Finish(SOUND)
    assert plan(State.READY, verdict=SOUND) == Remove()
    assert isinstance(plan(State.LEAVING, verdict=SOUND), LookAgain)
    assert plan(State.GONE, verdict=SOUND) == Settled()


@pytest.mark.parametrize("state", State)
def test_with_a_verdict_the_instance_goes_whatever_it_does(state: State) -> None:
    found = plan(state, now=10_000.0, verdict=SOUND, backup_deleted=True)
    assert isinstance(found, Remove | LookAgain | Settled)
    assert isinstance(found, Settled) == (state in (State.NONE, State.GONE))


@pytest.mark.parametrize("state", State)
def test_whatever_it_does_it_has_a_next_look_or_ends(state: State) -> None:
    for now in (0.0, 999.0, 1000.0):
        found = plan(state, now=now)
        if isinstance(found, LookAgain):
            assert now < found.at <= 1000.0
        if now == 1000.0:
            assert result(found)[0] is Result.UNKNOWN


def test_only_what_a_restore_says_of_the_backup_is_damage() -> None:
    assert result(plan(State.FAILED, code=DAMAGED, reason="piece 1")) == (Result.DAMAGED, "piece 1")
    assert result(plan(State.FAILED, code="volume-full", reason="no room"))[0] is Result.UNKNOWN
    assert result(plan(State.GONE))[0] is Result.UNKNOWN
    assert result(plan(State.LEAVING))[0] is Result.UNKNOWN


def test_an_answer_that_does_not_come_is_asked_for_again_and_not_for_ever() -> None:
    assert plan(State.READY, now=20.0, asks=1, ask_until=10.0) == Ask()
    assert result(plan(State.READY, now=20.0, asks=ASKS, ask_until=10.0))[0] is Result.UNKNOWN


def test_a_deleted_backup_ends_it_unless_it_has_been_read() -> None:
    assert result(plan(State.BUILDING, backup_deleted=True)) == (Result.UNKNOWN, "the backup was deleted")
    assert plan(State.READY, backup_deleted=True, answer=SOUND) == Finish(SOUND)
