"""``unstuck sim exhaustive|random|replay``: one JSON line per mode, and a readable timeline per seed."""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from unstuck.runtime.locks import Held
from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.engine import Fault
from unstuck.sim.journal import Journal, Tried
from unstuck.sim.runner import Verdict, applicable, simulate, unlike_effects
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

SHOWN = 5
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


class Summary(msgspec.Struct, frozen=True):
    mode: str
    scenarios: int
    effects: int
    schedules: int
    violations: int
    seconds: float
    resumed: int = 0
    """Schedules that an earlier run of the same code has tried."""


def exhaustive_cases(
    scenarios: Iterable[str], seen: set[tuple[str, str, int]] | None = None
) -> Iterator[Case]:
    """Every fault that can happen, at every effect of every scenario, in fair order."""
    for scenario in scenarios:
        for number, process, name in unlike_effects(scenario, seen):
            for fault in applicable(process, name):
                yield Case(f"{scenario}:{number}:{fault.value}", scenario, None, {number: fault})


def database_cases(every: int = 1, scenarios: Iterable[str] = tuple(DATABASE_SCENARIOS)) -> Iterator[Case]:
    """The same for databases: every so many-th of them, and each effect in the same world only once."""
    yield from itertools.islice(exhaustive_cases(scenarios, set()), 0, None, every)


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


def parse_case(name: str) -> Case:
    """The case that a line of the report names: a seed, ``scenario:effect:fault[:effect:fault]``,
    ``scenario:setback:hosts:copy:back:flags:silent`` or ``scenario:effect:jump:seconds``."""
    if name.isdigit():
        return random_case(int(name))
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


def run_case(case: Case) -> Tried:
    verdict = case.run()
    return Tried(case.name, verdict.effects, verdict.violations)


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run_all(
    mode: str, cases: Iterable[Case], jobs: int, scenarios: int, journal: Journal | None = None
) -> Summary:
    """Run every case on ``jobs`` processes; prints the first violations and then the JSON line.

    What the journal knows counts, and is not run again.
    """
    began = time.monotonic()
    effects = schedules = violations = resumed = 0
    for tried, known in _run_cases(cases, jobs, journal):
        effects += tried.effects
        schedules += 1
        resumed += known
        if tried.violations:
            violations += 1
            if violations <= SHOWN:
                print(
                    f"violation in {tried.name}: {'; '.join(tried.violations)}", file=sys.stderr, flush=True
                )
    seconds = round(time.monotonic() - began, 1)
    summary = Summary(mode, scenarios, effects, schedules, violations, seconds, resumed)
    print(msgspec.json.encode(summary).decode(), flush=True)
    return summary


def _run_cases(cases: Iterable[Case], jobs: int, journal: Journal | None) -> Iterator[tuple[Tried, bool]]:
    """What came of each, and whether the journal knew it."""
    known: list[Tried] = []

    def unknown() -> Iterator[Case]:
        for case in cases:
            if journal is None or case.name not in journal.known:
                yield case
            else:
                known.append(journal.known[case.name])

    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_quiet) as pool:
        for tried in pool.imap_unordered(run_case, unknown(), chunksize=20):
            if journal is not None:
                journal.add(tried)
            yield tried, False
    yield from ((tried, True) for tried in known)


def replay(name: str) -> Verdict:
    """Run one case and print its timeline."""
    case = parse_case(name)
    verdict = case.run(tracing=True)
    print(f"{case.scenario}, faults {[(k, f.value if f else 'any') for k, f in sorted(case.faults.items())]}")
    print(f"{case.setback or ''} {case.jump or ''}".strip() or "the store goes on, and so does the clock")
    print("\n".join(verdict.trace))
    print("\n".join(f"VIOLATION  {text}" for text in verdict.violations) or "no violation")
    return verdict


PARTS = ("servers", "setback", "databases")


class Part(msgspec.Struct, frozen=True):
    """Every ``of``-th of a list of schedules, beginning with the ``number``-th."""

    number: int = 1
    of: int = 1

    @staticmethod
    def parse(text: str) -> Part:
        """``K/N``. Raises ``ValueError``."""
        number, _, of = text.partition("/")
        part = Part(int(number), int(of))
        if not 1 <= part.number <= part.of:
            raise ValueError(f"no such part: {text}")
        return part

    def take(self, cases: Iterable[Case]) -> Iterator[Case]:
        return itertools.islice(cases, self.number - 1, None, self.of)


def main(argv: list[str]) -> int:
    """Exit status 1 if anything was violated."""
    options = _parser().parse_args(argv)
    _quiet()
    if options.mode == "replay":
        try:
            parse_case(options.name)
        except ValueError as error:
            print(
                f"{error}; it is a seed (a number), or scenario:effect:fault as a report names it",
                file=sys.stderr,
            )
            return 2
        return 1 if replay(options.name).violations else 0
    try:
        journal = None if options.resume is None else Journal(options.resume)
    except (Held, OSError) as error:
        print(f"--resume: {error}", file=sys.stderr)
        return 2
    try:
        return 1 if sum(summary.violations for summary in _run_modes(options, journal)) else 0
    finally:
        if journal is not None:
            journal.close()


def _run_modes(options: argparse.Namespace, journal: Journal | None) -> Iterator[Summary]:
    jobs, part = options.jobs, options.part
    if options.mode == "random":
        cases = map(random_case, range(options.seed, options.seed + options.schedules))
        yield run_all("random", part.take(cases), jobs, len(SCENARIOS), journal)
        return
    chosen = options.only or PARTS
    if "servers" in chosen:
        faults = itertools.islice(exhaustive_cases(SCENARIOS), 0, None, max(options.every, 1))
        yield run_all("exhaustive", part.take(faults), jobs, len(SCENARIOS), journal)
    if "setback" in chosen:
        scenarios = len({*SETBACK_SCENARIOS, *JUMP_SCENARIOS, DATABASE_SETBACK})
        yield run_all("setback", part.take(setback_cases()), jobs, scenarios, journal)
    if "databases" in chosen:
        some_of_all = database_cases(max(options.databases_every, 1))
        yield run_all("databases", part.take(some_of_all), jobs, len(DATABASE_SCENARIOS), journal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unstuck sim", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    every = modes.add_parser("exhaustive", help="every fault at every effect of every scenario")
    every.add_argument(
        "--every", type=int, default=1, metavar="N",
        help="try every Nth fault in scenarios without databases (default: all)",
    )  # fmt: skip
    every.add_argument(
        "--databases-every", type=int, default=EXHAUSTIVE_EVERY, metavar="N",
        help="try every Nth fault in scenarios with databases (1: all)",
    )  # fmt: skip
    every.add_argument(
        "--only", choices=PARTS, action="append", help="only these (may be given several times)"
    )
    some = modes.add_parser("random", help="random schedules by seed")
    some.add_argument("--schedules", type=int, default=20_000)
    some.add_argument("--seed", type=int, default=1, help="the first seed")
    for mode in (every, some):
        mode.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        mode.add_argument(
            "--part", type=Part.parse, default=Part(), metavar="K/N",
            help="of all schedules the Kth, and every Nth after it: N machines share the work",
        )  # fmt: skip
        mode.add_argument(
            "--resume", type=Path, metavar="FILE",
            help="write down what was tried, and go on from there if FILE is of the same code",
        )  # fmt: skip
    one = modes.add_parser("replay", help="the timeline of one schedule")
    one.add_argument("name", help="a seed, or scenario:effect:fault")
    return parser
