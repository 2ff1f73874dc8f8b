"""How long backups of an instance are kept: its policy, and what that means now."""

from __future__ import annotations

import zoneinfo
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.data import Ending
from unstuck.core.backup.retention import DEFAULT, Decision, Item, Policy, decide
from unstuck.core.errors import Invalid, NotFound
from unstuck.core.time import Now
from unstuck.store import quotas, readable
from unstuck.store.backup_rows import BackupRow, from_row
from unstuck.store.backups_made import USER
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups, instances
from unstuck.store.schema.schedules import backup_retention as table

LOOK: Final = 3600.0
"""Seconds between two looks at what an instance has."""
SOON: Final = 60.0
"""Seconds until the next look after a backup was made by itself."""

_policy = msgspec.json.Decoder(Policy)
_ALL = Prepared(
    sa.select(backups).where(
        backups.c.instance_id == sa.bindparam("instance"), sa.not_(backups.c.deleted)
    )
)  # fmt: skip
_RESTORED = Prepared(
    sa.select(instances.c.restores).where(
        instances.c.restores.is_not(None), sa.not_(instances.c.data_recorded), sa.not_(instances.c.deleted)
    )
)
_INSTANCE = Prepared(
    sa.select(instances.c.project_id, instances.c.deleted, instances.c.removed).where(
        instances.c.id == sa.bindparam("instance")
    )
)
_SOON = Prepared(
    sa.update(table)
    .where(table.c.instance_id == sa.bindparam("instance"))
    .values(
        settled=False,
        # Never later than it was: what is made every minute would put it off for ever.
        next_look=sa.case(
            (table.c.next_look < sa.bindparam("look"), table.c.next_look), else_=sa.bindparam("look")
        ),
    )
)


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that retention deleted. Wall times."""

    id: str
    name: str
    created: float
    at: float
    why: str


class RetentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """``policy`` None: the default. ``next_look`` None: nobody looks, because there is nothing to look at."""

    policy: Policy | None = None
    looked_wall: float | None = None
    trouble: str | None = None
    removed: tuple[Removed, ...] = ()
    next_look: float | None = None


class Kept(msgspec.Struct, frozen=True):
    """What a policy means for an instance's backups now; ``rows`` in the order of ``decisions``."""

    row: RetentionRow
    policy: Policy
    rows: tuple[BackupRow, ...]
    decisions: tuple[Decision, ...]
    now: Now


_removed = msgspec.json.Decoder(tuple[Removed, ...])


def load_retention(tx: Tx, instance_id: str, *, lock: bool = False) -> RetentionRow | None:
    query = sa.select(table).where(table.c.instance_id == instance_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        return None
    # A policy that cannot be read keeps everything: nothing is lost for it.
    policy = None if row.policy is None else readable.read(_policy, row.policy, Policy())
    return RetentionRow(
        policy=policy, looked_wall=row.looked_wall, trouble=row.trouble,
        removed=readable.read(_removed, row.removed, ()), next_look=row.next_look,
    )  # fmt: skip


def look_soon(tx: Tx, instance_id: str, project_id: str) -> None:
    """A backup was made by itself; the caller holds the project."""
    if _SOON.run(tx, instance=instance_id, look=tx.now.lease + SOON) == 0:
        _insert(tx, instance_id, project_id, None)


def wake(tx: Tx, instance_id: str) -> None:
    """Something changed that decides on what stays."""
    _SOON.run(tx, instance=instance_id, look=tx.now.lease)


def _insert(tx: Tx, instance_id: str, project_id: str, policy: str | None) -> None:
    values: dict[str, Any] = dict(  # noqa: C408
        instance_id=instance_id, project_id=project_id, policy=policy, looked_wall=None, trouble=None,
        removed="[]", settled=False, next_look=tx.now.lease + SOON,
    )  # fmt: skip
    tx.execute(sa.insert(table).values(**values))


def owner_of(tx: Tx, instance_id: str, project_id: str | None) -> str:
    """The instance's project. Raises :class:`NotFound`; one that is in the trash still has backups."""
    row = _INSTANCE.first(tx, instance=instance_id)
    if row is None or row.removed or project_id not in (None, row.project_id):
        raise NotFound(f"Instance {instance_id} cannot be found.")
    return str(row.project_id)


def set_policy(tx: Tx, instance_id: str, project_id: str | None, policy: Policy | None) -> None:
    """None: the default again. Raises :class:`NotFound`, :class:`Invalid`."""
    owner = owner_of(tx, instance_id, project_id)
    check(policy)
    quotas.lock_project(tx, owner)
    text = None if policy is None else msgspec.json.encode(policy).decode()
    changed = tx.execute(
        sa.update(table)
        .where(table.c.instance_id == instance_id)
        .values(policy=text, settled=False, next_look=tx.now.lease + SOON)
    )
    if changed.rowcount == 0:
        _insert(tx, instance_id, owner, text)


def check(policy: Policy | None) -> None:
    """Raises :class:`Invalid` for a time zone that there is not."""
    try:
        zoneinfo.ZoneInfo("UTC" if policy is None else policy.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid("Invalid input for field retention.timezone: there is no such time zone.") from None


def preview(tx: Tx, instance_id: str, project_id: str | None, policy: Policy | None = None) -> Kept:
    """What stays and what would go, by the instance's policy or by another one; changes nothing."""
    owner_of(tx, instance_id, project_id)
    check(policy)
    return weigh(tx, instance_id, load_retention(tx, instance_id) or RetentionRow(), policy)


def weigh(tx: Tx, instance_id: str, row: RetentionRow, policy: Policy | None = None) -> Kept:
    """Decide on every backup of the instance that is not deleted."""
    chosen = policy or row.policy or DEFAULT
    found = {item.id: from_row(item) for item in _ALL.all(tx, instance=instance_id)}
    instance = _INSTANCE.first(tx, instance=instance_id)
    read = _being_read(tx, found)
    items = [_item(item, read) for item in found.values()]
    decisions = decide(items, chosen, tx.now.wall, gone=instance is None or bool(instance.removed))
    return Kept(row, chosen, tuple(found[item.id] for item in decisions), decisions, tx.now)


def _being_read(tx: Tx, found: dict[str, BackupRow]) -> set[str]:
    """Those that an instance is being made from, with all that they need."""
    read: set[str] = set()
    for backup_id in _RESTORED.scalars(tx):
        while backup_id in found and backup_id not in read:
            read.add(backup_id)
            backup_id = found[backup_id].parent_id
    return read


def _item(row: BackupRow, read: set[str]) -> Item:
    ended = row.backup.ended
    sound = ended is not None and ended.ending is Ending.COMPLETED and row.readable
    sound = sound and row.damaged is None
    return Item(
        id=row.id, created=row.created_wall, done=None if ended is None else row.updated_wall, sound=sound,
        automatic=row.made_by != USER, pinned=row.pinned, parent=row.parent_id,
        held="an instance is being restored from it" if row.id in read else "",
    )  # fmt: skip
