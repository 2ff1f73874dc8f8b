"""Two faults in one run: every second fault after every first one, in each world once.

A second fault in a world that was there before (in the run without faults, where it is a single fault, or
after another first fault) is the pair that was tried already: most recoveries end where others do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from multiprocessing.pool import Pool

import msgspec

from unstuck.sim.campaign import run_case, workers
from unstuck.sim.cases import Case, exhaustive_cases
from unstuck.sim.engine import Fault
from unstuck.sim.journal import Journal, Tried
from unstuck.sim.runner import applicable
from unstuck.sim.worlds import Key, Seen, effects_of, second_effects

First = tuple[int, Fault]


class Later(msgspec.Struct, frozen=True):
    """After one first fault, the effects at which a second one is tried."""

    scenario: str
    first: First
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


def unlike_pairs(
    scenario: str, seen: Seen, firsts: list[First], found: Iterable[list[tuple[int, Key]]]
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


def run_pairs(
    scenarios: Iterable[str], jobs: int, every: int = 1, journal: Journal | None = None
) -> Iterator[tuple[Tried, bool]]:
    """All pairs of faults of each scenario (or those after every so many-th first fault), and whether the
    journal knew what came of them."""
    with workers(jobs) as pool:
        for turn, scenario in enumerate(scenarios):
            name = f"pairs of {scenario}, every {every}"
            if journal is not None and name in journal.known:
                yield journal.known[name], True
                continue
            tried = _pairs_of(scenario, name, pool, turn % every, every)
            if journal is not None:
                journal.add(tried)
            yield tried, False


def _pairs_of(scenario: str, name: str, pool: Pool, start: int, every: int) -> Tried:
    plain, _ = effects_of(scenario, {}, on_its_way=True)
    cases = itertools.islice(exhaustive_cases([scenario]), start, None, every)
    firsts = [(n, fault) for case in cases for n, fault in case.faults.items() if fault is not None]
    # In order, so that the same of two worlds that are alike is chosen each time.
    found = pool.imap(functools.partial(_after, scenario), firsts, chunksize=4)
    todo, pruned = unlike_pairs(scenario, set(plain), firsts, found)
    parts = list(pool.imap_unordered(_tried, todo))
    return Tried(
        name,
        sum(part.effects for part in parts),
        tuple(itertools.chain.from_iterable(part.violations for part in parts)),
        sum(part.schedules for part in parts),
        pruned,
    )


def _after(scenario: str, first: First) -> list[tuple[int, Key]]:
    return second_effects(scenario, *first)[0]


def _tried(later: Later) -> Tried:
    found = [run_case(case) for case in later.cases()]
    wrong = tuple(f"{one.name}: {'; '.join(one.violations)}" for one in found if one.violations)
    return Tried(later.scenario, sum(one.effects for one in found), wrong, len(found))
