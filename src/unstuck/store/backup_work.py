"""What the control plane's loop does about backups: each step decided anew on the row that it holds.

Looking at the blob store takes its time and happens outside of any transaction, under a lease of the one who
looks; an answer that comes after the lease went to somebody else is dropped.
"""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup import change, scrub
from unstuck.core.backup.content import Parent
from unstuck.core.backup.control import (
    AskStore,
    Collect,
    End,
    LookAgain,
    NextAttempt,
    Settled,
    Verify,
    plan_backup,
)
from unstuck.core.backup.data import Ending, Rotten, StoreSaid, Unanswered, Verified
from unstuck.store.backup_chain import parent_named
from unstuck.store.backup_rows import BackupRow, load_backup, lock_instance_host, write_backup
from unstuck.store.backups import add_attempt
from unstuck.store.engine import Tx
from unstuck.store.generation import recovery
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backup_attempts, backups

HELD_BACK: Final = 60.0
"""Seconds until the next look at what may not be removed while the store is set back."""

_DUE = Prepared(
    sa.select(backups.c.id, backups.c.location)
    .where(
        sa.not_(backups.c.settled),
        backups.c.next_look <= sa.bindparam("now"),
        sa.or_(backups.c.owner.is_(None), backups.c.lease_until <= sa.bindparam("now")),
    )
    .order_by(backups.c.next_look)
    .limit(sa.bindparam("most"))
)
_ATTEMPTS = Prepared(
    sa.select(backup_attempts.c.attempt, backup_attempts.c.nonce, backup_attempts.c.host_id).where(
        backup_attempts.c.backup_id == sa.bindparam("backup")
    )
)


class Due(msgspec.Struct, frozen=True):
    backup_id: str
    location: str


class Known(msgspec.Struct, frozen=True):
    """An attempt that the store knows of; ``host_id`` None: nobody took it, as far as is known."""

    number: int
    nonce: str
    host_id: str | None


class Work(msgspec.Struct, frozen=True):
    """What is to be done at the blob store, by the one who has the lease. ``began``: lease time."""

    plan: AskStore | Verify | Collect
    row: BackupRow
    began: float
    attempts: tuple[Known, ...]
    parent: Parent | None = None
    """As its manifest has to name it."""


class Begun(msgspec.Struct, frozen=True):
    """``work``: what the blob store is needed for. ``host_id``: who has to hear of it."""

    work: Work | None = None
    host_id: str | None = None


class Written(msgspec.Struct, frozen=True):
    """The manifest that was verified. ``checked``: what it says of the backup, as JSON."""

    prefix: str
    digest: str
    size: int
    checked: str


def due_backups(tx: Tx, most: int) -> list[Due]:
    """Those whose next look has come and that nobody is at, the longest overdue first."""
    return [Due(row.id, row.location) for row in _DUE.all(tx, now=tx.now.lease, most=most)]


def begin_step(tx: Tx, backup_id: str, owner: str, nonce: str, lease: float) -> Begun:
    """Take the next step. What needs the blob store is returned, and ``owner`` has it for ``lease`` s.

    ``nonce`` names the next attempt, should there be one.
    """
    seen = load_backup(tx, backup_id)
    if seen is None:
        return Begun()
    told = isinstance(plan_backup(seen.backup, tx.now.lease), NextAttempt | End)
    host_id = lock_instance_host(tx, seen.instance_id) if told else None
    return Begun(_begin(tx, backup_id, owner, nonce, lease, told=told), host_id)


