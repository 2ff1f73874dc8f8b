"""Backups as the core sees them, and the one place that writes them with their next look.

Locks are taken in one order: project, host, instance, backup; each in a statement of its own.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.backup import change
from unstuck.core.backup.control import (
    ASK_AGAIN,
    LEASE,
    AskStore,
    Collect,
    End,
    LookAgain,
    NextAttempt,
    Plan,
    Settled,
    Verify,
    plan_backup,
)
from unstuck.core.backup.data import Attempt, Backup, Ended, Ending, Limits, Unanswered
from unstuck.store import readable
from unstuck.store.clock import clock_row
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, lock_host
from unstuck.store.schema.compute import hosts, placements
from unstuck.store.schema.database import backups, instances

READER = 600.0
"""Seconds without a word of an instance after which its restore holds no backup up any more."""
READ_AT_LONGEST = 86400.0
"""Seconds after which a restore that lives on holds it up no more either."""

_facts = msgspec.json.Decoder(Backup)
_strings = msgspec.json.Decoder(tuple[str, ...])
_UNREADABLE = Backup(id="", created=0.0, limits=Limits(), attempt=Attempt(1, "", 0.0))

_ONE = Prepared(sa.select(backups).where(backups.c.id == sa.bindparam("backup")))
_LOCK = Prepared(sa.select(backups.c.id).where(backups.c.id == sa.bindparam("backup")).with_for_update())
_LIVE = Prepared(
    sa.select(backups.c.id).where(
        backups.c.instance_id == sa.bindparam("instance"), backups.c.ended.is_(None)
    )
)
_READERS = Prepared(
    sa.select(sa.func.count())
    .select_from(instances)
    .outerjoin(
        placements,
        sa.and_(placements.c.server_id == instances.c.server_id, placements.c.state == "live"),
    )
    .outerjoin(hosts, hosts.c.id == placements.c.host_id)
    .where(
        instances.c.restores == sa.bindparam("backup"),
        sa.not_(instances.c.data_recorded),
        sa.not_(instances.c.deleted),
        instances.c.created > sa.bindparam("begun_since"),
        # A guest that has no news is not written down each time; its host is.
        sa.or_(
            instances.c.seen_at > sa.bindparam("heard_since"),
            instances.c.created > sa.bindparam("heard_since"),
            sa.and_(instances.c.alive, hosts.c.seen > sa.bindparam("heard_since")),
        ),
    )
)
_CHILDREN = Prepared(
    sa.select(sa.func.count())
    .select_from(backups)
    .where(
        backups.c.parent_id == sa.bindparam("backup"),
        sa.not_(backups.c.removed),
        sa.or_(backups.c.ended.is_(None), backups.c.ended != Ending.FAILED.value),
    )
)
_WAKE_PARENT = Prepared(
    sa.update(backups)
    .where(backups.c.id == sa.bindparam("backup"), backups.c.deleted, sa.not_(backups.c.settled))
    .values(next_look=sa.bindparam("now"))
)
_HOST = Prepared(
    sa.select(placements.c.host_id, placements.c.server_id)
    .join(instances, instances.c.server_id == placements.c.server_id)
    .where(instances.c.id == sa.bindparam("instance"), placements.c.state == "live")
)
_WRITE = Prepared(
    sa.update(backups)
    .where(backups.c.id == sa.bindparam("backup"), backups.c.version == sa.bindparam("decided_on"))
    .values(
        version=backups.c.version + 1,
        facts=sa.bindparam("new_facts"),
        ended=sa.bindparam("how", type_=sa.String),
        deleted=sa.bindparam("gone"),
        removed=sa.bindparam("gone_for_good"),
        updated_wall=sa.bindparam("updated"),
        owner=sa.bindparam("who", type_=sa.String),
        lease_until=sa.bindparam("until", type_=sa.Double),
        since=sa.bindparam("unsettled_since"),
        settled=sa.bindparam("at_rest"),
        next_look=sa.bindparam("look", type_=sa.Double),
    )
)


class BackupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A backup and its bookkeeping. ``size``, ``prefix``, ``digest`` and ``checked`` are those of the
    verified manifest. Times are wall time where their name says so."""

    id: str
    project_id: str
    instance_id: str
    instance_name: str
    datastore_version_id: str
    name: str
    description: str | None
    parent_id: str | None
    generation: str
    retry_of: str | None
    made_by: str
    pinned: bool
    verified: str | None
    damaged: str | None
    scrub: str | None
    location: str
    created_wall: float
    updated_wall: float
    recipient: str
    key: str
    recipients: tuple[str, ...]
    prefix: str | None
    digest: str | None
    size: int | None
    checked: str | None
    backup: Backup
    readable: bool
    removed: bool
    version: int
    owner: str | None
    lease_until: float | None
    since: float
    settled: bool
    next_look: float | None
    host_id: str | None = None
    """The instance's host, where a change has something to say to it."""


