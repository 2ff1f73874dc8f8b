"""Schedules of backups as their users see them: create, list, change, delete. Ticks: ``schedule_work``."""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.cron import BadCron, check, next_tick
from unstuck.core.backup.schedule import LOOK, Kind, Missed, Outcome, Schedule, first_tick
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.core.time import Now
from unstuck.store import quotas, readable
from unstuck.store.engine import Tx
from unstuck.store.schema.database import instances
from unstuck.store.schema.schedules import backup_schedules as table

MOST: Final = 10
"""Schedules of one instance."""
DELAY: Final = 86400.0
"""Seconds (lease time) until a schedule that comes with its instance begins."""

_history = msgspec.json.Decoder(tuple[Outcome, ...])


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    instance_id: str
    name: str
    cron: str
    timezone: str = "UTC"
    kind: Kind = Kind.BACKUP
    query: str = ""
    """For verifications: one statement, and the database that it is run in."""
    database: str = ""
    missed: Missed = Missed.ONCE
    full_every: int = 1
    """Every so many-th of its backups is a full one; 1: all."""
    paused: bool = False


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """None: as it is."""

    name: str | None = None
    cron: str | None = None
    timezone: str | None = None
    missed: Missed | None = None
    full_every: int | None = None
    paused: bool | None = None


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its bookkeeping. ``planned`` None: it has no next tick."""

    id: str
    project_id: str
    instance_id: str
    name: str
    cron: str
    timezone: str
    kind: Kind
    query: str
    database: str
    missed: Missed
    full_every: int
    paused: bool
    created_wall: float
    updated_wall: float
    starts: float
    planned: float | None
    last_run: float | None
    made_count: int
    skipped_count: int
    missed_count: int
    history: tuple[Outcome, ...]
    settled: bool

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            cron=self.cron, timezone=self.timezone, missed=self.missed, planned=self.planned or 0.0,
            starts=self.starts,
        )  # fmt: skip


def from_row(row: Any) -> ScheduleRow:
    values = {name: row._mapping[name] for name in ScheduleRow.__struct_fields__}
    values["missed"] = Missed.SKIP if row.missed == Missed.SKIP.value else Missed.ONCE
    values["kind"] = Kind.VERIFY if row.kind == Kind.VERIFY.value else Kind.BACKUP
    values["history"] = readable.read(_history, row.history, ())
    return ScheduleRow(**values)


def _missing(schedule_id: str) -> NotFound:
    return NotFound(f"Backup schedule {schedule_id} cannot be found.")


def load_schedule(tx: Tx, schedule_id: str, *, lock: bool = False) -> ScheduleRow | None:
    query = sa.select(table).where(table.c.id == schedule_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    return None if row is None else from_row(row)


def get_schedule(tx: Tx, schedule_id: str, project_id: str | None, *, lock: bool = False) -> ScheduleRow:
    """``project_id`` None: whoever's it is. Raises :class:`NotFound`."""
    found = load_schedule(tx, schedule_id, lock=lock)
    if found is None or project_id not in (None, found.project_id):
        raise _missing(schedule_id)
    return found


def list_schedules(
    tx: Tx, project_id: str | None, *, limit: int, marker: str | None = None, instance_id: str | None = None
) -> list[ScheduleRow]:
    """``limit`` of them at most, the oldest first, behind ``marker``. Raises :class:`Invalid` for a marker
    that is not there."""
    query = sa.select(table)
    if project_id is not None:
        query = query.where(table.c.project_id == project_id)
    if instance_id is not None:
        query = query.where(table.c.instance_id == instance_id)
    if marker is not None:
        at = tx.execute(sa.select(table.c.created_wall).where(table.c.id == marker)).scalar_one_or_none()
        if at is None:
            raise Invalid(f"marker: backup schedule {marker} cannot be found.")
        query = query.where(sa.tuple_(table.c.created_wall, table.c.id) > sa.tuple_(at, marker))
    query = query.order_by(table.c.created_wall, table.c.id).limit(limit)
    return [from_row(row) for row in tx.execute(query)]


