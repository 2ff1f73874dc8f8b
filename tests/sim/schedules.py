"""Schedules that several tests of the simulator choose from."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.sim.cases import Case, database_cases, exhaustive_cases
from unstuck.sim.engine import Fault
from unstuck.sim.runner import simulate
from unstuck.sim.setback import Setback, setbacks


def late_registration(_scenario: str = "stop_and_start") -> Iterator[Case]:
    """Seed 812, made small: an agent's registration arrives once more, after its successor has come."""
    effects = simulate("stop_and_start").names
    registers = [number for number, (_, name) in enumerate(effects, 1) if name == "control.register"]
    dies = 1 + [name for _, name in effects].index("driver.fetch")
    faults = {registers[0]: Fault.REPEATED, registers[1]: Fault.REPEATED, dies: Fault.CRASH_AFTER}
    yield Case("late-registration", "stop_and_start", None, dict(faults))


def single_faults(scenario: str) -> Iterator[Case]:
    yield Case(scenario, scenario, None, {})
    yield from exhaustive_cases([scenario])


def faults_at_databases(scenario: str) -> Iterator[Case]:
    """None, and every tenth."""
    yield Case(scenario, scenario, None, {})
    yield from list(database_cases(1, [scenario]))[::10]


def late_copies_at_databases(scenario: str) -> Iterator[Case]:
    """Of every message."""
    yield from (case for case in database_cases(1, [scenario]) if Fault.REPEATED in case.faults.values())


def _set_back(scenario: str, hosts: int, plan: Setback, seed: int | None = None) -> Case:
    return Case(f"{scenario} {plan} by {seed}", scenario, seed, {}, hosts, plan)


def fair(scenario: str, step: int = 1) -> Iterator[Case]:
    """Every ``step``-th schedule of a store that is set back; `unstuck sim exhaustive` runs all of them."""
    one, two = simulate(scenario).commits, simulate(scenario, hosts=2).commits
    for number, (hosts, plan) in enumerate(setbacks(one, two)):
        if number % step == 0:
            yield _set_back(scenario, hosts, plan)


def in_any_order(scenario: str) -> Iterator[Case]:
    """Two hosts of which one is silent after the copy was put back; other orders of the same by seed."""
    for seed in range(12):
        commits = simulate(scenario, seed=seed, hosts=2).commits
        for copy in range(1, commits, 3):
            yield _set_back(scenario, 2, Setback(copy, commits, silent=40.0), seed)


def with_the_record(scenario: str) -> Iterator[Case]:
    """Copy and record are put back at every commit, and no user waits for hosts; by seed, too."""
    for silent in (0.0, 40.0):
        for hosts in (1, 2):
            commits = simulate(scenario, hosts=hosts).commits
            for copy in range(commits):
                for hasty in (False, True):
                    plan = Setback(copy, commits, record=False, silent=silent, hasty=hasty)
                    yield _set_back(scenario, hosts, plan)
    for seed in range(6):
        commits = simulate(scenario, seed=seed, hosts=2).commits
        for copy in range(1, commits, 3):
            plan = Setback(copy, commits, record=False, hasty=copy % 2 == 0)
            yield _set_back(scenario, 2, plan, seed)
