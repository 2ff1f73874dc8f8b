"""Stored backups are read again, a few pieces at a time: what is kept of it, and what comes next. Pure.

A pass reads every piece once. A piece that is missing, or is not the object that was written, is read a
second time before it counts: a store may err once. What could not be read says nothing (law 4).
"""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.core.time import Now, backoff

FIRST: Final = 3600.0
"""Seconds after its end until a backup's first pass."""
EVERY: Final = 7 * 86400.0
"""Seconds from the end of a pass to the next one."""
DOUBT: Final = 60.0
"""Seconds until what was bad is read again."""
DAMAGED: Final = 86400.0
"""Seconds until a damaged one is looked at again: somebody may have put the piece back."""
AWAY_FIRST: Final = 60.0
AWAY_MOST: Final = 3600.0
FOUND: Final = "read again in the store of objects: "
"""How the reasons begin of which a later pass without a fault is the end."""


class Scrub(msgspec.Struct, frozen=True, kw_only=True):
    """``done`` of ``pieces`` have been read in this pass. ``whole``: when the last pass ended that read all
    of them and found them right; wall time, as ``since`` (of this pass). ``doubt``: what was bad when it
    was read last. ``failures``, ``trouble``: how often in a row nothing could be read, and why."""

    done: int = 0
    pieces: int = 0
    since: float | None = None
    whole: float | None = None
    doubt: str = ""
    failures: int = 0
    trouble: str = ""


class Right(msgspec.Struct, frozen=True):
    """The pieces up to ``done`` of ``pieces`` are what was written."""

    done: int
    pieces: int


class Wrong(msgspec.Struct, frozen=True):
    """A piece is certainly missing, or is not the object that was written; ``done`` before it were right."""

    done: int
    pieces: int
    reason: str


class Away(msgspec.Struct, frozen=True):
    """Nothing could be read; why."""

    reason: str


class Next(msgspec.Struct, frozen=True):
    """``after``: seconds until the next look. ``damaged``: why it is, found just now. ``whole``: all of it
    was read in this pass and is right."""

    scrub: Scrub
    after: float
    damaged: str | None = None
    whole: bool = False


def read(before: Scrub, said: Right | Wrong | Away, now: Now, every: float, key: str) -> Next:
    """What a look at the store of objects comes to. ``every``: seconds between passes; ``key`` spreads."""
    since = now.wall if before.since is None else before.since
    match said:
        case Away(reason):
            failures = before.failures + 1
            after = backoff(failures, AWAY_FIRST, AWAY_MOST, key=key)
            return Next(msgspec.structs.replace(before, failures=failures, trouble=reason[:500]), after)
        case Wrong(done, pieces, reason):
            kept = Scrub(done=done, pieces=pieces, since=since, whole=before.whole, doubt=reason)
            if before.doubt != reason:
                return Next(kept, min(DOUBT, every))
            anew = msgspec.structs.replace(kept, done=0, since=None)
            return Next(anew, min(DAMAGED, every), damaged=f"{FOUND}{reason}")
        case Right(done, pieces) if done < pieces:
            return Next(Scrub(done=done, pieces=pieces, since=since, whole=before.whole), 0.0)
        case Right(done, pieces):
            return Next(Scrub(done=done, pieces=pieces, whole=now.wall), every, whole=True)


def begun(before: Scrub) -> int:
    """The piece that is read next: a whole pass is followed by a new one."""
    return 0 if before.since is None else before.done


def cleared(damaged: str | None) -> bool:
    """Whether a whole pass without a fault ends this damage: it was found by reading."""
    return damaged is not None and damaged.startswith(FOUND)
