"""Ticks. One function is one transaction: the tick, what it made, and the next one are written together.

Locks: the schedule first, then what :func:`make_automatic_backup` takes; nobody takes them the other way.
"""

from __future__ import annotations

import uuid
from typing import Any, assert_never

import msgspec
import sqlalchemy as sa

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.core.backup.data import Ending
from unstuck.core.backup.schedule import Happened, Kind, Outcome, PassOver, Replan, Run, Wait, due, remember
from unstuck.core.errors import Conflict, NotFound
from unstuck.core.time import iso_seconds
from unstuck.store.automatic_backups import Made, NotMade, make_automatic_backup
from unstuck.store.backups import NewBackup
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schedules import ScheduleRow, load_schedule, times
from unstuck.store.schema.database import backups, instances
from unstuck.store.schema.schedules import backup_schedules as table
from unstuck.store.verifications import NewVerification, load_verification, verify_backup

_DUE = Prepared(
    sa.select(table.c.id)
    .where(
        sa.not_(table.c.settled),
        sa.or_(table.c.planned <= sa.bindparam("wall"), table.c.next_look <= sa.bindparam("now")),
        table.c.held <= sa.bindparam("now"),
    )
    .order_by(table.c.planned)
    .limit(sa.bindparam("most"))
)
_INSTANCE = Prepared(
    sa.select(
        instances.c.deleted, instances.c.removed, instances.c.data_recorded, instances.c.project_id
    ).where(instances.c.id == sa.bindparam("instance"))
)
_LAST = Prepared(
    sa.select(backups.c.ended, backups.c.parent_id)
    .where(backups.c.instance_id == sa.bindparam("instance"), sa.not_(backups.c.deleted))
    .order_by(backups.c.created_wall.desc(), backups.c.id.desc())
    .limit(sa.bindparam("most"))
)
_NEWEST = Prepared(
    sa.select(backups.c.id)
    .where(
        backups.c.instance_id == sa.bindparam("instance"),
        sa.not_(backups.c.deleted),
        backups.c.ended == Ending.COMPLETED.value,
    )
    .order_by(backups.c.created_wall.desc(), backups.c.id.desc())
    .limit(1)
)
_POSTPONE = Prepared(
    sa.update(table)
    .where(table.c.id == sa.bindparam("schedule"), sa.not_(table.c.settled))
    .values(held=sa.bindparam("until"))
)
_SCHEDULED = "schedule:"


def due_schedules(tx: Tx, most: int) -> list[str]:
    """Those with a tick that has come, or that are to be looked at."""
    return _DUE.scalars(tx, wall=tx.now.wall, now=tx.now.lease, most=most)


def postpone_schedule(tx: Tx, schedule_id: str, seconds: float) -> None:
    """Its step failed: not again for a while."""
    _POSTPONE.run(tx, schedule=schedule_id, until=tx.now.lease + seconds)


def run_schedule(
    tx: Tx, schedule_id: str, *, new_id: str, nonce: str, keyring: Keyring, places: Places
) -> str | None:
    """Do what is due, in one transaction; the id of the host that is to hear of it.

    ``new_id`` and ``nonce`` name the backup, should there be one.
    """
    held = load_schedule(tx, schedule_id, lock=True)
    if held is None or held.settled or held.planned is None:
        return None
    instance = _INSTANCE.first(tx, instance=held.instance_id)
    if instance is None or instance.removed:
        _write(tx, held, settled=True, next_look=None, planned=None)
        return None
    match due(held.schedule, tx.now):
        case Wait() | Replan():
            _write(tx, held, **times(held.schedule, tx.now, paused=False))
        case PassOver(planned, missed, reason):
            _tick(tx, held, Outcome(
                planned=planned, decided=tx.now.wall, what=Happened.MISSED, reason=reason, missed=missed
            ))  # fmt: skip
        case Run(planned, missed, late) if held.kind is Kind.VERIFY:
            _tick(tx, held, _verify(tx, held, instance, planned, missed))
        case Run(planned, missed, late):
            new = NewBackup(
                id=new_id, nonce=nonce, name=f"{held.name}-{_stamp(planned)}"[:255],
                instance_id=held.instance_id, made_by=f"{_SCHEDULED}{held.id}",
                made_key=f"{_SCHEDULED}{held.id}:{planned:.0f}", incremental=_incremental(tx, held),
            )  # fmt: skip
            in_the_way = _in_the_way(instance)
            found = (
                make_automatic_backup(tx, new, keyring=keyring, places=places) if in_the_way is None else None
            )
            _tick(tx, held, _outcome(tx, found, in_the_way, planned, missed, late))
            return found.host_id if isinstance(found, Made) else None
        case _ as never:
            assert_never(never)
    return None


