"""Pairs of faults are tried once in each world, and a schedule shrinks to the faults that matter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sim.planted_servers import a_lost_report_counts_as_sent
from unstuck.sim import pairs
from unstuck.sim.cases import exhaustive_cases, parse_case, random_case, with_faults
from unstuck.sim.cli import main
from unstuck.sim.engine import Fault
from unstuck.sim.runner import applicable
from unstuck.sim.scenarios import SCENARIOS
from unstuck.sim.shrink import shrink
from unstuck.sim.worlds import effects_of, second_effects, unlike_effects


def test_a_second_fault_is_tried_only_in_worlds_that_no_other_run_came_to() -> None:
    keys, _ = effects_of("create", {}, on_its_way=True)
    seen = set(keys)
    firsts = [
        (number, fault)
        for number, process, name in unlike_effects("create")[:12]
        for fault in applicable(process, name)
    ]
    found = [second_effects("create", *first)[0] for first in firsts]
    todo, pruned = pairs.unlike_pairs("create", seen, firsts, found)
    again, all_pruned = pairs.unlike_pairs("create", seen, firsts, found)
    tried = sum(len(later.cases()) for later in todo)
    assert tried > 0
    assert pruned > tried, "most recoveries end where others do"
    assert again == []
    assert all_pruned == tried + pruned


def test_every_pair_has_a_name_that_can_be_replayed() -> None:
    effects, _ = second_effects("create", 3, Fault.CRASH_AFTER)
    later = pairs.Later("create", (3, Fault.CRASH_AFTER), tuple((n, k[0], k[1]) for n, k in effects[:2]))
    for case in later.cases():
        assert parse_case(case.name) == case
        assert case.run().violations == ()


def test_the_same_world_has_the_same_mark_in_every_run() -> None:
    one, _ = effects_of("create", {3: Fault.CRASH_AFTER}, on_its_way=True)
    two, _ = effects_of("create", {3: Fault.CRASH_AFTER}, on_its_way=True)
    assert one == two


def test_pairs_are_counted_and_a_journal_remembers_them_by_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["pairs", "create", "--every", "240", "--jobs", "1", "--resume", str(tmp_path / "journal")]
    assert main(asked) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    again = json.loads(capsys.readouterr().out)
    assert first["schedules"] > 0
    assert first["pruned"] > 0
    assert {**again, "seconds": 0} == {**first, "seconds": 0, "resumed": first["schedules"]}


def test_a_scenario_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pairs", "nonsense"])
    assert "no such scenario: nonsense" in capsys.readouterr().err


def test_a_schedule_shrinks_to_the_fault_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(exhaustive_cases(["create"]))
    a_lost_report_counts_as_sent(monkeypatch)
    bad = next(case for case in cases if case.run().violations)
    ((number, fault),) = bad.faults.items()
    case, violations = shrink(parse_case(f"create:1:repeated:{number}:{fault.value if fault else ''}"))
    assert case.name == bad.name
    assert violations
    assert shrink(parse_case("create:1:repeated"))[1] == ()


def test_a_seed_with_some_of_its_faults_has_a_name() -> None:
    seed = next(seed for seed in range(1, 100) if len(random_case(seed).faults) == 3)
    kept = sorted(random_case(seed).faults)[:2]
    case = with_faults(random_case(seed), kept)
    assert case.name == f"{seed}@{kept[0]},{kept[1]}"
    assert parse_case(case.name) == case
    assert parse_case(with_faults(case, ()).name).faults == {}


def test_every_scenario_can_be_named() -> None:
    assert all(parse_case(name).scenario == name for name in SCENARIOS)
