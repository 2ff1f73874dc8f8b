"""Databases in the simulator: every scenario ends well, and faults that we plant are caught by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest

from unstuck.blobs import manifest as manifests
from unstuck.blobs import verify as checks
from unstuck.blobs.objects import Objects
from unstuck.control.backup_blobs import ThreadedBlobs
from unstuck.core.backup import change
from unstuck.core.backup import control as backup_control
from unstuck.core.backup.data import Backup, Claimed, Done, Gave, Phase, Present
from unstuck.core.instance import control as instance_control
from unstuck.core.instance.guest import Decision, Sight, plan_guest
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest import agent as agent_module
from unstuck.guest.agent import Agent
from unstuck.sim.blobs import SimObjects
from unstuck.sim.cli import Case, database_cases, parse_case, run_case
from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.engine import Fault
from unstuck.sim.runner import simulate
from unstuck.sim.setback import DATABASE_SETBACK, database_setbacks
from unstuck.store import backup_rows
from unstuck.store.backup_work import Work

Monkey = pytest.MonkeyPatch


@pytest.mark.parametrize("scenario", DATABASE_SCENARIOS)
def test_every_scenario_ends_well_without_faults(scenario: str) -> None:
    assert simulate(scenario).violations == ()


TRACE = """
from unstuck.sim.cli import _quiet, parse_case
_quiet()
print("\\n".join(parse_case("restore_into_a_new_instance:140:answer-lost").run(tracing=True).trace))
"""


def test_the_same_schedule_gives_the_same_trace_in_any_process() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": hashseed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
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


# Planted faults: each of these changes would be a bug like one that real systems had. Nothing here
# checks the change itself; the simulator has to notice it, by the invariant that is named.


def no_lease_of_an_attempt_is_looked_at(patch: Monkey) -> None:
    patch.setattr(backup_control, "LEASE", 1e9)
    patch.setattr(instance_control, "BACKUP_LEASE", 1e9)


def any_agent_may_go_on_with_an_attempt(patch: Monkey) -> None:
    def claim(backup: Backup, nonce: str, incarnation: int, now: float) -> Backup:
        return change._with(backup, backup.attempt, claimed=Claimed(incarnation, now, now, Phase.STARTING))

    patch.setattr(change, "claim", claim)
    patch.setattr(change, "superseded", lambda backup, _incarnation: backup)


def a_manifest_counts_without_its_pieces(patch: Monkey) -> None:
    a_store_that_loses_pieces(patch)
    patch.setattr(manifests, "missing", lambda _manifest, _found: [])


def a_store_that_loses_pieces(patch: Monkey) -> None:
    put_new = SimObjects.put_new

    def lossy(self: SimObjects, key: str, data: bytes) -> None:
        if not key.endswith("00000001.zst.age"):
            put_new(self, key, data)

    patch.setattr(SimObjects, "put_new", lossy)


def lost_data_is_made_again_empty(patch: Monkey) -> None:
    def plan(want: DatabaseWant | None, sight: Sight) -> Decision:
        return plan_guest(want and msgspec.structs.replace(want, data_recorded=False), sight)

    patch.setattr(agent_module, "plan_guest", plan)


def what_cannot_be_restored_is_made_empty(patch: Monkey) -> None:
    def plan(want: DatabaseWant | None, sight: Sight) -> Decision:
        if want is not None:
            origin = msgspec.structs.replace(want.origin, backup_id=None)
            want = msgspec.structs.replace(want, origin=origin)
        return plan_guest(want, sight)

    patch.setattr(agent_module, "plan_guest", plan)


def everything_is_collected(patch: Monkey) -> None:
    remove = checks.remove
    patch.setattr(checks, "remove", lambda objects, backup, _keep: remove(objects, backup, None))


def readers_are_not_counted(patch: Monkey) -> None:
    patch.setattr(backup_rows, "READER", -1e9)
    patch.setattr(backup_rows, "READ_AT_LONGEST", -1e9)


def unknown_is_taken_for_absent(patch: Monkey) -> None:
    look = ThreadedBlobs.look

    async def sure(self: ThreadedBlobs, work: Work, seconds: float) -> Present | None:
        try:
            return await look(self, work, seconds)
        except Exception:
            return None

    patch.setattr(ThreadedBlobs, "look", sure)


def only_the_newest_attempt_is_asked_for(patch: Monkey) -> None:
    """A finished backup is thrown away because its report was lost."""

    def nothing(_objects: Objects, _backup_id: str, _key: str) -> None:
        return None

    def listed(objects: Objects, backup_id: str, key: str) -> None:
        objects.list(checks.root_of(backup_id))
        return nothing(objects, backup_id, key)

    patch.setattr(checks, "look", listed)


def nobody_looks_again_at_a_backup(patch: Monkey) -> None:
    """Settled it cannot be called: the schema refuses that."""
    patch.setattr(backup_rows, "_next_look", lambda _plan, _backup, now: (False, now + 1e6))


def slots_of_dead_attempts_stay(patch: Monkey) -> None:
    async def keep(self: Agent) -> None:
        self._swept = True

    patch.setattr(Agent, "_sweep", keep)


def a_late_word_opens_a_backup_again(patch: Monkey) -> None:
    report = change.report

    def late(backup: Backup, nonce: str, by: int, said: Done | Gave, now: float) -> Backup:
        return report(msgspec.structs.replace(backup, ended=None), nonce, by, said, now)

    patch.setattr(change, "report", late)


PLANTED: list[tuple[Callable[[Monkey], None], str, str]] = [
    (no_lease_of_an_attempt_is_looked_at, "agent_dies_during_the_backup_for_good", "claimed without a fact"),
    (any_agent_may_go_on_with_an_attempt, "agent_dies_during_the_backup", "one attempt, two agents"),
    (a_manifest_counts_without_its_pieces, "backup", "COMPLETED is no backup"),
    (lost_data_is_made_again_empty, "volume_lost", "empty again"),
    (what_cannot_be_restored_is_made_empty, "restore_into_a_new_instance", "empty for a backup"),
    (everything_is_collected, "agent_dies_during_the_backup", "live object removed"),
    (readers_are_not_counted, "delete_a_backup_while_it_is_restored_from", "live object removed"),
    (unknown_is_taken_for_absent, "blob_store_fault", "absent without a look"),
    (only_the_newest_attempt_is_asked_for, "agent_frozen_at_the_end", "absent, and it is there"),
    (nobody_looks_again_at_a_backup, "agent_dead_before_the_request", "stuck"),
    (slots_of_dead_attempts_stay, "agent_dies_during_the_backup", "orphans"),
    (a_late_word_opens_a_backup_again, "cancel_a_backup", "final is final"),
]


def _cases(where: str) -> Iterator[Case]:
    yield Case(where, where, None, {})
    everything = list(database_cases(1, [where]))
    yield from (case for case in everything if Fault.REPEATED in case.faults.values())
    yield from everything[::10]


def first_violation(cases: Iterable[Case]) -> tuple[str, tuple[str, ...]] | None:
    for case in cases:
        tried = run_case(case)
        if tried.violations:
            return tried.name, tried.violations
    return None


@pytest.mark.parametrize(
    ("plant", "where", "by"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)  # fmt: skip
def test_a_planted_fault_is_caught_by_name(
    plant: Callable[[Monkey], None], where: str, by: str, monkeypatch: Monkey
) -> None:
    cases = list(_cases(where))
    plant(monkeypatch)
    found = first_violation(cases)
    assert found is not None, f"nothing notices {plant.__name__}"
    assert by in found[1][0], found


def test_a_store_that_loses_what_it_was_given_makes_no_backup_complete(monkeypatch: Monkey) -> None:
    """The product notices by itself: no invariant has to."""
    a_store_that_loses_pieces(monkeypatch)
    assert simulate("backup").violations == ("backup b is FAILED (pieces are missing or of another length: "
                                             "00000001.zst.age), expected COMPLETED",)  # fmt: skip