def _verify(tx: Tx, held: ScheduleRow, instance: Any, planned: float, missed: int) -> Outcome:
    """Verify the instance's last complete backup. The tick's name is the verification's id."""

    def outcome(what: Happened, reason: str = "", made: str | None = None) -> Outcome:
        return Outcome(
            planned=planned, decided=tx.now.wall, what=what, reason=reason, made=made, missed=missed
        )

    key = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{_SCHEDULED}{held.id}:{planned:.0f}"))
    if load_verification(tx, key) is not None:
        return outcome(Happened.SKIPPED, "it was verified before: the clock went back", key)
    backup_id = _NEWEST.scalar(tx, instance=held.instance_id)
    if instance.deleted or backup_id is None:
        return outcome(Happened.SKIPPED, _in_the_way(instance) or "there is no complete backup")
    new = NewVerification(
        id=key, backup_id=backup_id, query=held.query, database=held.database,
        made_by=f"{_SCHEDULED}{held.id}",
    )  # fmt: skip
    try:
        verify_backup(tx, new, None)
    except (Conflict, NotFound) as error:
        return outcome(Happened.SKIPPED, error.message)
    return outcome(Happened.MADE, made=key)


def _incremental(tx: Tx, held: ScheduleRow) -> bool:
    """A full one begins anew every so often, and after one that failed: that may have lacked its log."""
    if held.full_every <= 1:
        return False
    last = _LAST.all(tx, instance=held.instance_id, most=held.full_every)
    if not last or last[0].ended != Ending.COMPLETED.value:
        return False
    before = [row.parent_id is not None for row in last[: held.full_every - 1]]
    return not all(before) or len(before) < held.full_every - 1


def _in_the_way(instance: Any) -> str | None:
    if instance.deleted:
        return "the instance is in the trash"
    return None if instance.data_recorded else "the instance has no data yet"


def _stamp(planned: float) -> str:
    return iso_seconds(planned).replace("-", "").replace(":", "")


def _outcome(
    tx: Tx, found: Made | NotMade | None, in_the_way: str | None, planned: float, missed: int, late: float
) -> Outcome:
    what, reason, made = Happened.SKIPPED, in_the_way or "", None
    match found:
        case Made(backup_id, new):
            what, made = Happened.MADE, backup_id
            reason = f"{late:.0f} s late" if late >= 60.0 else ""
            if not new:
                what, reason = Happened.SKIPPED, "it was made before: the clock went back"
        case NotMade(_, why):
            reason = why
        case None:
            pass
        case _ as never:
            assert_never(never)
    return Outcome(planned=planned, decided=tx.now.wall, what=what, reason=reason, made=made, missed=missed)


def _tick(tx: Tx, held: ScheduleRow, outcome: Outcome) -> None:
    made, skipped = outcome.what is Happened.MADE, outcome.what is Happened.SKIPPED
    values: dict[str, Any] = times(held.schedule, tx.now, paused=False)
    _write(
        tx, held, made_count=held.made_count + made, skipped_count=held.skipped_count + skipped,
        missed_count=held.missed_count + outcome.missed + (outcome.what is Happened.MISSED),
        last_run=outcome.planned if made else held.last_run,
        history=msgspec.json.encode(remember(held.history, outcome)).decode(), **values,
    )  # fmt: skip


def _write(tx: Tx, held: ScheduleRow, **values: Any) -> None:
    tx.execute(sa.update(table).where(table.c.id == held.id).values(**values))
