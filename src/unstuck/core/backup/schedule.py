"""What a schedule's row says is to be done now. Pure.

A schedule's ticks are wall time, which is its user's; that wall time jumps. So a tick is named by the
schedule and by the time that it was planned for: of one tick there is one backup, also after the clock went
back. And of all ticks that have passed unseen, however many, at most the last one is run.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Final

import msgspec

from unstuck.core.backup.cron import last_tick, next_tick, ticks
from unstuck.core.time import Now

GRACE: Final = 300.0
"""Seconds after which a tick that nobody has seen is late, and not just being looked at."""
COUNTED: Final = 500
"""So many missed ticks are counted one by one."""
LOOK: Final = 3600.0
"""Seconds between two looks, also where the next tick is later: the clock may have gone back."""
REMEMBERED: Final = 20
"""Outcomes that a schedule keeps."""


class Kind(StrEnum):
    """What a tick makes."""

    BACKUP = "backup"
    VERIFY = "verify"
    """A verification, by a restore, of the instance's last complete backup."""


class Missed(StrEnum):
    """What becomes of the last tick that was missed; the ones before it are only counted."""

    ONCE = "once"
    """It is run as soon as possible."""
    SKIP = "skip"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """``planned``: wall time of the next tick. ``starts``: lease time before which there is none."""

    cron: str
    timezone: str
    missed: Missed
    planned: float
    starts: float = 0.0


class Happened(StrEnum):
    MADE = "made"
    SKIPPED = "skipped"
    """It came at its time, and something was in its way."""
    MISSED = "missed"
    """It came while nobody was there to see it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a tick. Wall times; ``missed``: ticks before it that nobody saw."""

    planned: float
    decided: float
    what: Happened
    reason: str = ""
    made: str | None = None
    """The id of what it made."""
    missed: int = 0


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run the tick that was planned for ``planned``, ``late`` seconds after that."""

    planned: float
    missed: int
    late: float


class PassOver(msgspec.Struct, frozen=True, tag=True):
    """The last missed tick is not run either."""

    planned: float
    missed: int
    reason: str


class Replan(msgspec.Struct, frozen=True, tag=True):
    """The clock went back: its next tick is earlier than was planned."""

    planned: float


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Nothing is due."""


Due = Run | PassOver | Replan | Wait


def first_tick(schedule: Schedule, now: Now) -> float | None:
    """The next tick from now on, but none before the schedule starts; None where there is never another."""
    return next_tick(schedule.cron, schedule.timezone, now.wall + max(schedule.starts - now.lease, 0.0))


def due(schedule: Schedule, now: Now) -> Due:
    """What is to be done at ``now``."""
    if now.wall < schedule.planned:
        earlier = first_tick(schedule, now)
        return Replan(earlier) if earlier is not None and earlier < schedule.planned else Wait()
    last = last_tick(schedule.cron, schedule.timezone, now.wall)
    if last is None or last < schedule.planned:
        last = schedule.planned
    missed = _missed(schedule, last)
    late = now.wall - last
    if late > GRACE and schedule.missed is Missed.SKIP:
        return PassOver(last, missed, f"it was seen {late:.0f} s late only")
    return Run(last, missed, late)


def _missed(schedule: Schedule, last: float) -> int:
    """Ticks from the planned one up to, and without, the last one; not counted beyond :data:`COUNTED`."""
    if last <= schedule.planned:
        return 0
    following = ticks(schedule.cron, schedule.timezone, schedule.planned)
    before = itertools.takewhile(lambda tick: tick < last, following)
    return 1 + sum(1 for _ in itertools.islice(before, COUNTED - 1))


def remember(history: tuple[Outcome, ...], outcome: Outcome) -> tuple[Outcome, ...]:
    """The newest first."""
    return (outcome, *history)[:REMEMBERED]
