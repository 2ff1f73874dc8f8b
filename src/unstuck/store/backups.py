"""Backups as their users ask for them. One function is one transaction; an instance is never held by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs.chunks import CHUNK_SIZE
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.core.backup import change
from unstuck.core.backup.control import stop_wanted
from unstuck.core.backup.data import Attempt, Backup, Ending, Phase
from unstuck.core.backup.limits import Wish, limits
from unstuck.core.backup.status import status
from unstuck.core.errors import Conflict, Invalid, NotFound, TooLarge
from unstuck.core.instance.want import BackupWant
from unstuck.store import archives, database_quotas, quotas, retention
from unstuck.store.backup_chain import checked_content, parent_named, parent_of
from unstuck.store.backup_rows import (
    BackupRow,
    from_row,
    load_backup,
    load_live,
    lock_instance_host,
    write_backup,
)
from unstuck.store.backups_made import USER
from unstuck.store.clock import clock_row
from unstuck.store.cloud_keys import ensure_project_key
from unstuck.store.engine import Tx
from unstuck.store.schema.database import backup_attempts, backup_strategies, backups, instances
from unstuck.store.tx import in_turn

BASE: Final = "base:"
"""``made_by`` of what makes itself, so that moments can be restored, begins like this."""


class NewBackup(msgspec.Struct, frozen=True, kw_only=True):
    """``nonce`` names its first attempt. ``location``: a store by name; None: as the strategy says.

    ``parent_id``: it holds what has changed since that one; ``incremental`` without: since the newest
    complete one, if there is one.
    """

    id: str
    nonce: str
    name: str
    instance_id: str
    description: str | None = None
    location: str | None = None
    limits: Wish | None = None
    retry_of: str | None = None
    parent_id: str | None = None
    incremental: bool = False
    made_by: str = USER
    made_key: str | None = None
    """The occasion of one that is made by itself (``automatic_backups``)."""


def _not_found(backup_id: str) -> NotFound:
    return NotFound(f"Backup {backup_id} cannot be found.")


@in_turn(lambda new, *_, **__: f"instance:{new.instance_id}")
def create_backup(
    tx: Tx, new: NewBackup, project_id: str | None, *, keyring: Keyring, places: Places
) -> BackupRow:
    """The row is the work: it is there, so it is done, or ends with its reason.

    ``project_id`` None: whoever's the instance is. Raises :class:`NotFound`, :class:`Invalid`,
    :class:`Conflict` where one is under way, :class:`TooLarge` beyond the quota.
    """
    owner = _instance(tx, new.instance_id, project_id).project_id
    if not quotas.lock_project(tx, owner):
        raise NotFound(f"Project {owner} is not there any more.")
    host_id = lock_instance_host(tx, new.instance_id)
    instance = _instance(tx, new.instance_id, project_id, lock=True)
    check_quota(tx, owner, new.made_by)
    live = load_live(tx, new.instance_id, lock=True)
    if live is not None:
        if _does_as_well(tx, live, new, places):
            return msgspec.structs.replace(_taken_over(tx, live, new), host_id=host_id)
        raise Conflict(_under_way(live))
    parent = parent_of(
        tx, instance, parent_id=new.parent_id, incremental=new.incremental, project_id=project_id
    )
    now, clock = tx.now, clock_row(tx)
    found = limits(places.limits, _instance_wish(instance.backup_limits), new.limits)
    facts = Backup(
        id=new.id, created=now.lease, limits=found, attempt=Attempt(1, new.nonce, now.lease),
        generation=clock.generation,
    )  # fmt: skip
    key = keyring.new_backup_key(ensure_project_key(tx, owner, keyring))
    tx.execute(
        sa.insert(backups).values(
            id=new.id, version=1, project_id=owner, instance_id=new.instance_id,
            instance_name=instance.name, datastore_version_id=instance.datastore_version_id, name=new.name,
            description=new.description, parent_id=None if parent is None else parent.id,
            generation=instance.generation, retry_of=new.retry_of,
            made_by=new.made_by, made_key=new.made_key,
            location=location_of(tx, owner, new.instance_id, new.location, places), created=now.lease,
            created_wall=now.wall, updated_wall=now.wall,
            facts=msgspec.json.encode(facts).decode(), ended=None, deleted=False,
            removed=False, recipient=key.recipient, key=key.wrapped,
            recipients=msgspec.json.encode(key.recipients).decode(), since=now.lease, settled=False,
            next_look=now.lease + found.claim,
        )
    )  # fmt: skip
    add_attempt(tx, new.id, 1, new.nonce)
    made = load_backup(tx, new.id)
    assert made is not None
    return msgspec.structs.replace(write_backup(tx, made, made.backup), host_id=host_id)


def _does_as_well(tx: Tx, live: BackupRow, new: NewBackup, places: Places) -> bool:
    """Whether a base that makes itself is what somebody asks for just now: it has not come to its end yet, so
    it will hold all that is there now."""
    backup, claimed = live.backup, live.backup.attempt.claimed
    on_its_way = backup.verify_since is None and backup.attempt.report is None
    early = claimed is None or claimed.phase in (Phase.STARTING, Phase.COPYING)
    if not live.made_by.startswith(BASE) or new.made_by != USER or not (on_its_way and early):
        return False
    if stop_wanted(backup) is not None or new.parent_id is not None or new.limits is not None:
        return False
    return location_of(tx, live.project_id, live.instance_id, new.location, places) == live.location


def _taken_over(tx: Tx, live: BackupRow, new: NewBackup) -> BackupRow:
    """From now on it is the one that was asked for."""
    tx.execute(
        sa.update(backups)
        .where(backups.c.id == live.id)
        .values(name=new.name, description=new.description, made_by=new.made_by, retry_of=new.retry_of)
    )
    found = load_backup(tx, live.id)
    assert found is not None
    return found


def add_attempt(tx: Tx, backup_id: str, number: int, nonce: str) -> None:
    """Its name is written down before anything is made under it (law 3)."""
    tx.execute(
        sa.insert(backup_attempts).values(
            backup_id=backup_id, attempt=number, nonce=nonce, since_wall=tx.now.wall
        )
    )


def _instance(tx: Tx, instance_id: str, project_id: str | None, *, lock: bool = False) -> Any:
    query = sa.select(
        instances.c.id, instances.c.project_id, instances.c.name, instances.c.datastore_version_id,
        instances.c.backup_limits, instances.c.generation,
    ).where(instances.c.id == instance_id, sa.not_(instances.c.deleted))  # fmt: skip
    if project_id is not None:
        query = query.where(instances.c.project_id == project_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"Instance {instance_id} cannot be found.")
    return row


def _instance_wish(text: str | None) -> Wish | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=Wish)
    except msgspec.DecodeError:
        return None  # the operator's deadlines are deadlines, too


def _under_way(live: BackupRow) -> str:
    stop = stop_wanted(live.backup)
    if stop is not None:
        return f"A backup of this instance ({live.id}) is being stopped ({stop}): try again in a minute."
    return (
        f"A backup of this instance ({live.id}) is under way ({status(live.backup)}): "
        "wait for it, or cancel or delete it."
    )


def check_quota(tx: Tx, project_id: str, made_by: str) -> None:
    """Those that are made by themselves have a quota of their own: they are in the way of nobody's own."""
    name = "backups" if made_by == USER else "automatic_backups"
    most = database_quotas.limits(tx, project_id)[name]
    if most >= 0 and database_quotas.has_backups(tx, project_id, most, asked=made_by == USER):
        what = name.replace("_", " ")
        raise TooLarge(f"Quota exceeded for {what}: the project has {most} of {most}; delete some first.")


