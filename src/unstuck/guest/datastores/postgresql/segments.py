"""Names and places of PostgreSQL's log: segments, and positions in it."""

from __future__ import annotations

import re
from typing import Final

SEGMENT: Final = re.compile(r"[0-9A-F]{24}\Z")
HISTORY: Final = re.compile(r"([0-9A-F]{8})\.history\Z")
LABEL: Final = re.compile(r"([0-9A-F]{24})\.([0-9A-F]{8})\.backup\Z")
PARTIAL: Final = re.compile(r"([0-9A-F]{24})\.partial\Z")
_IN_ALL: Final = 1 << 32


def number_of(lsn: str) -> int:
    """An LSN's place in the log, in bytes. Raises :class:`ValueError`."""
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_of(number: int) -> str:
    """The LSN of a place in the log."""
    return f"{number >> 32:X}/{number & (_IN_ALL - 1):X}"


def name_of(timeline: int, index: int, size: int) -> str:
    """The file of segment ``index`` (from 0), where segments have ``size`` bytes."""
    each = _IN_ALL // size
    return f"{timeline:08X}{index // each:08X}{index % each:08X}"


def place_of(name: str, size: int) -> tuple[int, int]:
    """(timeline, index) of a segment's file."""
    each = _IN_ALL // size
    return int(name[:8], 16), int(name[8:16], 16) * each + int(name[16:24], 16)


def needed(start: int, stop: int, size: int) -> range:
    """Indexes of the segments that hold the log from ``start`` to ``stop`` (which is not in it any more)."""
    return range(start // size, -(-stop // size))
