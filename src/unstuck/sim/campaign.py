"""Many schedules on several processes; what is done can be kept in a file, and a later run goes on there."""

from __future__ import annotations

import functools
import hashlib
import logging
import multiprocessing
import multiprocessing.pool
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

import unstuck
from unstuck.sim.cases import Case

SHOWN = 5
"""So many violations are printed as they are found; the file keeps all."""

Named = tuple[str, Case]
"""A schedule and the part of the campaign that it belongs to. Parts come one after another."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a campaign came to; ``covered`` and ``pruned`` count pairs of faults."""

    code: str
    mode: str
    part: str
    schedules: int = 0
    effects: int = 0
    covered: int = 0
    pruned: int = 0
    violations: tuple[str, ...] = ()


class Summary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The JSON line of a campaign. ``resumed``: so many schedules were done in earlier runs."""

    mode: str
    scenarios: int
    effects: int
    schedules: int
    violations: int
    seconds: float
    pairs_covered: int = 0
    pairs_pruned: int = 0
    resumed: int = 0


@functools.cache
def code_digest() -> str:
    """Of all our code: what was done by other code says nothing about this one."""
    root = Path(unstuck.__file__).parent
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


class Record:
    """The parts that are done: a line each, appended when a part is whole. Without a path nothing is kept."""

    def __init__(self, mode: str, path: Path | None) -> None:
        self.mode = mode
        self._path = path
        self.done: dict[str, Part] = {}
        self.earlier = 0
        if path is None or not path.exists():
            return
        for line in path.read_bytes().splitlines():
            try:
                part = msgspec.json.decode(line, type=Part)
            except msgspec.DecodeError:
                continue  # cut off by whatever ended that run: the part is done again
            if part.code == code_digest() and part.mode == mode:
                self.done[part.part] = part
        self.earlier = sum(part.schedules for part in self.done.values())

    def new(self, name: str) -> Part:
        return Part(code=code_digest(), mode=self.mode, part=name)

    def keep(self, part: Part) -> None:
        self.done[part.part] = part
        for text in part.violations[:SHOWN]:
            print(f"violation in {text}", file=sys.stderr, flush=True)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(part))

    def summary(self, scenarios: int, began: float) -> Summary:
        """Of all parts; prints the JSON line."""
        parts = self.done.values()
        summary = Summary(
            mode=self.mode,
            scenarios=scenarios,
            effects=sum(part.effects for part in parts),
            schedules=sum(part.schedules for part in parts),
            violations=sum(len(part.violations) for part in parts),
            seconds=round(time.monotonic() - began, 1),
            pairs_covered=sum(part.covered for part in parts),
            pairs_pruned=sum(part.pruned for part in parts),
            resumed=self.earlier,
        )
        print(msgspec.json.encode(summary).decode(), flush=True)
        return summary


def quiet() -> None:
    """The product's own log is not what a campaign is about."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def workers(jobs: int) -> multiprocessing.pool.Pool:
    return multiprocessing.get_context("spawn").Pool(jobs, initializer=quiet)


def run_case(case: Case) -> tuple[str, int, tuple[str, ...]]:
    """A schedule's name, its effects and what it violated."""
    verdict = case.run()
    return case.name, verdict.effects, verdict.violations


def _run_named(named: Named) -> tuple[str, str, int, tuple[str, ...]]:
    return (named[0], *run_case(named[1]))


def run_all(
    mode: str, cases: Iterable[Named], jobs: int, scenarios: int, state: Path | None = None
) -> Summary:
    """Run every case on ``jobs`` processes, but those of parts that ``state`` says are done."""
    began = time.monotonic()
    record = Record(mode, state)
    known = frozenset(record.done)
    sent: dict[str, int] = {}
    open_parts: dict[str, Part] = {}

    def to_do() -> Iterator[Named]:
        for part, case in cases:
            if part not in known:
                sent[part] = sent.get(part, 0) + 1
                yield part, case

    def keep(whole: Iterable[str]) -> None:
        for name in list(whole):
            record.keep(open_parts.pop(name))

    with workers(jobs) as pool:
        # In order: when a case of a part is back, all of the parts before it are.
        for name, case, effects, wrong in pool.imap(_run_named, to_do(), chunksize=20):
            if name not in open_parts:
                keep(open_parts)
                open_parts[name] = record.new(name)
            part = open_parts[name]
            found = (f"{case}: {'; '.join(wrong)}",) if wrong else ()
            open_parts[name] = msgspec.structs.replace(
                part,
                schedules=part.schedules + 1,
                effects=part.effects + effects,
                violations=part.violations + found,
            )
        keep(open_parts)
    return record.summary(scenarios, began)
