"""``unstuck sim exhaustive|pairs|random|replay|shrink``: one JSON line per mode, and a readable timeline."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from unstuck.sim.campaign import Named, Summary, quiet, run_all
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
from unstuck.sim.pairs import run_pairs
from unstuck.sim.runner import Verdict
from unstuck.sim.scenarios import SCENARIOS
from unstuck.sim.setback import DATABASE_SETBACK, JUMP_SCENARIOS, SETBACK_SCENARIOS
from unstuck.sim.shrink import shrink

BLOCK = 1000
"""Seeds of one part of a campaign."""


def replay(name: str) -> Verdict:
    """Run one case and print its timeline."""
    case = parse_case(name)
    verdict = case.run(tracing=True)
    print(f"{case.scenario}, faults {[(k, f.value if f else 'any') for k, f in sorted(case.faults.items())]}")
    print(f"{case.setback or ''} {case.jump or ''}".strip() or "the store goes on, and so does the clock")
    print("\n".join(verdict.trace))
    print("\n".join(f"VIOLATION  {text}" for text in verdict.violations) or "no violation")
    return verdict


def _smaller(name: str) -> bool:
    case, violations = shrink(parse_case(name))
    print(f"{case.name}: {'; '.join(violations) or 'no violation'}")
    return not violations


def _by_scenario(cases: Iterable[Case]) -> Iterator[Named]:
    return ((case.scenario, case) for case in cases)


def _seeds(first: int, count: int) -> Iterator[Named]:
    for seed in range(first, first + count):
        start = first + (seed - first) // BLOCK * BLOCK
        yield f"{start} to {min(start + BLOCK, first + count) - 1}", random_case(seed)


def _exhaustive(options: argparse.Namespace) -> list[Summary]:
    every, databases, state = max(options.every, 1), max(options.databases_every, 1), options.state
    chosen = itertools.islice(exhaustive_cases(SCENARIOS), 0, None, every)
    scenarios = len({*SETBACK_SCENARIOS, *JUMP_SCENARIOS, DATABASE_SETBACK})
    suffix = "" if every == 1 else f", every {every}th"
    data_suffix = "" if databases == 1 else f", every {databases}th"
    data = _by_scenario(database_cases(databases))
    return [
        run_all(f"exhaustive{suffix}", _by_scenario(chosen), options.jobs, len(SCENARIOS), state),
        run_all("setback", _by_scenario(setback_cases()), options.jobs, scenarios, state),
        run_all(f"databases{data_suffix}", data, options.jobs, len(DATABASE_SCENARIOS), state),
    ]


def _pairs(options: argparse.Namespace) -> list[Summary]:
    return [run_pairs(options.scenarios or SCENARIOS, options.jobs, max(options.every, 1), options.state)]


def _random(options: argparse.Namespace) -> list[Summary]:
    seeds = _seeds(options.seed, options.schedules)
    return [run_all("random", seeds, options.jobs, len(SCENARIOS) + len(DATABASE_SCENARIOS), options.state)]


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
    pairs = modes.add_parser("pairs", help="every second fault after every first one, in each world once")
    pairs.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="default: all without databases",
    )  # fmt: skip
    pairs.add_argument("--every", type=int, default=1, metavar="N", help="after every Nth first fault")
    some = modes.add_parser("random", help="random schedules by seed")
    some.add_argument("--schedules", type=int, default=20_000)
    some.add_argument("--seed", type=int, default=1, help="the first seed")
    for mode in (every, pairs, some):
        mode.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        mode.add_argument(
            "--state", type=Path, metavar="FILE",
            help="keep there what is done, and go on from there; other code begins anew",
        )  # fmt: skip
    for name, words in (("replay", "the timeline of one schedule"), ("shrink", "the faults that matter")):
        modes.add_parser(name, help=words).add_argument("name", help="a seed, or scenario:effect:fault")
    return parser


def main(argv: list[str]) -> int:
    """Exit status 1 if anything was violated."""
    parser = _parser()
    options = parser.parse_args(argv)
    quiet()
    if options.mode in ("replay", "shrink"):
        try:
            parse_case(options.name)
        except ValueError as error:
            parser.error(f"{error}; it is a seed (a number), or scenario:effect:fault as a report names it")
        if options.mode == "shrink":
            return 0 if _smaller(options.name) else 1
        return 1 if replay(options.name).violations else 0
    unknown = {*(options.scenarios if options.mode == "pairs" else ())} - {*SCENARIOS, *DATABASE_SCENARIOS}
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    run: Callable[[argparse.Namespace], list[Summary]] = {
        "exhaustive": _exhaustive, "pairs": _pairs, "random": _random,
    }[options.mode]  # fmt: skip
    return 1 if any(summary.violations for summary in run(options)) else 0
