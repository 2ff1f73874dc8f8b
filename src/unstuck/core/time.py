"""The two times of the store (law 9)."""

from __future__ import annotations

import datetime
import zlib

import msgspec


class Now(msgspec.Struct, frozen=True):
    """One reading of the store's clock.

    ``wall`` is seconds since the epoch, for people, tokens and schedules. ``lease`` is seconds of
    monotone lease time: wall time minus the gaps in which nobody could have renewed a lease.
    Deadlines are judged by ``lease`` only.
    """

    wall: float
    lease: float


def backoff(failures: int, first: float, most: float, *, key: str = "") -> float:
    """Seconds before the next try: ``first`` after one failure, then doubling up to ``most``.

    ``key`` (who waits) takes off up to a quarter, by another share at each failure, so that those who
    failed together do not come back together. It is the same at each run: the core knows no chance.

    The exponent is bounded: 2.0 ** 1024 raises OverflowError, which after half an hour without a control
    plane ended the agent, and after a day of failures of one server the loop of all.
    """
    seconds = min(first * 2.0 ** min(max(failures - 1, 0), 64), most)
    if not key:
        return seconds
    share = zlib.crc32(f"{key}:{failures}".encode(errors="backslashreplace")) / 2**32
    return seconds * (1.0 - share / 4)


def moment_of(text: str) -> float:
    """Wall time in seconds of an ISO 8601 time; without a zone it is UTC. Raises :class:`ValueError`."""
    try:
        found = datetime.datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    except (OverflowError, OSError) as error:
        raise ValueError(str(error)) from error


def iso_seconds(wall: float) -> str:
    """``2026-11-30T12:00:00Z``: the form of the compute and network APIs."""
    return _iso(wall, "seconds") + "Z"


def iso_micros(wall: float) -> str:
    """``2026-11-30T12:00:00.000000``: the form without a zone that some compute fields use."""
    return _iso(wall, "microseconds")


def _iso(wall: float, digits: str) -> str:
    """Without its zone, which is the last six characters; strftime takes three times as long."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec=digits)[:-6]
