"""Which backups of an instance stay, and why; which may go. Pure.

What may go is what nobody wants any more: whoever pinned a backup, needs it as a parent or reads it keeps it.
While the clock is in doubt, nobody asks (``store/retention_work.py``).
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Annotated, Final

import msgspec

DAY: Final = 86400.0
FAILED_DAYS: Final = 7.0
"""For so long stays what is of no use, where the policy names no days: somebody may want to see why."""

Days = Annotated[float, msgspec.Meta(gt=0.0, le=36500.0)]
Few = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """A backup stays if any rule wants it. Without a rule all stay.

    ``days``: the recovery window; what it begins with stays, too. ``count``: so many, the newest.
    ``daily``, ``weekly``, ``monthly``: the last one of each of so many days, weeks and months that have any.
    ``minimum``: never less than so many, the newest. ``manual``: what somebody asked for is subject, too.
    """

    days: Days | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    daily: Few = 0
    weekly: Few = 0
    monthly: Few = 0
    minimum: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = "UTC"
    manual: bool = False


DEFAULT: Final = Policy(days=7.0)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that is not deleted. ``created``, ``done``: wall time of its begin and end (None: it has not
    ended). ``sound``: complete, and not known to be damaged. ``held``: who needs it now, in words."""

    id: str
    created: float
    done: float | None
    sound: bool
    automatic: bool = True
    pinned: bool = False
    parent: str | None = None
    held: str = ""


class Decision(msgspec.Struct, frozen=True):
    id: str
    keep: bool
    why: str


def decide(items: Sequence[Item], policy: Policy, now: float, *, gone: bool = False) -> tuple[Decision, ...]:
    """Of every backup whether it stays, the newest first. ``gone``: there is no instance any more, and only
    the window counts."""
    ordered = sorted(items, key=lambda item: (item.created, item.id), reverse=True)
    keep: dict[str, str] = {}
    for item in ordered:
        why = _untouchable(item, policy, now)
        if why:
            keep[item.id] = why
    subjects = [item for item in ordered if _subject(item, policy) and item.created <= now]
    for found, why in _rules(ordered, subjects, policy, now, gone=gone):
        keep.setdefault(found.id, why)
    _keep_parents(ordered, keep)
    return tuple(Decision(item.id, item.id in keep, keep.get(item.id) or _gone(item)) for item in ordered)


def _subject(item: Item, policy: Policy) -> bool:
    return item.automatic or policy.manual


def _untouchable(item: Item, policy: Policy, now: float) -> str:
    if item.done is None:
        return "it has not ended"
    if item.pinned:
        return "it is pinned"
    if not _subject(item, policy):
        return "somebody asked for it"
    if item.created > now:
        return "it was made later than now: the clock went back"
    return item.held


def _gone(item: Item) -> str:
    return "no rule keeps it any more" if item.sound else "it is of no use, and old enough"


def _rules(
    ordered: Sequence[Item], subjects: Sequence[Item], policy: Policy, now: float, *, gone: bool
) -> Iterable[tuple[Item, str]]:
    sound = [item for item in subjects if item.sound]
    days = policy.days or FAILED_DAYS
    yield from ((item, f"it is of no use, and {days:g} days have not passed")
                for item in subjects if not item.sound and item.created > now - days * DAY)  # fmt: skip
    if gone:
        yield from ((item, f"{days:g} days have not passed") for item in sound if _within(item, days, now))
        return
    yield from ((item, f"it is one of the last {policy.minimum}") for item in sound[: policy.minimum])
    if policy.days is None and policy.count is None and not policy.daily + policy.weekly + policy.monthly:
        yield from ((item, "the policy has no rule") for item in sound)
    if policy.count is not None:
        yield from ((item, f"it is one of the last {policy.count}") for item in sound[: policy.count])
    if policy.days is not None:
        yield from ((item, f"{policy.days:g} days have not passed") for item in sound
                    if _within(item, policy.days, now))  # fmt: skip
        start = now - policy.days * DAY
        base = [item for item in ordered if item.sound and item.done is not None and item.done <= start]
        yield from ((item, "the recovery window begins with it") for item in base[:1])
    yield from _periods(sound, policy)


def _within(item: Item, days: float, now: float) -> bool:
    return item.created > now - days * DAY


def _periods(sound: Sequence[Item], policy: Policy) -> Iterable[tuple[Item, str]]:
    zone = zoneinfo.ZoneInfo(policy.timezone)

    def date(item: Item) -> datetime.date:
        return datetime.datetime.fromtimestamp(item.created, zone).date()

    names: tuple[tuple[int, str, Callable[[Item], Hashable]], ...] = (
        (policy.daily, "day", date),
        (policy.weekly, "week", lambda item: date(item).isocalendar()[:2]),
        (policy.monthly, "month", lambda item: (date(item).year, date(item).month)),
    )
    for most, word, period in names:
        last: dict[Hashable, Item] = {}
        for item in sound if most else ():
            last.setdefault(period(item), item)
        yield from ((item, f"it is the last of its {word}") for item in list(last.values())[:most])


def _keep_parents(ordered: Sequence[Item], keep: dict[str, str]) -> None:
    known = {item.id: item for item in ordered}
    for item in ordered:
        child, seen = item, {item.id}
        while child.id in keep and child.parent in known and child.parent not in seen:
            parent = known[child.parent]
            keep.setdefault(parent.id, f"backup {child.id} needs it")
            seen.add(parent.id)
            child = parent