def from_row(row: Any) -> BackupRow:
    """What cannot be read is shown as such, and can still be deleted (laws 6 and 8)."""
    facts = readable.read(_facts, row.facts, _UNREADABLE)
    if facts is _UNREADABLE:
        ending = Ending.COMPLETED if row.ended == Ending.COMPLETED.value else Ending.FAILED
        lost = Ended(ending, "what was known of it cannot be read any more in the store")
        facts = Backup(
            id=row.id, created=row.created, limits=Limits(), attempt=Attempt(1, "", row.created),
            deleted=row.deleted, ended=lost, litter=True, generation=-1,
        )  # fmt: skip
    return BackupRow(
        id=row.id, project_id=row.project_id, instance_id=row.instance_id, instance_name=row.instance_name,
        datastore_version_id=row.datastore_version_id, name=row.name, description=row.description,
        parent_id=row.parent_id, generation=row.generation, retry_of=row.retry_of, made_by=row.made_by,
        pinned=row.pinned,
        verified=row.verified, damaged=row.damaged, scrub=row.scrub, location=row.location,
        created_wall=row.created_wall, updated_wall=row.updated_wall, recipient=row.recipient, key=row.key,
        recipients=readable.read(_strings, row.recipients, ()), prefix=row.prefix, digest=row.digest,
        size=row.size, checked=row.checked, backup=facts, readable=facts.generation != -1,
        removed=row.removed, version=row.version, owner=row.owner, lease_until=row.lease_until,
        since=row.since, settled=row.settled, next_look=row.next_look,
    )  # fmt: skip


def load_backup(tx: Tx, backup_id: str, *, lock: bool = False) -> BackupRow | None:
    """One backup as of now, with what is derived; ``lock`` holds its row until the transaction ends."""
    if lock and tx.postgresql:
        _LOCK.first(tx, backup=backup_id)
    row = _ONE.first(tx, backup=backup_id)
    if row is None:
        return None
    found = from_row(row)
    return msgspec.structs.replace(found, backup=_as_of_now(tx, found.backup))


def load_live(tx: Tx, instance_id: str, *, lock: bool = False) -> BackupRow | None:
    """The instance's backup that has not ended, if there is one."""
    backup_id = _LIVE.scalar(tx, instance=instance_id)
    return None if backup_id is None else load_backup(tx, backup_id, lock=lock)


def _as_of_now(tx: Tx, backup: Backup) -> Backup:
    clock = clock_row(tx)
    changes: dict[str, Any] = {
        "set_back": clock.generation != backup.generation, "readers": 0, "children": 0,
    }  # fmt: skip
    if backup.deleted and backup.ended is not None:
        changes["readers"] = _READERS.scalar(
            tx, backup=backup.id, heard_since=tx.now.lease - READER,
            begun_since=tx.now.lease - READ_AT_LONGEST,
        )  # fmt: skip
        changes["children"] = _CHILDREN.scalar(tx, backup=backup.id)
    claimed = backup.attempt.claimed
    if claimed is not None and clock.sweep_after > tx.now.lease:
        # After an outage of ours nobody is silent before everybody had the time to be heard.
        heard = max(claimed.heard, clock.sweep_after - LEASE)
        attempt = msgspec.structs.replace(
            backup.attempt, claimed=msgspec.structs.replace(claimed, heard=heard)
        )
        changes["attempt"] = attempt
    return msgspec.structs.replace(backup, **changes)


