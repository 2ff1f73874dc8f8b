"""What instances need of backups, which are rows of their own with their own functions (``backups.py``)."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.data import Attempt
from unstuck.core.instance.data import LiveBackup
from unstuck.core.instance.want import BackupWant
from unstuck.store import archives, backups
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups as table


class _Part(msgspec.Struct, frozen=True):
    """What of a backup's facts decides on its instance."""

    attempt: Attempt
    cancelled: bool = False
    deleted: bool = False


_part = msgspec.json.Decoder(_Part)
_LIVE = sa.select(table.c.id, table.c.instance_id, table.c.facts).where(
    table.c.ended == sa.null(), table.c.instance_id.in_(sa.bindparam("ids", expanding=True))
)
_LIVE_OF_ONE = Prepared(
    sa.select(table.c.id, table.c.instance_id, table.c.facts).where(
        table.c.ended == sa.null(), table.c.instance_id == sa.bindparam("instance")
    )
)
_OF = Prepared(sa.select(table.c.instance_id).where(table.c.id == sa.bindparam("backup")))
_WAKE = Prepared(
    sa.update(table)
    .where(table.c.id == sa.bindparam("backup"), sa.not_(table.c.settled))
    .values(next_look=sa.bindparam("now"))
)


def live_of(tx: Tx, instance_id: str) -> LiveBackup | None:
    """The backup of the instance that has not ended."""
    row = _LIVE_OF_ONE.first(tx, instance=instance_id)
    return None if row is None else _live(row)


def live_of_many(tx: Tx, instance_ids: list[str]) -> dict[str, LiveBackup]:
    """The same of many, by instance."""
    return {row.instance_id: _live(row) for row in tx.execute(_LIVE, {"ids": instance_ids})}


def _live(row: Any) -> LiveBackup:
    """One whose facts cannot be read is in nobody's way: it shows as what it is, and spoils no instance."""
    try:
        part = _part.decode(row.facts)
    except msgspec.DecodeError:
        return LiveBackup(row.id, None, False)
    claimed = part.attempt.claimed
    heard = None if claimed is None or part.attempt.report is not None else claimed.heard
    return LiveBackup(row.id, heard, part.cancelled or part.deleted)


def wanted(tx: Tx, instance_id: str) -> BackupWant | None:
    """The attempt that is offered to the instance's agent, or runs there."""
    return backups.backup_want(tx, instance_id)


def superseded(tx: Tx, instance_id: str, incarnation: int) -> None:
    """A newer process of the guest agent has registered: what an older one held is given up at once."""
    backups.guest_superseded(tx, instance_id, incarnation)


def instance_deleted(tx: Tx, instance_id: str) -> None:
    """What runs in it is stopped at once, and ends with that reason."""
    backups.instance_deleted(tx, instance_id)


def cancel(tx: Tx, instance_id: str, reason: str) -> None:
    """Cancel the backup that has not ended, saying why."""
    backups.cancel_live(tx, instance_id, reason)


def look_at(tx: Tx, backup_id: str) -> None:
    """A reader is gone: whoever waits for that may go on."""
    _WAKE.run(tx, backup=backup_id, now=tx.now.lease)
    instance_id = _OF.scalar(tx, backup=backup_id)
    if instance_id is not None:
        archives.look_at(tx, instance_id)  # it may have read the log as well
