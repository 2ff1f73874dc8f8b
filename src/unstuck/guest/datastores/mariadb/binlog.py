"""The binary log on the volume: as much of it as is of use, and not as much as a volume holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unstuck.guest.datastores.mariadb.session import Session
from unstuck.guest.datastores.mariadb.words import literal

KEEP: Final = 256 << 20
"""Bytes of it that stay. The server itself knows only times, and a busy one fills a volume in less."""
EVERY: Final = 60.0
"""Seconds between two looks at it."""


def oldest_kept(files: Sequence[tuple[str, int]], keep: int) -> str | None:
    """The first file (they come from the oldest to the newest) that stays; None: all of them do."""
    room, kept = keep, files[-1][0] if files else ""
    for name, size in reversed(files):
        room -= size
        if room < 0:
            return None if kept == files[0][0] else kept
        kept = name
    return None


def trim(session: Session, keep: int = KEEP) -> None:
    """Let go of what is too much. Files that somebody reads stay until the next time."""
    files = [(str(row[0]), int(row[1])) for row in session.ask("SHOW BINARY LOGS")]
    kept = oldest_kept(files, keep)
    if kept is not None:
        session.ask(f"PURGE BINARY LOGS TO {literal(kept)}")
