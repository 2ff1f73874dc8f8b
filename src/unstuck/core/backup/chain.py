"""Chains of backups: a full one, then incremental ones, each a child of the one before. Pure.

Everybody who restores one checks it by the same rules, so that a chain that does not hold together is never
unpacked: not by a guest, not by ``unstuck recover``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from unstuck.core.backup.content import Content

LONGEST: Final = 64
"""Parents that a backup has at most: the next one has to be a full one."""


def fault_of(chain: Sequence[Content]) -> str | None:
    """What is wrong with a chain, its full backup first; None: it holds together."""
    if not chain:
        return "it has no backup"
    if chain[0].parent is not None:
        return "its first backup is not a full one"
    for before, after in pairwise(chain):
        if after.parent is None:
            return "a full backup is in the middle of it"
        for what in ("datastore.type", "system_identifier", "generation"):
            if _of(before, what) != _of(after, what):
                return f"a backup in it has another {what.replace('datastore.type', 'datastore')}"
        if after.start != before.stop:
            return f"a backup in it begins at {after.start.lsn} and its parent ends at {before.stop.lsn}"
    return None


def _of(content: Content, what: str) -> str:
    return content.datastore.type if what == "datastore.type" else str(getattr(content, what))


def size_of(chain: Sequence[Content]) -> int:
    """Bytes of all the data."""
    return sum(content.size for content in chain)
