"""Which effects of a run differ: a fault is tried once in each world that it can hit."""

from __future__ import annotations

from unstuck.sim.engine import Fault
from unstuck.sim.runner import FaultPlan, Run, Verdict

Key = tuple[str, str, int]
"""Who does what in which world: process, effect, hash of rows, hosts, guests and objects."""
Seen = set[Key]


def effects_of(scenario: str, faults: FaultPlan, *, on_its_way: bool) -> tuple[list[Key], Verdict]:
    """One run with the faults planned, and the world at each of its effects.

    ``on_its_way``: worlds differ, too, where late messages, frozen processes or restarts to come do.
    """
    run = Run(scenario, seed=None, faults=faults, tracing=False)
    run.marks = []
    run.marks_say_what_is_on_its_way = on_its_way
    verdict = run.run()
    return [(*name, mark) for name, mark in zip(run.names, run.marks, strict=True)], verdict


def unlike_effects(scenario: str, seen: Seen | None = None) -> list[tuple[int, str, str]]:
    """The effects of a plain run that differ: (number, process, name).

    Where the same process comes to the same effect in the same world once more (it waits, and only time
    has passed), a crash there is the crash that was tried already; also where another scenario, whose
    effects are in ``seen``, came to it: many begin alike.
    """
    keys, _ = effects_of(scenario, {}, on_its_way=False)
    first: dict[Key, int] = {}
    for number, key in enumerate(keys, start=1):
        first.setdefault(key, number)
    known = set() if seen is None else seen.copy()
    if seen is not None:
        seen.update(first)
    return [(number, key[0], key[1]) for key, number in first.items() if key not in known]


def second_effects(scenario: str, number: int, fault: Fault) -> tuple[list[tuple[int, Key]], Verdict]:
    """The effects after a first fault, each world once: what a second fault may hit."""
    keys, verdict = effects_of(scenario, {number: fault}, on_its_way=True)
    first: dict[Key, int] = {}
    for later, key in enumerate(keys[number:], start=number + 1):
        first.setdefault(key, later)
    return [(later, key) for key, later in first.items()], verdict
