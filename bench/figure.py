"""What a measurement says."""

from __future__ import annotations

from statistics import median

import msgspec


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the result. ``goal`` is the most that is allowed (with ``least``: the least); without one
    it is for information."""

    name: str
    value: float | None
    unit: str
    goal: float | None = None
    ok: bool | None = None
    note: str = ""
    least: bool = False


def figure(
    name: str, value: float, unit: str, goal: float | None = None, note: str = "", *, least: bool = False
) -> Figure:
    """A measured value and whether it meets its goal."""
    met = None if goal is None else (value >= goal if least else value <= goal)
    digits = 2 if value < 10 else 1 if value < 1000 else 0
    return Figure(name, round(value, digits), unit, goal, met, note, least)


def times(name: str, seconds: list[float], goal: float | None = None) -> Figure:
    """The median of many times in milliseconds; the note says how far they spread."""
    return figure(name, median(seconds) * 1000, "ms", goal, spread(seconds))


def spread(values: list[float], factor: float = 1000) -> str:
    """How often, and between which values (a tenth and nine tenths, where there are enough)."""
    ordered = sorted(values)
    low, high = ordered[0] * factor, ordered[-1] * factor
    text = f"{len(ordered)} times, {low:.3g} to {high:.3g}"
    if len(ordered) >= 20:
        text += f", 9 of 10 below {ordered[len(ordered) * 9 // 10] * factor:.3g}"
    return text


def row(item: Figure) -> str:
    """A line for people."""
    value = "-" if item.value is None else f"{item.value:g}"
    goal = "" if item.goal is None else f"{'>=' if item.least else '<='} {item.goal:g}"
    verdict = {True: "ok", False: "MISSED", None: ""}[item.ok]
    return f"{item.name:60} {value:>8} {item.unit:12} {goal:8} {verdict:7} {item.note}"
