"""Parameters on trial: whatever happens, a server is left that starts, and the reason is kept."""

from __future__ import annotations

import random

import pytest

from unstuck.core.instance.trial import TRIES, Set, Trial, before_start, chosen, proven, refuse

GOOD, BAD, NONE = Set({"a": "1"}, 512), Set({"a": "bad"}, 512), Set({}, 512)


def starts(trial: Trial, wanted: Set, number: int, restart: int = 0) -> Trial:
    for _ in range(number):
        trial = before_start(trial, wanted, restart, "no memory")
    return trial


def test_parameters_with_which_no_server_stays_up_are_put_aside_with_the_reason() -> None:
    trial = proven(Trial(), GOOD)
    trial = starts(trial, BAD, TRIES)
    assert chosen(trial, BAD).parameters == BAD.parameters
    trial = starts(trial, BAD, 1)
    assert chosen(trial, BAD).parameters == GOOD.parameters
    assert "no memory" in chosen(trial, BAD).refused
    assert starts(trial, BAD, 5) == trial


def test_others_or_more_memory_are_tried_anew() -> None:
    trial = starts(proven(Trial(), GOOD), BAD, TRIES + 1)
    for wanted in (Set({"a": "2"}, 512), Set(BAD.parameters, 1024)):
        assert chosen(trial, wanted).parameters == wanted.parameters
        assert not chosen(trial, wanted).refused
    assert not chosen(trial, NONE).refused
    assert proven(trial, NONE).refused is None


def test_what_worked_is_on_trial_again_with_less_memory() -> None:
    trial = proven(Trial(), Set(GOOD.parameters, 2048))
    trial = starts(trial, GOOD, TRIES + 1)
    assert chosen(trial, GOOD).parameters == {}
    assert chosen(trial, GOOD).refused


def test_restarts_that_somebody_asked_for_are_no_failures() -> None:
    trial = Trial()
    for restart in range(20):
        trial = before_start(trial, BAD, restart, "")
    assert not chosen(trial, BAD).refused


def test_what_worked_is_not_counted_and_what_stops_working_leaves_the_defaults() -> None:
    trial = proven(Trial(), GOOD)
    assert starts(trial, GOOD, 20) == trial
    trial = refuse(trial, GOOD, "its own check")
    assert chosen(trial, GOOD).parameters == {}
    trial = refuse(starts(proven(Trial(), GOOD), BAD, TRIES + 1), BAD, "nor that")
    assert chosen(trial, BAD).parameters == {}


@pytest.mark.parametrize("seed", range(300))
def test_a_server_always_ends_up_with_parameters_that_work(seed: int) -> None:
    """Any history of wishes, starts, checks and memory; then only starts: within a budget it is up."""
    chance = random.Random(seed)
    works = {"", "1", "2"}
    trial, wanted, restart = Trial(), NONE, 0
    for _ in range(chance.randrange(40)):
        match chance.randrange(4):
            case 0:
                value = chance.choice(["", "1", "2", "bad", "worse"])
                wanted = Set({"a": value} if value else {}, chance.choice([512, 1024]))
            case 1:
                restart += 1
            case 2:
                trial = before_start(trial, wanted, restart, "it ended")
            case _:
                if chosen(trial, wanted).parameters == wanted.parameters and (
                    wanted.parameters.get("a", "") in works
                ):
                    trial = proven(trial, wanted)
    for _ in range(2 * TRIES + 2):
        trial = before_start(trial, wanted, restart, "it ended")
        found = chosen(trial, wanted)
        if found.parameters.get("a", "") in works:
            break
    else:
        raise AssertionError(trial)
    if found.parameters != wanted.parameters:
        assert found.refused
