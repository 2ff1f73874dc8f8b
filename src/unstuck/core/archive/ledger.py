"""Which moments can be restored, and from what. Total: a moment is restorable, or it is said why not.

Time to position goes by the marks, which are the store's time, never by a guest's clock. A restore to T holds
everything up to the greatest position that was known at T, and nothing that came later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Final

import msgspec

from unstuck.core.archive.data import Archive, Base, Closed, Mark, Point
from unstuck.core.time import iso_seconds

SLACK: Final = 30.0
"""Seconds by which what is restored may be older than the moment that was asked for: as long as an agent may
be late before it counts as silent. Moments of which less is known than that are in no window."""


class Window(msgspec.Struct, frozen=True):
    """Moments without a gap, both included; wall time of the store in seconds."""

    archive_id: str
    earliest: float
    latest: float


class Restorable(msgspec.Struct, frozen=True):
    """From this backup on, by the log, to this point."""

    base: Base
    point: Point


class Not(msgspec.Struct, frozen=True):
    """This moment cannot be restored; why, for whoever asked."""

    reason: str


def _from(archive: Archive) -> Base | None:
    """The base that ends first, of those that the log goes on from."""
    found = _usable(archive)
    return min(found, key=lambda base: base.stop, default=None)


def _usable(archive: Archive) -> list[Base]:
    return [base for base in archive.bases if not base.damaged and goes_on(archive, base)]


def is_based(archive: Archive) -> bool:
    """Whether there is a base that something can be restored from, now or once its log has come."""
    return bool(_usable(archive))


def goes_on(archive: Archive, base: Base) -> bool:
    """Whether the log that is there follows the base's end without a gap, if there is any yet."""
    if archive.stop == "" or base.timeline > archive.timeline:
        return True
    return base.timeline == archive.timeline and archive.start <= base.stop


def _there(archive: Archive, first: Base, mark: Mark) -> bool:
    """Whether a mark's position can be reached from this base."""
    if mark.timeline != first.timeline or mark.position < first.stop:
        return False
    same = archive.timeline == first.timeline
    return mark.position == first.stop or (same and mark.position <= archive.stop)


def base_for(archive: Archive, mark: Mark) -> Base | None:
    """The newest base from which a mark's position can be reached."""
    found = [base for base in _usable(archive) if _there(archive, base, mark)]
    return max(found, key=lambda base: (base.stop, base.wall), default=None)


def windows(archive: Archive, idle_until: float | None = None) -> list[Window]:
    """What can be restored of one archive, in its order.

    ``idle_until``: until when it is known that nothing has happened since the newest mark; None: it is not.
    """
    first = _from(archive)
    if first is None:
        return []
    found: list[Window] = []
    joined = False
    for mark, after in zip_longest(archive.marks, archive.marks[1:]):
        end = _answers_until(archive, mark, after, idle_until)
        if end is None or not _there(archive, first, mark):
            joined = False
            continue
        begin = found.pop().earliest if joined else mark.wall
        found.append(Window(archive.id, begin, end))
        joined = mark.held is None
    return found


def _answers_until(
    archive: Archive, mark: Mark, after: Mark | None, idle_until: float | None
) -> float | None:
    """Up to which moment this mark says what was there; None: it was old already when it came."""
    if mark.held is not None:
        return max(mark.held, mark.wall) if mark.held >= mark.wall - SLACK else None
    if after is not None:
        return max(mark.wall, after.wall - 0.001)
    if archive.closed_wall is None and idle_until is not None:
        return max(mark.wall, idle_until)
    return mark.wall


def resolve(archives: Sequence[Archive], at: float, idle_until: float | None = None) -> Restorable | Not:
    """What a restore to this moment is made from. ``archives`` of one instance, the oldest first."""
    found = [
        (archive, each)
        for archive in archives
        for each in windows(archive, _idle(archives, archive, idle_until))
    ]
    for archive, each in reversed(found):
        if each.earliest <= at <= each.latest:
            mark = [one for one in archive.marks if one.wall <= at][-1]
            base = base_for(archive, mark)
            if base is None:
                break
            return Restorable(base, Point(archive.id, mark.timeline, mark.position, at))
    return Not(_why_not(archives, [each for _, each in found], at))


def _idle(archives: Sequence[Archive], archive: Archive, idle_until: float | None) -> float | None:
    return idle_until if archive is archives[-1] else None


def _why_not(archives: Sequence[Archive], known: Sequence[Window], at: float) -> str:
    if not known:
        return "nothing of it can be restored to a moment yet: there is no complete backup with its log"
    if at < known[0].earliest:
        return f"the earliest moment is {iso_seconds(known[0].earliest)}"
    if at > known[-1].latest:
        return f"the latest moment is {iso_seconds(known[-1].latest)}"
    for before, after in pairwise(known):
        if before.latest < at < after.earliest:
            why = "nothing was heard of the database"
            if before.archive_id != after.archive_id:
                why = _closed(archives, before.archive_id)
            return (
                f"there is a gap ({why}) from {iso_seconds(before.latest)} to {iso_seconds(after.earliest)}"
            )
    return "the log of that moment is not there any more"


def _closed(archives: Sequence[Archive], archive_id: str) -> str:
    for archive in archives:
        if archive.id == archive_id:
            match archive.closed:
                case Closed.GAP:
                    return "the store of objects was away for too long"
                case Closed.DIVERGED:
                    return "the volume was set back"
                case None:
                    return "another archive was begun"
    return "unknown"


def thinned(marks: Sequence[Mark], now: float, fine: float, coarse: float) -> list[Mark]:
    """Marks that can go: of those older than ``fine`` seconds only one of each ``coarse`` seconds stays, the
    newest of its time, so that what is left still answers for every later moment."""
    gone: list[Mark] = []
    for mark, after in pairwise(marks):
        old = mark.wall < now - fine and mark.held is None
        if old and mark.wall // coarse == after.wall // coarse:
            gone.append(mark)
    return gone


EVERYTHING: Final = "~"
"""Behind every position."""


def not_needed_below(archive: Archive, *, removed: bool, reads_from: Sequence[str], live: bool) -> str:
    """Pieces that end at or before this position are needed by nobody any more.

    ``removed``: its instance has gone for good. ``reads_from``: where the bases of running restores end.
    ``live``: a backup is being made that may become a base.
    """
    floors = [*reads_from] if removed else [*reads_from, *(base.stop for base in archive.bases)]
    if floors:
        return min(floors)
    if removed or (archive.closed is not None and not live):
        return EVERYTHING
    return "" if live else archive.stop


__all__ = [
    "EVERYTHING", "SLACK", "Not", "Restorable", "Window", "base_for", "goes_on", "is_based",
    "not_needed_below", "resolve", "thinned", "windows",
]  # fmt: skip