def location_of(tx: Tx, project_id: str, instance_id: str, wanted: str | None, places: Places) -> str:
    """As the request says; else the instance's strategy, the project's, the operator's default."""
    if wanted is None:
        query = sa.select(backup_strategies.c.instance_id, backup_strategies.c.container).where(
            backup_strategies.c.project_id == project_id,
            backup_strategies.c.instance_id.in_([instance_id, ""]),
        )
        found = {row.instance_id: row.container for row in tx.execute(query)}
        wanted = found.get(instance_id, found.get("", places.default))
    if wanted not in places.names:
        known = ", ".join(places.names)
        raise Invalid(f"swift_container: no store of backups is called {wanted!r}; there are: {known}.")
    return str(wanted)


def get_backup(tx: Tx, backup_id: str, project_id: str | None) -> BackupRow:
    """``project_id`` None: whoever's it is. Raises :class:`NotFound`, also for a deleted one."""
    found = load_backup(tx, backup_id)
    if found is None or found.backup.deleted or project_id not in (None, found.project_id):
        raise _not_found(backup_id)
    return found


def list_backups(
    tx: Tx, project_id: str | None, *, limit: int, marker: str | None = None, instance_id: str | None = None,
    datastore_version_ids: Sequence[str] | None = None,
) -> list[BackupRow]:  # fmt: skip
    """``limit`` of them at most, the newest first, behind the one with the id ``marker``.

    Read from an index, from where the last page ended: what lies before costs nothing. Raises
    :class:`Invalid` for a marker that is not there.
    """
    query = sa.select(backups).where(sa.not_(backups.c.deleted))
    if project_id is not None:
        query = query.where(backups.c.project_id == project_id)
    if instance_id is not None:
        query = query.where(backups.c.instance_id == instance_id)
    if datastore_version_ids is not None:
        query = query.where(backups.c.datastore_version_id.in_(list(datastore_version_ids)))
    if marker is not None:
        at = tx.execute(sa.select(backups.c.created_wall).where(backups.c.id == marker)).scalar_one_or_none()
        if at is None:
            raise Invalid(f"marker: backup {marker} cannot be found.")
        query = query.where(sa.tuple_(backups.c.created_wall, backups.c.id) < sa.tuple_(at, marker))
    query = query.order_by(backups.c.created_wall.desc(), backups.c.id.desc()).limit(limit)
    return [from_row(row) for row in tx.execute(query)]


