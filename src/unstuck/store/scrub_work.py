"""The loop that reads stored backups again: one function is one transaction.

Nothing is held while pieces are read. What was read counts only if nobody else has read on from the same
place meanwhile; reading twice is no harm.
"""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.data import Ending
from unstuck.core.backup.scrub import Away, Right, Scrub, Wrong, begun, cleared, read
from unstuck.store import archives, readable, retention
from unstuck.store.backup_rows import load_backup
from unstuck.store.backups import below
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups

PARENT: Final = "a backup that it needs is damaged: "
"""How the reasons begin of those that are damaged because of another one."""

_scrub = msgspec.json.Decoder(Scrub)
_readable = sa.and_(
    backups.c.ended == Ending.COMPLETED.value, sa.not_(backups.c.deleted), backups.c.prefix.is_not(None)
)
_DUE = Prepared(
    sa.select(backups.c.id, backups.c.location)
    .where(_readable, backups.c.scrub_look <= sa.bindparam("now"))
    .order_by(backups.c.scrub_look)
    .limit(sa.bindparam("most"))
)
_TAKE = Prepared(
    sa.update(backups)
    .where(
        backups.c.id == sa.bindparam("backup"), _readable, backups.c.scrub_look <= sa.bindparam("now")
    )
    .values(scrub_look=sa.bindparam("until"))
)  # fmt: skip
_WRITE = Prepared(
    sa.update(backups)
    .where(backups.c.id == sa.bindparam("backup"))
    .values(scrub=sa.bindparam("found"), scrub_look=sa.bindparam("look"))
)
_DAMAGED = Prepared(
    sa.update(backups)
    .where(backups.c.id == sa.bindparam("backup"))
    .values(damaged=sa.bindparam("why", type_=sa.Text))
)


class Due(msgspec.Struct, frozen=True):
    backup_id: str
    location: str


class Reading(msgspec.Struct, frozen=True):
    """Whose pieces are to be read, from which on. ``digest``: of its manifest."""

    backup_id: str
    location: str
    prefix: str
    digest: str
    scrub: Scrub

    @property
    def first(self) -> int:
        return begun(self.scrub)


def due_scrubs(tx: Tx, most: int) -> list[Due]:
    """Those whose next look has come, the longest overdue first."""
    return [Due(row.id, row.location) for row in _DUE.all(tx, now=tx.now.lease, most=most)]


def read_scrub(text: str | None) -> Scrub:
    """What is known of it."""
    return Scrub() if text is None else readable.read(_scrub, text, Scrub())


def begin_scrub(tx: Tx, backup_id: str, lease: float) -> Reading | None:
    """Read on where it was left; nobody else does for ``lease`` seconds. None: somebody else was faster."""
    if _TAKE.run(tx, backup=backup_id, now=tx.now.lease, until=tx.now.lease + lease) != 1:
        return None
    row = load_backup(tx, backup_id)
    assert row is not None
    assert row.prefix is not None
    return Reading(row.id, row.location, row.prefix, row.digest or "", read_scrub(row.scrub))


def end_scrub(tx: Tx, reading: Reading, said: Right | Wrong | Away, every: float) -> str | None:
    """What was read. Why it is damaged, where that has been found just now."""
    held = load_backup(tx, reading.backup_id, lock=True)
    if held is None or held.backup.deleted or held.prefix != reading.prefix:
        return None
    if read_scrub(held.scrub) != reading.scrub:
        return None  # somebody else has read on
    found = read(reading.scrub, said, tx.now, every, reading.backup_id)
    _WRITE.run(
        tx, backup=held.id, found=msgspec.json.encode(found.scrub).decode(), look=tx.now.lease + found.after
    )  # fmt: skip
    if found.damaged is not None and held.damaged is None:
        mark_damaged(tx, held.id, found.damaged)
        return found.damaged
    if found.whole and cleared(held.damaged):
        mark_sound(tx, held.id)
    return None


def postpone_scrub(tx: Tx, backup_id: str, seconds: float) -> None:
    """Look again in a while; says nothing of it."""
    tx.execute(sa.update(backups).where(backups.c.id == backup_id).values(scrub_look=tx.now.lease + seconds))


def mark_damaged(tx: Tx, backup_id: str, why: str) -> None:
    """It cannot be relied on any more, nor can those that are built on it. The caller holds its row.

    What needed it as a base, or counted on it, looks again.
    """
    _DAMAGED.run(tx, backup=backup_id, why=why)
    for child in below(tx, backup_id):
        row = load_backup(tx, child)
        if row is not None and row.damaged is None:
            _DAMAGED.run(tx, backup=child, why=f"{PARENT}{backup_id}: {why}"[:2000])
    _look_again(tx, backup_id)


def mark_sound(tx: Tx, backup_id: str) -> None:
    """It is found to be as it was written after all; so are those that were damaged for its sake alone."""
    _DAMAGED.run(tx, backup=backup_id, why=None)
    for child in below(tx, backup_id):
        row = load_backup(tx, child)
        if row is not None and row.damaged is not None and row.damaged.startswith(f"{PARENT}{backup_id}: "):
            _DAMAGED.run(tx, backup=child, why=None)
    _look_again(tx, backup_id)


def _look_again(tx: Tx, backup_id: str) -> None:
    row = load_backup(tx, backup_id)
    assert row is not None
    archives.look_at(tx, row.instance_id)
    retention.wake(tx, row.instance_id)
