"""Incremental backups in the store: which parent a new one has, and all that a restore of one needs.

A child is locked before its parent, everywhere; a parent that is deleted keeps its objects for its children.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.chain import LONGEST
from unstuck.core.backup.content import Content, Datastore, Parent, Position
from unstuck.core.backup.data import Ending
from unstuck.core.backup.status import status
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups


class CannotBeRestored(Conflict):
    """A backup that it needs is not there (any more), or is not complete."""


class Checked(msgspec.Struct, frozen=True):
    """What a verified manifest says of its backup, as the row keeps it (``checked``)."""

    datastore: Datastore
    system_identifier: str
    start: Position
    stop: Position
    chunk_size: int = 0
    content: str = "tar"
    generation: str = ""
    parent: Parent | None = None


_checked = msgspec.json.Decoder(Checked)
_NEWEST = Prepared(
    sa.select(backups.c.id)
    .where(
        backups.c.instance_id == sa.bindparam("instance"),
        backups.c.generation == sa.bindparam("data"),
        backups.c.datastore_version_id == sa.bindparam("of_version"),
        backups.c.ended == Ending.COMPLETED.value,
        sa.not_(backups.c.deleted),
        backups.c.damaged.is_(None),
    )
    .order_by(backups.c.created_wall.desc(), backups.c.id.desc())
    .limit(1)
)


def parent_of(
    tx: Tx, instance: Any, *, parent_id: str | None, incremental: bool, project_id: str | None
) -> BackupRow | None:
    """The backup that a new one of this instance is to build on, held; None: it is a full one.

    ``incremental`` without a ``parent_id``: the newest complete one, or none where there is none that fits.
    Raises :class:`NotFound`, :class:`Invalid`, :class:`Conflict`; they name the field.
    """
    if parent_id is None:
        return _newest(tx, instance) if incremental else None
    found = load_backup(tx, parent_id, lock=True)
    if found is None or found.backup.deleted or project_id not in (None, found.project_id):
        raise NotFound(f"parent_id: Backup {parent_id} cannot be found.")
    if found.instance_id != instance.id:
        raise Invalid(f"parent_id: backup {parent_id} is of instance {found.instance_id}.")
    ended = found.backup.ended
    if ended is None or ended.ending is not Ending.COMPLETED:
        raise Conflict(
            f"parent_id: backup {parent_id} is {status(found.backup)}; only a COMPLETED one can be a parent."
        )
    if found.generation != instance.generation or parent_named(found) is None:
        raise Conflict(f"parent_id: backup {parent_id} is not of the data that the instance has now.")
    if found.datastore_version_id != instance.datastore_version_id:
        raise Conflict(f"parent_id: backup {parent_id} is of another version of the datastore.")
    if found.damaged is not None:
        raise Conflict(f"parent_id: backup {parent_id} is damaged: {found.damaged}")
    if len(chain_of(tx, found)) > LONGEST:
        raise Conflict(
            f"parent_id: backup {parent_id} has {LONGEST} parents; the next one has to be a full one."
        )
    return found


def _newest(tx: Tx, instance: Any) -> BackupRow | None:
    found: str | None = _NEWEST.scalar(
        tx, instance=instance.id, data=instance.generation, of_version=instance.datastore_version_id
    )
    row = None if found is None else load_backup(tx, found, lock=True)
    if row is None or row.backup.deleted or parent_named(row) is None or len(chain_of(tx, row)) > LONGEST:
        return None
    return row


def parent_named(row: BackupRow) -> Parent | None:
    """A complete backup as its children name it; None: its row cannot say what is in it."""
    if row.digest is None or checked_content(row) is None:
        return None
    return Parent(row.id, row.digest)


def checked_content(row: BackupRow) -> Content | None:
    """What its verified manifest says of it, without the pieces."""
    try:
        said = _checked.decode(row.checked or "")
    except msgspec.DecodeError:
        return None
    return Content(
        datastore=said.datastore, system_identifier=said.system_identifier, start=said.start, stop=said.stop,
        chunk_size=said.chunk_size, size=row.size or 0, chunks=(), content=said.content, parent=said.parent,
        generation=said.generation,
    )  # fmt: skip


def chain_of(tx: Tx, row: BackupRow) -> list[BackupRow]:
    """A backup, its parent, that one's parent, to the full one. Raises :class:`CannotBeRestored`."""
    found = [row]
    while found[-1].parent_id is not None:
        above = load_backup(tx, found[-1].parent_id)
        whole = above is not None and not above.removed and above.backup.ended is not None
        if above is None or not whole or above.prefix is None or len(found) > LONGEST + 1:
            raise CannotBeRestored(
                f"Backup {row.id} cannot be restored: backup {found[-1].parent_id} is lost."
            )
        found.append(above)
    return found