def _hold(tx: Tx, backup_id: str, project_id: str | None) -> BackupRow:
    """The backup with its row, and its instance's host, held."""
    found = get_backup(tx, backup_id, project_id)
    host_id = lock_instance_host(tx, found.instance_id)
    held = load_backup(tx, backup_id, lock=True)
    if held is None or held.backup.deleted:
        raise _not_found(backup_id)
    return msgspec.structs.replace(held, host_id=host_id)


def cancel_backup(tx: Tx, backup_id: str, project_id: str | None) -> BackupRow:
    """Its agent is told to stop; without an agent it ends at once. Raises :class:`Conflict` after the end."""
    held = _hold(tx, backup_id, project_id)
    if held.backup.ended is not None:
        raise Conflict(f"Backup {backup_id} has ended already: it is {held.backup.ended.ending.value}.")
    return write_backup(tx, held, change.cancel(held.backup, tx.now.lease), keep_lease=True, ends=True)


def delete_backup(tx: Tx, backup_id: str, project_id: str | None, *, cascade: bool = False) -> BackupRow:
    """Accepted in every state (law 6): gone for its user at once, its objects once nobody reads them.

    Its children stay, and keep its objects; with ``cascade`` they are deleted with it, and theirs.
    """
    host_id = lock_instance_host(tx, get_backup(tx, backup_id, project_id).instance_id)
    for child in reversed(below(tx, backup_id)) if cascade else ():
        found = load_backup(tx, child, lock=True)
        if found is not None and not found.backup.deleted:
            write_backup(tx, found, change.delete(found.backup, tx.now.lease), keep_lease=True, ends=True)
    held = load_backup(tx, backup_id, lock=True)
    if held is None or held.backup.deleted:
        raise _not_found(backup_id)
    held = msgspec.structs.replace(held, host_id=host_id)
    archives.look_at(tx, held.instance_id)
    return write_backup(tx, held, change.delete(held.backup, tx.now.lease), keep_lease=True, ends=True)


