"""Schedules by name: every one can be written down, and run again as it was."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import msgspec

from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.engine import Fault
from unstuck.sim.runner import Verdict, applicable, simulate
from unstuck.sim.scenarios import SCENARIOS, SLOW
from unstuck.sim.setback import (
    DATABASE_SETBACK,
    JUMP_SCENARIOS,
    JUMPS,
    SETBACK_SCENARIOS,
    Jump,
    Setback,
    database_setbacks,
    setbacks,
)
from unstuck.sim.worlds import Seen, unlike_effects

SETBACK_EVERY = 20
"""Every so many-th seed is a store that is set back; no other fault is mixed in."""

DATABASE_EVERY = 41
"""Every so many-th seed is a scenario with databases."""
EXHAUSTIVE_EVERY = 37
"""``exhaustive`` tries every so many-th fault at databases, unless it is told otherwise: a prime, so that
the kinds of faults take turns."""


class Case(msgspec.Struct, frozen=True):
    """One schedule, small enough to be written down: ``name`` is what ``replay`` takes."""

    name: str
    scenario: str
    seed: int | None
    faults: dict[int, Fault | None]
    hosts: int = 1
    setback: Setback | None = None
    jump: Jump | None = None

    def run(self, *, tracing: bool = False) -> Verdict:
        return simulate(
            self.scenario, seed=self.seed, faults=self.faults, tracing=tracing, hosts=self.hosts,
            setback=self.setback, jump=self.jump,
        )  # fmt: skip


def exhaustive_cases(scenarios: Iterable[str], seen: Seen | None = None) -> Iterator[Case]:
    """Every fault that can happen, at every effect of every scenario, in fair order."""
    for scenario in scenarios:
        for number, process, name in unlike_effects(scenario, seen):
            for fault in applicable(process, name):
                yield Case(f"{scenario}:{number}:{fault.value}", scenario, None, {number: fault})


def database_cases(every: int = 1, scenarios: Iterable[str] = tuple(DATABASE_SCENARIOS)) -> Iterator[Case]:
    """The same for databases: every so many-th of them, and each effect in the same world only once."""
    return itertools.islice(exhaustive_cases(scenarios, set()), 0, None, every)


def setback_cases() -> Iterator[Case]:
    """The store set back at every commit, by several distances; the clock jumping at every effect."""
    for scenario in SETBACK_SCENARIOS:
        one, two = simulate(scenario).commits, simulate(scenario, hosts=2).commits
        for hosts, plan in setbacks(one, two):
            yield _setback_case(scenario, hosts, plan)
    for plan in database_setbacks(simulate(DATABASE_SETBACK).commits):
        yield _setback_case(DATABASE_SETBACK, 1, plan)
    for scenario in JUMP_SCENARIOS:
        for number, _, _ in unlike_effects(scenario):
            jump = Jump(number, JUMPS[number % len(JUMPS)])
            name = f"{scenario}:{number}:jump:{jump.seconds:.0f}"
            yield Case(name, scenario, None, {}, jump=jump)


def _setback_case(scenario: str, hosts: int, plan: Setback) -> Case:
    flags = "".join(flag if on else "-" for flag, on in _flags(plan))
    name = f"{scenario}:setback:{hosts}:{plan.copy}:{plan.back}:{flags}:{plan.silent:.0f}"
    return Case(name, scenario, None, {}, hosts, plan)


def _flags(plan: Setback) -> list[tuple[str, bool]]:
    return [("r", plan.record), ("i", plan.impatient), ("h", plan.hasty)]


def _setback_by_seed(seed: int, rng: random.Random) -> Case:
    copy = rng.randint(0, 30)
    silent = rng.choice((0.0, 0.0, 40.0))
    record = rng.random() < 0.5
    hosts = 2 if silent else rng.randint(1, 2)
    plan = Setback(copy, copy + rng.randint(1, 30), record, rng.random() < 0.5, silent, rng.random() < 0.3)
    return Case(str(seed), rng.choice(SETBACK_SCENARIOS), seed, {}, hosts, plan)


def random_case(seed: int) -> Case:
    """A schedule from a seed: scenario, order, up to four faults at random effects, timing."""
    rng = random.Random(seed)
    if seed % SETBACK_EVERY == 0:
        return _setback_by_seed(seed, rng)
    if seed % DATABASE_EVERY == 0:
        # Half of them is anything at any time.
        scenario = rng.choice([*DATABASE_SCENARIOS, *["chaos_of_databases"] * len(DATABASE_SCENARIOS)])
        return Case(str(seed), scenario, seed, {rng.randint(1, 200): None for _ in range(rng.randint(0, 4))})
    # The scenarios that wait long cost ten times the others: they come up less often.
    scenario = rng.choices(sorted(SCENARIOS), [1 if name in SLOW else 6 for name in sorted(SCENARIOS)])[0]
    span = 110 if scenario == "whole_life" else 70
    faults: dict[int, Fault | None] = {rng.randint(1, span): None for _ in range(rng.randint(0, 4))}
    return Case(str(seed), scenario, seed, faults)


def with_faults(case: Case, numbers: Iterable[int]) -> Case:
    """The same schedule with only those of its faults."""
    faults = {number: case.faults[number] for number in sorted(numbers) if number in case.faults}
    if case.seed is not None:
        name = f"{case.seed}@{','.join(map(str, faults)) or '0'}"
    else:
        name = ":".join([case.scenario, *(f"{n}:{fault.value}" for n, fault in faults.items() if fault)])
    return msgspec.structs.replace(case, name=name, faults=faults)


def parse_case(name: str) -> Case:
    """The case that a line of the report names: a seed (``812``; ``812@3,17``: with the faults at these
    effects only), ``scenario:effect:fault[:effect:fault]``, ``scenario:setback:hosts:copy:back:flags:silent``
    or ``scenario:effect:jump:seconds``. Raises ValueError where there is no such schedule."""
    seed, _, kept = name.partition("@")
    if seed.isdigit():
        whole = random_case(int(seed))
        return with_faults(whole, [int(number) for number in kept.split(",")]) if kept else whole
    scenario, *rest = name.split(":")
    if len(rest) == 6 and rest[0] == "setback" and scenario in (*SETBACK_SCENARIOS, DATABASE_SETBACK):
        hosts, copy, back, flags, silent = rest[1:]
        plan = Setback(int(copy), int(back), "r" in flags, "i" in flags, float(silent), "h" in flags)
        return _setback_case(scenario, int(hosts), plan)
    if len(rest) == 3 and rest[1] == "jump" and scenario in JUMP_SCENARIOS:
        return Case(name, scenario, None, {}, jump=Jump(int(rest[0]), float(rest[2])))
    if scenario not in {*SCENARIOS, *DATABASE_SCENARIOS} or len(rest) % 2:
        raise ValueError(f"no such schedule: {name}")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Case(name, scenario, None, {int(number): Fault(fault) for number, fault in pairs})
