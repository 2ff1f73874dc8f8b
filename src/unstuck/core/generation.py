"""The store's generation: how a store that was set back is told from one that went on.

A copy put back goes through the same numbers a second time. So whoever heard the store keeps the highest
it heard, and a store that is asked by somebody who heard more knows that it has lost something.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """The furthest that somebody has heard the store go.

    ``version`` and ``incarnation`` are those of one host, and 0 where no host is speaking.
    """

    generation: int
    generation_id: str
    tick: int
    version: int = 0
    incarnation: int = 0


class Relation(StrEnum):
    """What a mark says of the store. Only ``FITS`` needs nothing done."""

    FITS = "fits"
    BEHIND = "behind"
    DIFFERENT = "different"


def relation(store: Mark, heard: Mark) -> Relation:
    """Compare counters; an equal counter with another id means two histories.

    A mark of an earlier generation fits: what it heard beyond the copy is lost, and known to be.
    """
    if heard.generation != store.generation:
        return Relation.BEHIND if heard.generation > store.generation else Relation.FITS
    if heard.generation_id != store.generation_id:
        return Relation.DIFFERENT
    ahead = heard.tick > store.tick or heard.version > store.version or heard.incarnation > store.incarnation
    return Relation.BEHIND if ahead else Relation.FITS


def further(one: Mark | None, other: Mark) -> Mark:
    """The later of two marks of one listener; within a generation the highest of each number."""
    if one is None or other.generation > one.generation:
        return other
    if other.generation < one.generation or other.generation_id != one.generation_id:
        return one
    return Mark(
        one.generation,
        one.generation_id,
        max(one.tick, other.tick),
        max(one.version, other.version),
        max(one.incarnation, other.incarnation),
    )


class Recovery(msgspec.Struct, frozen=True):
    """The store was set back. ``lease`` and ``wall`` are the times at which that was noticed."""

    lease: float
    wall: float
    why: str


PATIENCE = 60.0
"""Seconds of a session for which everybody waits for a host to say what it holds."""
SHORT_PATIENCE = 15.0
"""The same for a host that was away before the session began: three heartbeats, should it be back."""


def awaited_until(seen: float, began: float) -> float:
    """Until when (lease time) a host that was heard at ``seen`` is waited for in a session."""
    return began + (PATIENCE if seen > began - PATIENCE else SHORT_PATIENCE)


class Awaited(msgspec.Struct, frozen=True):
    """Hosts that have to say what they hold before anything is placed.

    ``until``: lease time from which on nobody waits for them any more; None: until an operator says so.
    """

    hosts: tuple[str, ...]
    until: float | None


class Dispute(StrEnum):
    """What store and host do not agree on, of a server in recovery mode."""

    UNKNOWN = "unknown"
    """The host has it and the store had lost it; it was adopted as it is."""
    MISSING = "missing"
    """The store has it, and its host has no disk of it: it was deleted since, or the disk was lost."""
