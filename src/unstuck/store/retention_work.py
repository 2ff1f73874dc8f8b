"""The loop's part of retention. One function is one transaction, and decides in it.

What goes, goes by the ordinary delete. Nothing goes while the store's clock or its memory is in doubt.
Locks: project, retention, host, backup.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core import guard
from unstuck.store import quotas
from unstuck.store.backups import delete_backup
from unstuck.store.backups_made import USER
from unstuck.store.clock import may_destroy
from unstuck.store.engine import Tx
from unstuck.store.generation import recovery
from unstuck.store.prepared import Prepared
from unstuck.store.retention import LOOK, Kept, Removed, load_retention, weigh
from unstuck.store.schema.database import instances
from unstuck.store.schema.schedules import backup_retention as table

HELD: Final = 60.0
"""Seconds until the next look where nothing may go now."""
AT_ONCE: Final = 10
"""Backups that go in one transaction."""
REMEMBERED: Final = 50
"""Removals that a row keeps."""

_DUE = Prepared(
    sa.select(table.c.instance_id)
    .where(sa.not_(table.c.settled), table.c.next_look <= sa.bindparam("now"))
    .order_by(table.c.next_look)
    .limit(sa.bindparam("most"))
)
_OF = Prepared(
    sa.select(table.c.project_id, instances.c.removed)
    .join(instances, instances.c.id == table.c.instance_id)
    .where(table.c.instance_id == sa.bindparam("instance"))
)


class Pass(msgspec.Struct, frozen=True):
    """What one look did; ``hosts``: who is to hear of it."""

    removed: tuple[Removed, ...] = ()
    hosts: tuple[str, ...] = ()


def due_retention(tx: Tx, most: int) -> list[str]:
    """Instances whose backups are to be looked at, the longest overdue first."""
    return _DUE.scalars(tx, now=tx.now.lease, most=most)


def postpone_retention(tx: Tx, instance_id: str, seconds: float) -> None:
    """Its step failed: not again for a while."""
    _write(tx, instance_id, next_look=tx.now.lease + seconds)


def run_retention(tx: Tx, instance_id: str) -> Pass:
    """Delete what no rule keeps, or write down why nothing may go now."""
    of = _OF.first(tx, instance=instance_id)
    if of is None:
        return Pass()
    quotas.lock_project(tx, of.project_id)
    row = load_retention(tx, instance_id, lock=True)
    if row is None or row.next_look is None or row.next_look > tx.now.lease:
        return Pass()  # somebody else was faster
    kept = weigh(tx, instance_id, row)
    going = [
        (backup, decision.why)
        for backup, decision in zip(kept.rows, kept.decisions, strict=True)
        if not decision.keep
    ]
    trouble = _in_doubt(tx) if going else None
    if trouble is not None:
        _write(tx, instance_id, trouble=trouble, looked_wall=tx.now.wall, next_look=tx.now.lease + HELD)
        return Pass()
    removed, hosts = [], []
    for backup, why in going[:AT_ONCE]:
        gone = delete_backup(tx, backup.id, None)
        removed.append(
            Removed(id=backup.id, name=backup.name, created=backup.created_wall, at=tx.now.wall, why=why)
        )
        hosts.append(gone.host_id)
    history = (*removed, *row.removed)[:REMEMBERED]
    _write(
        tx, instance_id, trouble=None, looked_wall=tx.now.wall,
        removed=msgspec.json.encode(history).decode(), **_next(tx, kept, len(going), gone=bool(of.removed)),
    )  # fmt: skip
    return Pass(tuple(removed), tuple(host for host in dict.fromkeys(hosts) if host is not None))


def _next(tx: Tx, kept: Kept, going: int, *, gone: bool) -> dict[str, Any]:
    stays = [row for row, said in zip(kept.rows, kept.decisions, strict=True) if said.keep]
    if gone and going <= AT_ONCE and all(row.pinned or row.made_by == USER for row in stays):
        return {"settled": True, "next_look": None}
    return {"next_look": tx.now.lease + (0.0 if going > AT_ONCE else LOOK)}


def _in_doubt(tx: Tx) -> str | None:
    if (lost := recovery(tx)) is not None:
        return f"the store was set back: {lost.why}"
    may = may_destroy(tx)
    return may.reason if isinstance(may, guard.Suspended) else None


def _write(tx: Tx, instance_id: str, **values: Any) -> None:
    tx.execute(
        sa.update(table).where(table.c.instance_id == instance_id, sa.not_(table.c.settled)).values(**values)
    )