def lock_instance_host(tx: Tx, instance_id: str) -> str | None:
    """Hold the host of an instance, and let it hear of the instance anew; its id, or None without one."""
    row = _HOST.first(tx, instance=instance_id)
    if row is None:
        return None
    lock_host(tx, row.host_id)
    bump_world(tx, row.host_id, row.server_id)
    return str(row.host_id)


def write_backup(
    tx: Tx, row: BackupRow, backup: Backup, *, owner: str | None = None, lease: float = 0.0,
    look: float | None = None, keep_lease: bool = False, ends: bool = False,
) -> BackupRow:  # fmt: skip
    """Write a change of a backup whose row the caller holds.

    ``owner``: who works on it now, for ``lease`` seconds; without one it is nobody's, unless ``keep_lease``
    says that whoever has it keeps it. ``look``: not before this lease time. ``ends``: an end that is due
    comes with it; the caller has called :func:`lock_instance_host`, so that the host hears of it.
    """
    now = tx.now
    plan = plan_backup(backup, now.lease)
    if ends and isinstance(plan, End):
        backup = change.end(backup, plan.ended, now.lease)
        plan = plan_backup(backup, now.lease)
    settled, next_look = _next_look(plan, backup, now.lease)
    if next_look is not None and look is not None:
        next_look = max(next_look, look)
    until = None if owner is None else now.lease + lease
    if keep_lease:
        owner, until = row.owner, row.lease_until
    if settled:
        owner = until = None
    removed = backup.deleted and settled
    stored = msgspec.structs.replace(backup, readers=0, children=0, set_back=False)
    visible = (backup.ended, backup.attempt.number, backup.deleted) != (
        row.backup.ended, row.backup.attempt.number, row.backup.deleted,
    )  # fmt: skip
    updated = now.wall if visible else row.updated_wall
    since = now.lease if row.settled and not settled else row.since
    done = _WRITE.run(
        tx, backup=row.id, decided_on=row.version, new_facts=msgspec.json.encode(stored).decode(),
        how=None if backup.ended is None else backup.ended.ending.value, gone=backup.deleted,
        gone_for_good=removed, updated=updated, who=owner, until=until, unsettled_since=since,
        at_rest=settled, look=next_look,
    )  # fmt: skip
    if done != 1:
        raise RuntimeError(f"backup {row.id} was changed by somebody who did not hold it")
    if row.parent_id is not None and (removed or (backup.ended != row.backup.ended)):
        # A child is locked before its parent, everywhere.
        _WAKE_PARENT.run(tx, backup=row.parent_id, now=now.lease)
    return msgspec.structs.replace(
        row, backup=backup, version=row.version + 1, owner=owner, lease_until=until, settled=settled,
        next_look=next_look, removed=removed, since=since, updated_wall=updated,
    )  # fmt: skip


def _next_look(plan: Plan, backup: Backup, now: float) -> tuple[bool, float | None]:
    """(settled, next look) of a plan: law 2, in one place."""
    match plan:
        case Settled():
            return True, None
        case LookAgain(at, _):
            return False, max(at, now)
        case AskStore() if isinstance(backup.store, Unanswered):
            return False, now + ASK_AGAIN
        case Verify() if isinstance(backup.verdict, Unanswered):
            return False, now + ASK_AGAIN
        case AskStore() | Verify() | Collect() | NextAttempt() | End():
            return False, now
