"""Places in a datastore's log as text that sorts as they follow one another."""

from __future__ import annotations

import re
from typing import Final

from unstuck.core.backup.content import Position

_BACKUP: Final = re.compile(r"[0-9]+,[0-9]+,[A-Za-z0-9_-]+\.([0-9]{1,10}):([0-9]{1,12}),[0-9,-]*")
"""MariaDB's, as its agent writes it down (``guest/datastores/mariadb/place.py``)."""
_BINLOG: Final = re.compile(r"([0-9]{10}):([0-9]{12})")


def place_of(datastore: str, position: Position) -> str:
    """Raises :class:`ValueError` for one that is none, or of a datastore whose log is not kept."""
    match datastore:
        case "postgresql":
            return lsn_place(position.lsn)
        case "mariadb":
            found = _BACKUP.fullmatch(position.lsn)
            if found is None:
                raise ValueError(f"no place in a binary log: {position.lsn[:80]!r}")
            return binlog_place(int(found[1]), int(found[2]))
        case _:
            raise ValueError(f"the log of {datastore} is not kept")


def lsn_place(lsn: str) -> str:
    """A PostgreSQL LSN: sixteen digits."""
    high, found, low = lsn.partition("/")
    if not found or len(high) > 8 or len(low) > 8:
        raise ValueError(f"not an LSN: {lsn[:40]!r}")
    return f"{(int(high, 16) << 32) + int(low, 16):016X}"


def lsn_of(place: str) -> str:
    """The LSN again."""
    number = int(place, 16)
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def binlog_place(number: int, offset: int) -> str:
    """In MariaDB's binary log: the number of a file, and bytes in it. 0 is before all that happened in it."""
    return f"{number:010d}:{offset:012d}"


def binlog_of(place: str) -> tuple[int, int]:
    """The number and the bytes again. Raises :class:`ValueError`."""
    found = _BINLOG.fullmatch(place)
    if found is None:
        raise ValueError(f"no place in a binary log: {place[:80]!r}")
    return int(found[1]), int(found[2])
