"""Two faults in one run: every second fault after every first one, in each world once.

A second fault in a world that was there before (in the run without faults, where it is a single fault, or
after another first fault) is the pair that was tried already: most recoveries end where others do.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from unstuck.sim.campaign import Record, Summary, run_case, workers
from unstuck.sim.cases import Case, exhaustive_cases
from unstuck.sim.engine import Fault
from unstuck.sim.runner import applicable
from unstuck.sim.worlds import Key, Seen, effects_of, second_effects


class Later(msgspec.Struct, frozen=True):
    """After one first fault, the effects at which a second one is tried."""

    scenario: str
    first: tuple[int, Fault]
    seconds: tuple[tuple[int, str, str], ...]

    def cases(self) -> list[Case]:
        number, fault = self.first
        return [
            Case(
                f"{self.scenario}:{number}:{fault.value}:{later}:{second.value}",
                self.scenario,
                None,
                {number: fault, later: second},
            )
            for later, process, name in self.seconds
            for second in applicable(process, name)
        ]


def _firsts(scenario: str, first: tuple[int, Fault]) -> list[tuple[int, Key]]:
    return second_effects(scenario, *first)[0]


def _tried(later: Later) -> tuple[int, int, tuple[str, ...]]:
    """Schedules, effects, and the violations by name."""
    effects, wrong = 0, []
    cases = later.cases()
    for case in cases:
        name, count, violations = run_case(case)
        effects += count
        if violations:
            wrong.append(f"{name}: {'; '.join(violations)}")
    return len(cases), effects, tuple(wrong)


def unlike_pairs(
    scenario: str, seen: Seen, firsts: list[tuple[int, Fault]], found: Iterable[list[tuple[int, Key]]]
) -> tuple[list[Later], int]:
    """What is to be tried, and how many pairs are left out because their world was seen."""
    todo, pruned = [], 0
    for first, effects in zip(firsts, found, strict=True):
        unlike = [(number, key) for number, key in effects if key not in seen]
        pruned += sum(len(applicable(key[0], key[1])) for _, key in effects if key in seen)
        seen.update(key for _, key in unlike)
        if unlike:
            todo.append(Later(scenario, first, tuple((number, key[0], key[1]) for number, key in unlike)))
    return todo, pruned


def run_pairs(scenarios: Iterable[str], jobs: int, every: int = 1, state: Path | None = None) -> Summary:
    """All pairs of faults in every scenario (or after every so many-th first fault)."""
    began = time.monotonic()
    mode = "pairs" if every == 1 else f"pairs, every {every}th first fault"
    record = Record(mode, state)
    names = list(scenarios)
    with workers(jobs) as pool:
        for turn, scenario in enumerate(names):
            if scenario in record.done:
                continue
            plain, _ = effects_of(scenario, {}, on_its_way=True)
            cases = itertools.islice(exhaustive_cases([scenario]), turn % every, None, every)
            firsts = [(n, fault) for case in cases for n, fault in case.faults.items() if fault is not None]
            # In order, so that the same of two worlds that are alike is chosen each time.
            found = pool.imap(functools.partial(_firsts, scenario), firsts, chunksize=4)
            todo, pruned = unlike_pairs(scenario, set(plain), firsts, found)
            part = msgspec.structs.replace(record.new(scenario), pruned=pruned)
            for schedules, effects, wrong in pool.imap_unordered(_tried, todo):
                part = msgspec.structs.replace(
                    part,
                    schedules=part.schedules + schedules,
                    covered=part.covered + schedules,
                    effects=part.effects + effects,
                    violations=part.violations + wrong,
                )
            record.keep(part)
    return record.summary(len(names), began)
