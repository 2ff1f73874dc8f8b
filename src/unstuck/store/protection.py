"""How databases are protected, in figures: backups that are damaged, and how far logs are kept.

They grow with what there is, so that they are counted beside a scrape and never by it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.data import Ending
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.archive import archive_marks, archives
from unstuck.store.schema.database import backups

LOOK_BACK: Final = 3600.0
"""Seconds of marks that are looked through: a lag is told up to this."""

_DAMAGED = Prepared(
    sa.select(sa.func.count(backups.c.damaged), sa.func.count()).where(
        backups.c.ended == Ending.COMPLETED.value, sa.not_(backups.c.deleted)
    )
)
_ARCHIVES = Prepared(
    sa.select(archives.c.closed, sa.func.count())
    .where(sa.not_(archives.c.removed))
    .group_by(archives.c.closed)
)
# The oldest moment of each log that is not kept yet.
_WAITING = Prepared(
    sa.select(archive_marks.c.archive_id, sa.func.min(archive_marks.c.wall).label("since"))
    .join(archives, archives.c.id == archive_marks.c.archive_id)
    .where(
        archives.c.closed.is_(None), sa.not_(archives.c.removed), archives.c.stop != "",
        archive_marks.c.wall > sa.bindparam("from_then"),
        archive_marks.c.timeline == archives.c.timeline, archive_marks.c.position > archives.c.stop,
    )
    .group_by(archive_marks.c.archive_id)
)  # fmt: skip


class Protection(msgspec.Struct, frozen=True):
    """``archives`` by what became of them: open, gap, diverged. ``lag_seconds``: how long the part of a log
    that happened first and is not kept yet has been waiting, of the worst one."""

    complete: int = 0
    damaged: int = 0
    archives: dict[str, int] = {}
    lag_seconds: float = 0.0
    lag_archive: str | None = None


def protection(tx: Tx) -> Protection:
    """Three statements that read all there is."""
    found = _DAMAGED.first(tx)
    assert found is not None
    kinds = {"open": 0, "gap": 0, "diverged": 0}
    for closed, count in _ARCHIVES.all(tx):
        kinds[closed or "open"] = count
    waiting = _WAITING.all(tx, from_then=tx.now.wall - LOOK_BACK)
    worst = min(waiting, key=lambda row: row.since, default=None)
    return Protection(
        complete=found[1], damaged=found[0], archives=kinds,
        lag_seconds=0.0 if worst is None else max(tx.now.wall - worst.since, 0.0),
        lag_archive=None if worst is None else worst.archive_id,
    )  # fmt: skip
