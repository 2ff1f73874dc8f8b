"""Which moments of an instance can be restored, and from what: for its view, and for a restore to one."""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.archive.data import Archive, Mark
from unstuck.core.archive.ledger import Not, Restorable, Window, resolve, windows
from unstuck.core.errors import Invalid, NotFound
from unstuck.core.instance.view import DatabaseView
from unstuck.store import archives, readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.archive import archives as table
from unstuck.store.schema.compute import hosts, placements
from unstuck.store.schema.database import instances

HEARD: Final = 20.0
"""Seconds by which what is known of an idle database is older than its host's last word."""

_seen: msgspec.json.Decoder[DatabaseView | None] = msgspec.json.Decoder(DatabaseView)
_INSTANCE = Prepared(
    sa.select(
        instances.c.project_id, instances.c.alive, instances.c.seen, instances.c.deleted, hosts.c.seen_wall
    )
    .outerjoin(
        placements,
        sa.and_(placements.c.server_id == instances.c.server_id, placements.c.state == "live"),
    )
    .outerjoin(hosts, hosts.c.id == placements.c.host_id)
    .where(instances.c.id == sa.bindparam("instance"))
)
_ON_HOST = Prepared(
    sa.select(table.c.id.label("archive_id"), instances.c.alive, instances.c.seen, hosts.c.seen_wall)
    .select_from(placements)
    .join(instances, instances.c.server_id == placements.c.server_id)
    .join(table, table.c.instance_id == instances.c.id)
    .join(hosts, hosts.c.id == placements.c.host_id)
    .where(
        placements.c.host_id == sa.bindparam("host"), placements.c.state == "live", archives.IS_OPEN,
        table.c.known_wall.is_(None),
    )
)  # fmt: skip


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """What can be restored, and how the archive is.

    ``waiting_mb`` of ``budget_mb``: the log that is not kept yet; ``ended``: why the archive before the
    present one ended, while nothing can be restored from this one.
    """

    windows: tuple[Window, ...] = ()
    archive_id: str | None = None
    waiting_mb: int = 0
    budget_mb: int = 0
    ended: str | None = None
    trouble: str | None = None


def _archives(tx: Tx, instance_id: str) -> tuple[list[Archive], float | None]:
    """The oldest first, and until when it is known that nothing has happened."""
    rows = archives.ALL.all(tx, instance=instance_id)
    found = [archives.facts_of(tx, row) for row in rows]
    last = found[-1].marks[-1] if found and found[-1].marks else None
    idle = None if last is None else _idle_until(_INSTANCE.first(tx, instance=instance_id), last)
    if idle is not None and rows[-1].known_wall is not None:
        idle = min(idle, rows[-1].known_wall)
    return found, idle


def _idle_until(row: Any, last: Mark) -> float | None:
    """Until when the newest mark is what there is, by its host's last word."""
    seen = None if row is None or row.seen is None else readable.read(_seen, row.seen, None)
    if row is None or not row.alive or row.seen_wall is None or seen is None or seen.log is None:
        return None
    same = (seen.log.timeline, seen.log.position) == (last.timeline, last.position)
    return row.seen_wall - HEARD if same else None


def note_silence(tx: Tx, host_id: str) -> None:
    """An agent of this host has come that has heard no guest yet: what is known of their logs is what was
    known until now. Call it before the host counts as heard."""
    for row in _ON_HOST.all(tx, host=host_id):
        last = archives.LAST_MARK.first(tx, archive=row.archive_id)
        if last is not None:
            mark = Mark(last.wall, last.timeline, last.position)
            known = _idle_until(row, mark)
            archives.KNOWN.run(tx, archive=row.archive_id, known=max(last.wall, known or 0.0))


def moments(tx: Tx, instance_id: str) -> Moments:
    """For its view."""
    found, idle = _archives(tx, instance_id)
    if not found:
        return Moments()
    each = [windows(one, idle if one is found[-1] else None) for one in found]
    row, want = _INSTANCE.first(tx, instance=instance_id), archives.wanted(tx, instance_id)
    seen = None if row is None or row.seen is None else readable.read(_seen, row.seen, None)
    before = found[-2].closed if len(found) > 1 and not each[-1] else None
    last = archives.ONE.first(tx, archive=found[-1].id)
    return Moments(
        windows=tuple(itertools.chain.from_iterable(each)), archive_id=found[-1].id,
        waiting_mb=0 if seen is None or seen.log is None else seen.log.waiting_mb,
        budget_mb=0 if want is None else want.budget_mb, ended=None if before is None else before.value,
        trouble=None if last is None else last.trouble,
    )  # fmt: skip


def restorable(tx: Tx, instance_id: str, at: float, project_id: str | None) -> Restorable:
    """What a restore of this instance to a moment is made from, also of a deleted one whose log is there.

    Raises :class:`NotFound` and :class:`Invalid`, which says what can be restored.
    """
    row = _INSTANCE.first(tx, instance=instance_id)
    if row is None or project_id not in (None, row.project_id):
        raise NotFound(f"Instance {instance_id} cannot be found.")
    if at > tx.now.wall:
        raise Invalid("restorePoint.time: it lies ahead.")
    found, idle = _archives(tx, instance_id)
    said = resolve(found, at, idle)
    if isinstance(said, Not):
        raise Invalid(f"restorePoint.time: that moment cannot be restored: {said.reason}.")
    return said
