"""``unstuck sim exhaustive|pairs|random|replay|shrink``: one JSON line per mode, and a readable timeline."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from unstuck.runtime.locks import Held
from unstuck.sim.campaign import Summary, quiet, run_all, summed_up
from unstuck.sim.cases import (
    EXHAUSTIVE_EVERY,
    Case,
    database_cases,
    exhaustive_cases,
    parse_case,
    random_case,
    setback_cases,
)
from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.journal import Journal
from unstuck.sim.pairs import run_pairs
from unstuck.sim.runner import Verdict
from unstuck.sim.scenarios import SCENARIOS
from unstuck.sim.setback import DATABASE_SETBACK, JUMP_SCENARIOS, SETBACK_SCENARIOS
from unstuck.sim.shrink import shrink


def replay(name: str) -> Verdict:
    """Run one case and print its timeline."""
    case = parse_case(name)
    verdict = case.run(tracing=True)
    print(f"{case.scenario}, faults {[(k, f.value if f else 'any') for k, f in sorted(case.faults.items())]}")
    print(f"{case.setback or ''} {case.jump or ''}".strip() or "the store goes on, and so does the clock")
    print("\n".join(verdict.trace))
    print("\n".join(f"VIOLATION  {text}" for text in verdict.violations) or "no violation")
    return verdict


def _shrunk(name: str) -> bool:
    """Print the smallest schedule that still violates something; false if there is none."""
    case, violations = shrink(parse_case(name))
    print(f"{case.name}: {'; '.join(violations) or 'no violation'}")
    return not violations


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
    quiet()
    if options.mode in ("replay", "shrink"):
        try:
            parse_case(options.name)
        except ValueError as error:
            print(
                f"{error}; it is a seed (a number), or scenario:effect:fault as a report names it",
                file=sys.stderr,
            )
            return 2
        if options.mode == "shrink":
            return 0 if _shrunk(options.name) else 1
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
    jobs = options.jobs
    if options.mode == "pairs":
        names = options.scenarios or list(SCENARIOS)
        found = run_pairs(names, jobs, max(options.every, 1), journal)
        yield summed_up("pairs", found, len(names))
        return
    part = options.part
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
        some_setbacks = itertools.islice(setback_cases(), 0, None, max(options.setbacks_every, 1))
        yield run_all("setback", part.take(some_setbacks), jobs, scenarios, journal)
    if "databases" in chosen:
        some_of_all = database_cases(max(options.databases_every, 1))
        yield run_all("databases", part.take(some_of_all), jobs, len(DATABASE_SCENARIOS), journal)


def _scenario(name: str) -> str:
    if name not in SCENARIOS and name not in DATABASE_SCENARIOS:
        raise argparse.ArgumentTypeError(f"no such scenario: {name}")
    return name


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
        "--setbacks-every", type=int, default=1, metavar="N",
        help="set the store back, or make its clock jump, at every Nth moment (default: all)",
    )  # fmt: skip
    every.add_argument(
        "--only", choices=PARTS, action="append", help="only these (may be given several times)"
    )
    some = modes.add_parser("random", help="random schedules by seed")
    some.add_argument("--schedules", type=int, default=20_000)
    some.add_argument("--seed", type=int, default=1, help="the first seed")
    pairs = modes.add_parser("pairs", help="every second fault after every first one, in each world once")
    pairs.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", type=_scenario, help="default: all without databases"
    )
    pairs.add_argument("--every", type=int, default=1, metavar="N", help="after every Nth first fault")
    for mode in (every, some):
        mode.add_argument(
            "--part", type=Part.parse, default=Part(), metavar="K/N",
            help="of all schedules the Kth, and every Nth after it: N machines share the work",
        )  # fmt: skip
    for mode in (every, some, pairs):
        mode.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        mode.add_argument(
            "--resume", type=Path, metavar="FILE",
            help="write down what was tried, and go on from there if FILE is of the same code",
        )  # fmt: skip
    for word, told in (("replay", "the timeline of one schedule"), ("shrink", "the faults that matter")):
        modes.add_parser(word, help=told).add_argument("name", help="a seed, or scenario:effect:fault")
    return parser
