"""Databases in the simulator: every scenario ends well, and faults that we plant are caught by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unstuck.core.archive import marks
from unstuck.host.logbook import LogBook
from unstuck.sim.cases import database_cases, parse_case
from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.database_user import DatabaseUser
from unstuck.sim.runner import WITH_DATABASES, simulate
from unstuck.sim.setback import DATABASE_SETBACK, database_setbacks

Monkey = pytest.MonkeyPatch


@pytest.mark.parametrize("scenario", DATABASE_SCENARIOS)
def test_every_scenario_ends_well_without_faults(scenario: str) -> None:
    assert simulate(scenario).violations == ()


TRACE = """
from unstuck.sim.campaign import quiet
from unstuck.sim.cases import parse_case
quiet()
print("\\n".join(parse_case("restore_into_a_new_instance:140:answer-lost").run(tracing=True).trace))
"""


OTHERS = [path for path in os.environ.get("UNSTUCK_OTHER_PYTHONS", "").split(":") if path]
"""Interpreters of other versions that have what we depend on."""


def test_the_same_schedule_gives_the_same_trace_in_any_process() -> None:
    traces = {
        subprocess.run(
            [python, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": hashseed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for python in (sys.executable, *OTHERS)
        for hashseed in ("0", "1")
    }
    assert len(traces) == 1
    assert traces.pop().count("\n") > 100


def test_each_effect_in_the_same_world_is_tried_once_and_a_cases_name_says_all_of_it() -> None:
    """Scenarios that begin alike share what can happen to their beginning."""
    alone = list(database_cases(1, ["cancel_a_backup"]))
    after = [case for case in database_cases(1, ["backup", "cancel_a_backup"]) if case.scenario != "backup"]
    assert 0 < len(after) < len(alone) / 2
    assert parse_case(after[-1].name) == after[-1]


@pytest.mark.parametrize("seed", range(16))
def test_anything_at_any_time_ends_well(seed: int) -> None:
    assert simulate("chaos_of_databases", seed=seed).violations == ()


def test_a_store_that_is_set_back_loses_no_data_and_no_complete_backup() -> None:
    plans = list(database_setbacks(simulate(DATABASE_SETBACK).commits))[::8]
    for plan in plans:
        assert simulate(DATABASE_SETBACK, setback=plan).violations == (), plan


# Found by the simulator, in ourselves.


def test_an_agent_of_a_deleted_instance_neither_fails_nor_counts_as_superseded() -> None:
    verdict = simulate("delete_instance", tracing=True)
    assert verdict.violations == ()
    assert not [line for line in verdict.trace if " ends: " in line]


def test_a_server_that_ends_at_once_is_not_started_again_without_a_pause() -> None:
    """Its end wakes the agent, which had failed to start it and was to wait."""
    verdict = simulate("restore_into_a_full_volume", tracing=True)
    starts = [line for line in verdict.trace if line.endswith("guest.start")]
    assert verdict.violations == ()
    assert len(starts) < 20


def test_a_restore_that_failed_is_over_whether_or_not_anybody_deletes_it() -> None:
    """Its operation stayed open, overdue for ever, and the instance was at rest in ERROR."""
    verdict = simulate("leave_a_restore_that_failed")
    assert verdict.violations == ()
    assert verdict.seconds < 60


def test_a_blob_store_that_fails_while_a_grant_is_looked_for_is_no_fault_of_the_host() -> None:
    assert simulate("restore_while_the_blob_store_is_away").violations == ()


@pytest.mark.parametrize(
    "schedule",
    [
        # A moment in which nothing was heard of the database was claimed, and what was written was let go.
        "log_is_let_go_while_the_blob_store_is_away:286:freeze",
        "restore_to_a_moment:338:freeze",
        "restore_to_a_moment:543:freeze",
        # A late copy of a guest's older word was taken for its newest.
        "parameters_change:175:repeated",
        "delete_a_backup_while_it_is_restored_from:226:repeated",
        # A deleted parent waits for its deleted child, and that for what could still arrive late.
        "delete_a_chain_while_it_is_restored_from:212:crash-before",
    ],
)
def test_a_schedule_that_showed_a_fault_ends_well(schedule: str) -> None:
    assert parse_case(schedule).run().violations == ()


def test_a_deleted_chain_is_gone_once_nothing_can_arrive_late_any_more(monkeypatch: Monkey) -> None:
    name = "delete_a_chain_while_it_is_restored_from"
    deletes = WITH_DATABASES[name]

    async def and_waits(user: DatabaseUser) -> None:
        user.patient()
        await deletes(user)

    monkeypatch.setitem(WITH_DATABASES, name, and_waits)
    assert parse_case(f"{name}:212:crash-before").run().violations == ()


def test_a_silence_that_is_taken_for_rest_is_noticed(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(marks, "_until", lambda mark, _held, _after: mark)
    found = parse_case("log_is_let_go_while_the_blob_store_is_away:286:freeze").run().violations
    assert any("claimed, and too old" in word for word in found), found


def test_a_late_copy_that_is_taken_for_news_is_noticed(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(LogBook, "is_late", lambda _self, _number: False)
    assert any(
        "parameters: " in word for word in parse_case("parameters_change:175:repeated").run().violations
    )
