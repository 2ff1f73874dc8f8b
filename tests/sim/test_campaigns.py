"""Campaigns: what is done stays done, other code begins anew, pairs are tried once in each world."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import msgspec
import pytest

from tests.sim.planted_servers import a_lost_report_counts_as_sent
from unstuck.sim import campaign, pairs
from unstuck.sim.campaign import Part, Record, run_all
from unstuck.sim.cases import exhaustive_cases, parse_case, random_case, with_faults
from unstuck.sim.cli import _seeds, main
from unstuck.sim.engine import Fault
from unstuck.sim.runner import applicable
from unstuck.sim.scenarios import SCENARIOS
from unstuck.sim.shrink import shrink
from unstuck.sim.worlds import effects_of, second_effects, unlike_effects


def test_a_campaign_that_is_done_is_not_run_again_and_more_of_it_goes_on_from_there(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = run_all("random", _seeds(1, 3), 1, 1, state)
    again = run_all("random", _seeds(1, 3), 1, 1, state)
    assert (first.schedules, first.resumed) == (3, 0)
    assert (again.schedules, again.resumed, again.effects) == (3, 3, first.effects)


def test_a_part_that_was_cut_off_while_it_was_written_is_done_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_all("random", _seeds(1, 2), 1, 1, state)
    state.write_bytes(state.read_bytes()[:-5])
    assert Record("random", state).done == {}
    assert run_all("random", _seeds(1, 2), 1, 1, state).resumed == 0
    assert run_all("random", _seeds(1, 2), 1, 1, state).resumed == 2


def test_what_other_code_or_another_mode_has_done_does_not_count(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record = Record("random", state)
    record.keep(record.new("1 to 2"))
    record.keep(msgspec.structs.replace(record.new("3 to 4"), code="another"))
    assert list(Record("random", state).done) == ["1 to 2"]
    assert Record("setback", state).done == {}


def test_violations_are_kept_with_their_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    record = Record("random", state)
    record.keep(msgspec.structs.replace(record.new("1 to 2"), schedules=2, violations=("2: it is stuck",)))
    assert Record("random", state).summary(1, 0.0).violations == 1
    assert "violation in 2: it is stuck" in capsys.readouterr().err
    assert msgspec.json.decode(state.read_bytes(), type=Part).violations == ("2: it is stuck",)


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


def test_pairs_of_a_scenario_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "code_digest", functools.cache(lambda: "code"))
    assert main(["pairs", "create", "--every", "60", "--jobs", "1"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["pairs_covered"] == line["schedules"] > 0
    assert line["pairs_pruned"] > 0
    assert line["violations"] == 0


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