def _begin(tx: Tx, backup_id: str, owner: str, nonce: str, lease: float, *, told: bool) -> Work | None:
    """``told``: the instance's host is held, and hears of it."""
    held = load_backup(tx, backup_id, lock=True)
    assert held is not None
    if not held.readable and not held.backup.deleted:
        raise ValueError(f"backup {backup_id} cannot be read in the store")
    if held.owner is not None and held.lease_until is not None and held.lease_until > tx.now.lease:
        return None  # somebody else was faster
    backup, now = held.backup, tx.now.lease
    match plan := plan_backup(backup, now):
        case NextAttempt() | End() if not told:
            return None  # it has become so just now; its host is to hear of it, and is to be held first
        case NextAttempt(reason):
            _close_attempt(tx, held, reason)
            backup = change.next_attempt(backup, nonce, now)
            add_attempt(tx, backup_id, backup.attempt.number, nonce)
            write_backup(tx, held, backup)
        case End(ended):
            _close_attempt(tx, held, ended.reason)
            write_backup(tx, held, backup, ends=True)
        case LookAgain() | Settled():
            write_backup(tx, held, backup)
        case Collect() if recovery(tx) is not None:
            # What the store has forgotten may be what lies there (law 7).
            write_backup(tx, held, backup, look=now + HELD_BACK)
        case AskStore() | Verify() | Collect():
            if isinstance(plan, Verify):
                if held.owner is not None:
                    backup = change.verifier_vanished(backup, now)
                backup = change.verifying(backup, now)
            row = write_backup(tx, held, backup, owner=owner, lease=lease)
            attempts = tuple(
                Known(a.attempt, a.nonce, a.host_id) for a in _ATTEMPTS.all(tx, backup=backup_id)
            )
            return Work(plan, row, now, attempts, _parent(tx, row))
    return None


def _parent(tx: Tx, row: BackupRow) -> Parent | None:
    found = None if row.parent_id is None else load_backup(tx, row.parent_id)
    return None if found is None else parent_named(found)


def _close_attempt(tx: Tx, held: BackupRow, reason: str) -> None:
    tx.execute(
        sa.update(backup_attempts)
        .where(
            backup_attempts.c.backup_id == held.id,
            backup_attempts.c.attempt == held.backup.attempt.number,
        )
        .values(reason=reason)
    )


def _mine(tx: Tx, backup_id: str, owner: str) -> BackupRow | None:
    held = load_backup(tx, backup_id, lock=True)
    return held if held is not None and held.owner == owner else None


def store_said(tx: Tx, backup_id: str, owner: str, said: StoreSaid) -> None:
    """What the blob store knows of manifests; dropped when the lease is somebody else's by now."""
    held = _mine(tx, backup_id, owner)
    if held is not None:
        write_backup(tx, held, change.store_said(held.backup, said))


def store_verified(
    tx: Tx, backup_id: str, owner: str, verdict: Verified | Rotten | Unanswered, written: Written | None,
    scrub_after: float = scrub.FIRST,
) -> str | None:  # fmt: skip
    """What came of a verification; the id of the host that is to hear of it. COMPLETED and what it promises
    are written in one transaction. ``scrub_after``: seconds until its pieces are read again."""
    seen = load_backup(tx, backup_id)
    if seen is None:
        return None
    host_id = lock_instance_host(tx, seen.instance_id)
    held = _mine(tx, backup_id, owner)
    if held is None:
        return host_id
    after = write_backup(tx, held, change.verified(held.backup, verdict), ends=True)
    ended = after.backup.ended
    if ended is None:
        return host_id
    _close_attempt(tx, held, ended.reason or "complete")
    if written is not None and ended.ending is Ending.COMPLETED:
        values = msgspec.structs.asdict(written) | {"scrub_look": tx.now.lease + scrub_after}
        tx.execute(sa.update(backups).where(backups.c.id == backup_id).values(**values))
    return host_id


def store_collected(tx: Tx, work: Work, owner: str, trouble: str | None, again: float) -> None:
    """A complete listing was empty after the removal; or why not, and after how many seconds it is tried
    again."""
    held = _mine(tx, work.row.id, owner)
    if held is None:
        return
    now = tx.now.lease
    if trouble is None and held.backup.deleted != work.row.backup.deleted:
        write_backup(tx, held, held.backup)  # deleted meanwhile: what was kept is to go as well
    elif trouble is None:
        write_backup(tx, held, change.collected(held.backup, now))
    else:
        write_backup(tx, held, change.not_collected(held.backup, trouble), look=now + again)


def postpone_backup(tx: Tx, backup_id: str, seconds: float) -> None:
    """Look again in a while, whatever is wrong with the row; touches nothing else of it."""
    tx.execute(
        sa.update(backups)
        .where(backups.c.id == backup_id, sa.not_(backups.c.settled))
        .values(next_look=tx.now.lease + seconds)
    )