def create_schedule(tx: Tx, new: NewSchedule, project_id: str | None) -> ScheduleRow:
    """Raises :class:`NotFound` without its instance, :class:`Invalid` naming the field, :class:`Conflict`
    where the instance has :data:`MOST` of them."""
    query = sa.select(instances.c.project_id).where(
        instances.c.id == new.instance_id, sa.not_(instances.c.deleted)
    )
    owner = tx.execute(query).scalar_one_or_none()
    if owner is None or project_id not in (None, owner):
        raise NotFound(f"Instance {new.instance_id} cannot be found.")
    check_times(new.cron, new.timezone, tx.now)
    quotas.lock_project(tx, owner)
    mine = sa.select(sa.func.count()).where(table.c.instance_id == new.instance_id)
    if tx.execute(mine).scalar_one() >= MOST:
        raise Conflict(f"Instance {new.instance_id} has {MOST} backup schedules; delete one first.")
    return insert_schedule(tx, new, owner, starts=0.0)


def insert_schedule(tx: Tx, new: NewSchedule, owner: str, *, starts: float) -> ScheduleRow:
    """Write it down; ``starts``: lease time before which it does not tick."""
    now = tx.now
    values: dict[str, Any] = dict(  # noqa: C408
        id=new.id, project_id=owner, instance_id=new.instance_id, name=new.name, cron=new.cron,
        timezone=new.timezone, kind=new.kind.value, query=new.query, database=new.database,
        missed=new.missed.value, full_every=new.full_every, paused=new.paused,
        created_wall=now.wall,
        updated_wall=now.wall, starts=starts, last_run=None, made_count=0, skipped_count=0,
        missed_count=0, history="[]", held=0.0,
    )  # fmt: skip
    schedule = Schedule(cron=new.cron, timezone=new.timezone, missed=new.missed, planned=0.0, starts=starts)
    values |= times(schedule, now, paused=new.paused)
    tx.execute(sa.insert(table).values(**values))
    made = load_schedule(tx, new.id)
    assert made is not None
    return made


def daily(schedule_id: str, instance_id: str) -> NewSchedule:
    """What an instance begins with: once a day, at a time that is another one for each."""
    minute = zlib.crc32(instance_id.encode()) % 1440
    return NewSchedule(
        id=schedule_id, instance_id=instance_id, name="daily", cron=f"{minute % 60} {minute // 60} * * *"
    )


def check_times(cron: str, timezone: str, now: Now) -> None:
    """Raises :class:`Invalid` naming the field."""
    try:
        check(cron, timezone, now.wall)
    except BadCron as error:
        raise Invalid(f"Invalid input for field backup_schedule.{error.field}: {error.why}") from None


def times(schedule: Schedule, now: Now, *, paused: bool) -> dict[str, Any]:
    """The columns that say when it is looked at next: law 2, in one place."""
    planned = None if paused else first_tick(schedule, now)
    if planned is None:
        return {"planned": None, "settled": True, "next_look": None}
    look = now.lease + min(max(planned - now.wall, 0.0), LOOK)
    return {"planned": planned, "settled": False, "next_look": look}


def change_schedule(tx: Tx, schedule_id: str, project_id: str | None, changes: Changes) -> ScheduleRow:
    """Other times count from now on; what was missed while it was paused stays so, and is not counted."""
    held = get_schedule(tx, schedule_id, project_id, lock=True)
    given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not None}
    after = msgspec.structs.replace(held, **given)
    now = tx.now
    check_times(after.cron, after.timezone, now)
    values: dict[str, Any] = given | {"updated_wall": now.wall}
    gone = held.settled and not held.paused
    if {"cron", "timezone", "paused"} & given.keys() and not gone:
        values |= times(after.schedule, now, paused=after.paused)
    if gone:
        values.pop("paused", None)
    if "missed" in given:
        values["missed"] = after.missed.value
    tx.execute(sa.update(table).where(table.c.id == schedule_id).values(**values))
    return get_schedule(tx, schedule_id, project_id)


def delete_schedule(tx: Tx, schedule_id: str, project_id: str | None) -> None:
    """What it made stays. Raises :class:`NotFound`."""
    get_schedule(tx, schedule_id, project_id, lock=True)
    tx.execute(sa.delete(table).where(table.c.id == schedule_id))


def following(row: ScheduleRow, now: Now) -> float | None:
    """The wall time of the tick after the next one, for those who want to see that it is as they meant it."""
    return None if row.planned is None else next_tick(row.cron, row.timezone, max(row.planned, now.wall))
