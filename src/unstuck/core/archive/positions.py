"""Places in a datastore's log as text that sorts as they follow one another."""

from __future__ import annotations

from unstuck.core.backup.content import Position


def place_of(datastore: str, position: Position) -> str:
    """Raises :class:`ValueError` for one that is none, or of a datastore whose log is not kept."""
    if datastore == "postgresql":
        return lsn_place(position.lsn)
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