def pin_backup(tx: Tx, backup_id: str, project_id: str | None, *, pinned: bool) -> BackupRow:
    """Whether retention leaves it alone; its user may delete it all the same."""
    held = _hold(tx, backup_id, project_id)
    tx.execute(sa.update(backups).where(backups.c.id == backup_id).values(pinned=pinned))
    retention.wake(tx, held.instance_id)
    return msgspec.structs.replace(held, pinned=pinned)


def below(tx: Tx, backup_id: str) -> list[str]:
    """Its children, theirs, and so on, each behind its parent."""
    found, todo = list[str](), [backup_id]
    while todo:
        query = sa.select(backups.c.id).where(backups.c.parent_id.in_(todo), sa.not_(backups.c.removed))
        todo = list(tx.execute(query.order_by(backups.c.id)).scalars())
        found += todo
    return found


def retry_backup(
    tx: Tx, backup_id: str, project_id: str | None, *, new_id: str, nonce: str, keyring: Keyring,
    places: Places,
) -> BackupRow:  # fmt: skip
    """A new backup in the place of one that failed: final states are final."""
    old = get_backup(tx, backup_id, project_id)
    ended = old.backup.ended
    if ended is None or ended.ending is not Ending.FAILED:
        raise Conflict(f"Backup {backup_id} is {status(old.backup)}; only a FAILED one is tried again.")
    new = NewBackup(
        id=new_id, nonce=nonce, name=old.name, instance_id=old.instance_id, description=old.description,
        location=old.location if old.location in places.names else None, retry_of=old.id,
        parent_id=_still_there(tx, old.parent_id), incremental=old.parent_id is not None,
        made_by=old.made_by,
    )  # fmt: skip
    return create_backup(tx, new, project_id, keyring=keyring, places=places)


def _still_there(tx: Tx, parent_id: str | None) -> str | None:
    """The same parent as before, unless it has been deleted since; then the newest there is."""
    found = None if parent_id is None else load_backup(tx, parent_id)
    return None if found is None or found.backup.deleted else parent_id


def backup_want(tx: Tx, instance_id: str) -> BackupWant | None:
    """What the instance's agent is to do about a backup: take what is offered, go on, or stop."""
    live = load_live(tx, instance_id)
    if live is None or live.backup.verify_since is not None or live.backup.attempt.report is not None:
        return None
    backup = live.backup
    stop = stop_wanted(backup)
    if stop is not None and backup.attempt.claimed is None:
        return None
    parent = None if live.parent_id is None else load_backup(tx, live.parent_id)
    return BackupWant(
        backup_id=live.id, attempt=backup.attempt.number, nonce=backup.attempt.nonce,
        recipient=live.recipient, chunk_size=CHUNK_SIZE,
        stalls={phase.value: seconds for phase, seconds in backup.limits.stalls.items()}, stop=stop,
        generation=live.generation, since=None if parent is None else parent_named(parent),
        since_content=None if parent is None else checked_content(parent),
    )  # fmt: skip


def guest_superseded(tx: Tx, instance_id: str, incarnation: int) -> None:
    """A newer process of the instance's agent has registered; the caller holds the instance's row."""
    held = load_live(tx, instance_id, lock=True)
    if held is None:
        return
    backup = change.superseded(held.backup, incarnation)
    if backup != held.backup:
        write_backup(tx, held, backup, keep_lease=True)


def cancel_live(tx: Tx, instance_id: str, reason: str) -> None:
    """Cancel the instance's backup, saying why; the caller holds the instance's row and tells its host."""
    held = load_live(tx, instance_id, lock=True)
    if held is not None:
        write_backup(tx, held, change.cancel(held.backup, tx.now.lease, reason), keep_lease=True)


def instance_deleted(tx: Tx, instance_id: str) -> None:
    """Its backup is cancelled, and those that ended stay; the caller holds the instance's row."""
    held = load_live(tx, instance_id, lock=True)
    if held is not None:
        write_backup(tx, held, change.instance_deleted(held.backup, tx.now.lease), keep_lease=True)
