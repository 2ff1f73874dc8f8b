"""When a cron expression's ticks are, in a time zone. Pure, but for the time zones' files.

The expression counts in local time, and a tick is an instant. A local time that does not exist, because the
clock was put forward over it, is the instant at which that happened; one that exists twice, because the clock
was put back, is the first of the two. So a daily tick comes once on each day, whatever that day has of hours.
"""

from __future__ import annotations

import datetime
import functools
import zoneinfo
from collections.abc import Iterator
from typing import Final

from cronsim import CronSim, CronSimError

LONGEST: Final = 255
AHEAD: Final = datetime.timedelta(hours=3)
"""By how much local time may go back at once."""


class BadCron(ValueError):
    """An expression or a time zone that says nothing; which field, and why."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


def check(expression: str, timezone: str, after: float) -> None:
    """Raises :class:`BadCron` for what is no expression of five fields, never ticks, or no IANA time zone."""
    _zone(timezone)
    if len(expression) > LONGEST or len(expression.split()) != 5:
        raise BadCron("cron", "it has five fields: minute, hour, day of month, month, day of week.")
    try:
        found = next_tick(expression, timezone, after)
    except CronSimError as error:
        raise BadCron("cron", f"{str(error)[:1].lower()}{str(error)[1:]}.") from None
    if found is None:
        raise BadCron("cron", "there is no such day.")


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadCron(
            "timezone", f"there is no time zone {name[:60]!r}; it is a name like Europe/Berlin or UTC."
        ) from None


def ticks(expression: str, timezone: str, after: float) -> Iterator[float]:
    """Every tick later than ``after``, in order; seconds since the epoch."""
    zone, seen = _zone(timezone), after
    try:
        # One minute earlier: it goes on behind where it begins.
        start = _local(after, zone) - datetime.timedelta(minutes=1)
        for local in CronSim(expression, start):
            tick = _instant(local, zone)
            if tick > seen:
                seen = tick
                yield tick
    except (OverflowError, RuntimeError):
        return  # behind the last year that there is


def next_tick(expression: str, timezone: str, after: float) -> float | None:
    """The first tick later than ``after``."""
    return next(ticks(expression, timezone, after), None)


def last_tick(expression: str, timezone: str, until: float) -> float | None:
    """The last tick not later than ``until``."""
    zone = _zone(timezone)
    # What local time there was before the clock was put back is ahead of what it shows now.
    for local in CronSim(expression, _local(until, zone) + AHEAD, reverse=True):
        tick = _instant(local, zone)
        if tick <= until:
            return tick
    return None


def _local(instant: float, zone: zoneinfo.ZoneInfo) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)


def _instant(local: datetime.datetime, zone: zoneinfo.ZoneInfo) -> float:
    instant = local.replace(tzinfo=zone, fold=0).timestamp()
    if _local(instant, zone) == local:
        return instant
    return _end_of_gap(local, zone, instant)


def _end_of_gap(local: datetime.datetime, zone: zoneinfo.ZoneInfo, later: float) -> float:
    """The instant at which local time was put forward over ``local``, to the second."""
    before, after = int(local.replace(tzinfo=zone, fold=1).timestamp()), int(later)
    while after - before > 1:
        middle = (before + after) // 2
        if _local(middle, zone) > local:
            after = middle
        else:
            before = middle
    return float(after)
