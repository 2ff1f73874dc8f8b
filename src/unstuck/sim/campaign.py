"""Many schedules on several processes, of which a journal remembers what was tried."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.pool
import sys
import time
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from unstuck.sim.cases import Case
from unstuck.sim.journal import Journal, Tried

SHOWN = 5
"""So many violations are printed as they are found; a journal keeps all."""


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON line of a campaign."""

    mode: str
    scenarios: int
    effects: int
    schedules: int
    violations: int
    seconds: float
    resumed: int = 0
    """Schedules that an earlier run of the same code has tried."""
    pruned: int = 0
    """Pairs of faults that were left out, because a second fault in that world was tried elsewhere."""


def quiet() -> None:
    """The product's own log is not what a campaign is about."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def workers(jobs: int) -> multiprocessing.pool.Pool:
    return multiprocessing.get_context("spawn").Pool(jobs, initializer=quiet)


def run_case(case: Case) -> Tried:
    verdict = case.run()
    return Tried(case.name, verdict.effects, verdict.violations)


def run_all(
    mode: str, cases: Iterable[Case], jobs: int, scenarios: int, journal: Journal | None = None
) -> Summary:
    """Run every case on ``jobs`` processes; prints the first violations and then the JSON line.

    What the journal knows counts, and is not run again.
    """
    return summed_up(mode, _run_cases(cases, jobs, journal), scenarios)


def summed_up(mode: str, found: Iterable[tuple[Tried, bool]], scenarios: int) -> Summary:
    """``found``: what came of schedules, and whether a journal knew it already."""
    began = time.monotonic()
    effects = schedules = violations = resumed = pruned = 0
    for tried, known in found:
        effects += tried.effects
        schedules += tried.schedules
        pruned += tried.pruned
        resumed += tried.schedules if known else 0
        if tried.violations:
            violations += 1
            if violations <= SHOWN:
                print(
                    f"violation in {tried.name}: {'; '.join(tried.violations)}", file=sys.stderr, flush=True
                )
    seconds = round(time.monotonic() - began, 1)
    summary = Summary(mode, scenarios, effects, schedules, violations, seconds, resumed, pruned)
    print(msgspec.json.encode(summary).decode(), flush=True)
    return summary


def _run_cases(cases: Iterable[Case], jobs: int, journal: Journal | None) -> Iterator[tuple[Tried, bool]]:
    known: list[Tried] = []

    def unknown() -> Iterator[Case]:
        for case in cases:
            if journal is None or case.name not in journal.known:
                yield case
            else:
                known.append(journal.known[case.name])

    with workers(jobs) as pool:
        for tried in pool.imap_unordered(run_case, unknown(), chunksize=20):
            if journal is not None:
                journal.add(tried)
            yield tried, False
    yield from ((tried, True) for tried in known)
