"""The simulator is itself tested: it repeats itself exactly, and it catches faults that we plant."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.schedules import late_registration
from unstuck.sim.campaign import run_case
from unstuck.sim.cases import parse_case
from unstuck.sim.cli import main
from unstuck.sim.runner import simulate
from unstuck.sim.scenarios import SCENARIOS

Monkey = pytest.MonkeyPatch


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_ends_well_without_faults(scenario: str) -> None:
    assert simulate(scenario).violations == ()


def test_a_late_registration_ends_no_living_agent() -> None:
    assert run_case(next(late_registration())).violations == ()


def test_the_guest_that_runs_unreported_is_adopted_untouched() -> None:
    """The mission's fault: the guest is started, and its agent dies before it says so."""
    plain = simulate("create")
    number = 1 + [name for _, name in plain.names].index("driver.start")
    for fault in ("crash-after", "crash-half", "freeze-replaced"):
        case = parse_case(f"create:{number}:{fault}")
        verdict = simulate(case.scenario, faults=case.faults, tracing=True)
        assert verdict.violations == ()
        starts = [line for line in verdict.trace if "driver.start" in line]
        assert len(starts) == (2 if fault == "freeze-replaced" else 1), "never a second guest"


TRACE = """
from unstuck.sim.campaign import quiet
from unstuck.sim.cases import random_case
from unstuck.sim.runner import simulate
quiet()
case = random_case(42)
print("\\n".join(simulate(case.scenario, seed=case.seed, faults=case.faults, tracing=True).trace))
"""


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
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
    assert traces.pop().count("\n") > 20


def test_replay_prints_a_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "create:3:crash-after"]) == 0
    shown = capsys.readouterr().out
    assert "crash-after" in shown
    assert "no violation" in shown


def test_a_schedule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such schedule"):
        parse_case("nonsense:1:crash-after")
