"""``unstuck sim exhaustive|random|replay``: one JSON line per mode, and a readable timeline per seed."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import structlog

from unstuck.sim.engine import Fault
from unstuck.sim.runner import Verdict, applicable, simulate, unlike_effects
from unstuck.sim.scenarios import SCENARIOS, SLOW

SHOWN = 5


class Case(msgspec.Struct, frozen=True):
    """One schedule, small enough to be written down: ``name`` is what ``replay`` takes."""

    name: str
    scenario: str
    seed: int | None
    faults: dict[int, Fault | None]


class Summary(msgspec.Struct, frozen=True):
    mode: str
    scenarios: int
    effects: int
    schedules: int
    violations: int
    seconds: float


def exhaustive_cases(scenarios: Iterable[str]) -> Iterator[Case]:
    """Every fault that can happen, at every effect of every scenario, in fair order."""
    for scenario in scenarios:
        for number, process, name in unlike_effects(scenario):
            for fault in applicable(process, name):
                yield Case(f"{scenario}:{number}:{fault.value}", scenario, None, {number: fault})


def random_case(seed: int) -> Case:
    """A schedule from a seed: scenario, order, up to four faults at random effects, timing."""
    rng = random.Random(seed)
    # The scenarios that wait long cost ten times the others: they come up less often.
    scenario = rng.choices(sorted(SCENARIOS), [1 if name in SLOW else 6 for name in sorted(SCENARIOS)])[0]
    span = 110 if scenario == "whole_life" else 70
    faults: dict[int, Fault | None] = {rng.randint(1, span): None for _ in range(rng.randint(0, 4))}
    return Case(str(seed), scenario, seed, faults)


def parse_case(name: str) -> Case:
    """The case that a line of the report names: a seed, or ``scenario:effect:fault[:effect:fault]``."""
    if name.isdigit():
        return random_case(int(name))
    scenario, *rest = name.split(":")
    if scenario not in SCENARIOS or len(rest) % 2:
        raise ValueError(f"no such schedule: {name}")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Case(name, scenario, None, {int(number): Fault(fault) for number, fault in pairs})


def run_case(case: Case) -> tuple[str, int, tuple[str, ...]]:
    verdict = simulate(case.scenario, seed=case.seed, faults=case.faults)
    return case.name, verdict.effects, verdict.violations


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run_all(mode: str, cases: Iterable[Case], jobs: int, scenarios: int) -> Summary:
    """Run every case on ``jobs`` processes; prints the first violations and then the JSON line."""
    began = time.monotonic()
    effects = schedules = violations = 0
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_quiet) as pool:
        for name, count, wrong in pool.imap_unordered(run_case, cases, chunksize=20):
            effects += count
            schedules += 1
            if wrong:
                violations += 1
                if violations <= SHOWN:
                    print(f"violation in {name}: {'; '.join(wrong)}", file=sys.stderr, flush=True)
    summary = Summary(mode, scenarios, effects, schedules, violations, round(time.monotonic() - began, 1))
    print(msgspec.json.encode(summary).decode(), flush=True)
    return summary


def replay(name: str) -> Verdict:
    """Run one case and print its timeline."""
    case = parse_case(name)
    verdict = simulate(case.scenario, seed=case.seed, faults=case.faults, tracing=True)
    print(f"{case.scenario}, faults {[(k, f.value if f else 'any') for k, f in sorted(case.faults.items())]}")
    print("\n".join(verdict.trace))
    print("\n".join(f"VIOLATION  {text}" for text in verdict.violations) or "no violation")
    return verdict


def main(argv: list[str]) -> int:
    """Exit status 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="unstuck sim", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    every = modes.add_parser("exhaustive", help="every fault at every effect of every scenario")
    some = modes.add_parser("random", help="random schedules by seed")
    some.add_argument("--schedules", type=int, default=20_000)
    some.add_argument("--seed", type=int, default=1, help="the first seed")
    for mode in (every, some):
        mode.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    one = modes.add_parser("replay", help="the timeline of one schedule")
    one.add_argument("name", help="a seed, or scenario:effect:fault")
    options = parser.parse_args(argv)
    _quiet()
    if options.mode == "replay":
        try:
            parse_case(options.name)
        except ValueError as error:
            parser.error(f"{error}; it is a seed (a number), or scenario:effect:fault as a report names it")
        return 1 if replay(options.name).violations else 0
    cases: Any = exhaustive_cases(SCENARIOS)
    if options.mode == "random":
        cases = map(random_case, range(options.seed, options.seed + options.schedules))
    return 1 if run_all(options.mode, cases, options.jobs, len(SCENARIOS)).violations else 0
