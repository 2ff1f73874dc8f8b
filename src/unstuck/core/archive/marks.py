"""Marks of the store's time in a log, from what its guest's host tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from unstuck.core.archive.data import LogSeen, Mark
from unstuck.core.archive.ledger import SLACK


def marked(before: Mark | None, known: float | None, told: Sequence[LogSeen], now: float) -> list[Mark]:
    """The newest mark that there is (``before``), as far as it is another now, and those that follow it.

    ``known``: up to when ``before`` is known to hold without what is told now. What went back is another
    history, and not told of here. The wall clock may be set back; the order of what was seen may not.
    """
    found: list[Mark] = []
    last, held = before, known
    for one in told:
        if last is not None and (one.timeline, one.position) < (last.timeline, last.position):
            continue
        if last is not None and (one.timeline, one.position) == (last.timeline, last.position):
            held = _certain(last.wall, one, now)
            continue
        wall = now - one.first
        if last is not None:
            wall = max(wall, last.wall + 0.001)
            found.append(_until(last, held, wall))
        last, held = Mark(wall, one.timeline, one.position), _certain(wall, one, now)
    if last is not None:
        found.append(_until(last, held, max(now, last.wall)))
    return found


def _certain(wall: float, one: LogSeen, now: float) -> float:
    """Up to when it was so, by the clock as it is now, or as it was before it was set back."""
    return max(now - one.last, wall + one.first - one.last)


def _until(mark: Mark, held: float | None, after: float) -> Mark:
    """``held`` says something only where it is long before what comes next."""
    known = mark.wall if held is None else held
    return msgspec.structs.replace(mark, held=None if after - known < SLACK else known)
