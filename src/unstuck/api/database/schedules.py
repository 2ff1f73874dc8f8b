"""``/backup_schedules``, which are ours: when an instance is backed up by itself (docs/database.md)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from unstuck.api.database.common import (
    BASE,
    QUERY_MAX,
    invalid,
    limit,
    marker,
    object_id,
    page,
    project,
    scope,
    text_of,
    truth,
    wake,
)
from unstuck.api.errors import forbidden
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.backup.schedule import Kind, Missed, Outcome
from unstuck.core.time import Now, iso_seconds
from unstuck.store import schedules as store
from unstuck.store.engine import Tx
from unstuck.store.schedules import Changes, NewSchedule, ScheduleRow

Policy = Literal["once", "skip"]
What = Literal["backup", "verify"]
Often = Annotated[int, msgspec.Meta(ge=1, le=60)]


class New(Body, frozen=True, kw_only=True):
    instance_id: str
    cron: str
    name: str = "backup"
    timezone: str = "UTC"
    kind: What = "backup"
    query: str = ""
    database: str = ""
    missed: Policy = "once"
    full_every: Often = 1
    paused: bool = False


class CreateBody(Body, frozen=True, kw_only=True):
    backup_schedule: New


class Changed(Body, frozen=True, kw_only=True):
    cron: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    missed: Policy | UnsetType = UNSET
    full_every: Often | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class ChangeBody(Body, frozen=True, kw_only=True):
    backup_schedule: Changed


class Filters(Query, frozen=True, kw_only=True):
    instance_id: str | None = None
    all_projects: str | None = None


def _view(row: ScheduleRow, now: Now) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "project_id": row.project_id,
        "instance_id": row.instance_id,
        "cron": row.cron,
        "timezone": row.timezone,
        "kind": row.kind.value,
        "query": row.query,
        "database": row.database,
        "missed": row.missed.value,
        "full_every": row.full_every,
        "paused": row.paused,
        "created": _time(row.created_wall),
        "updated": _time(row.updated_wall),
        "next_run": _time(row.planned),
        "following_run": _time(store.following(row, now)),
        "last_run": _time(row.last_run),
        "reason": _reason(row),
        "counts": {
            "made": row.made_count, "skipped": row.skipped_count, "missed": row.missed_count
        },
        "history": [_outcome(item, row.kind) for item in row.history],
    }  # fmt: skip


def _outcome(item: Outcome, kind: Kind) -> dict[str, Any]:
    return {
        "planned": _time(item.planned),
        "decided": _time(item.decided),
        "outcome": item.what.value,
        "reason": item.reason,
        "backup_id": item.made if kind is Kind.BACKUP else None,
        "verification_id": item.made if kind is Kind.VERIFY else None,
        "missed_before": item.missed,
    }


def _time(wall: float | None) -> str | None:
    """UTC, and without a zone, as all times of this API."""
    return None if wall is None else iso_seconds(wall)[:-1]


def _reason(row: ScheduleRow) -> str:
    if row.paused:
        return "it is paused"
    return "its instance is gone" if row.settled else "it waits for its next run"


def _list(
    tx: Tx, project_id: str | None, most: int, behind: str | None, instance_id: str | None
) -> tuple[list[ScheduleRow], Now]:
    found = store.list_schedules(tx, project_id, limit=most, marker=behind, instance_id=instance_id)
    return found, tx.now


def _get(tx: Tx, schedule_id: str, project_id: str | None) -> tuple[ScheduleRow, Now]:
    return store.get_schedule(tx, schedule_id, project_id), tx.now


async def list_schedules(call: Call) -> Reply:
    """``GET``: the oldest first."""
    filters: Filters = call.query
    owner: str | None = project(call)
    if filters.all_projects is not None and truth(filters.all_projects, "all_projects"):
        if not call.is_admin:
            raise forbidden("Policy does not allow this request: it is about other projects.")
        owner = None
    instance_id = None if filters.instance_id in (None, "") else object_id(filters.instance_id, "Instance")
    most = limit(call)
    rows, now = await call.store.run_read(_list, owner, most + 1, marker(call), instance_id)
    shown = [_view(row, now) for row in rows[:most]]
    return page(call, "backup_schedules", shown, shown[-1]["id"] if len(rows) > most else None)


async def show(call: Call) -> Reply:
    """``GET /{id}``."""
    key = object_id(call.params["id"], "Backup schedule")
    return Reply({"backup_schedule": _view(*await call.store.run_read(_get, key, scope(call)))})


async def create(call: Call) -> Reply:
    """``POST``."""
    own = scope(call)
    asked: New = call.body.backup_schedule
    _check_statement(asked)
    new = NewSchedule(
        id=call.new_id(), instance_id=object_id(asked.instance_id, "Instance"),
        name=text_of(asked.name, "backup_schedule.name"), cron=asked.cron, timezone=asked.timezone,
        kind=Kind(asked.kind), query=asked.query, database=asked.database,
        missed=Missed(asked.missed), full_every=asked.full_every, paused=asked.paused,
    )  # fmt: skip
    await call.store.run(store.create_schedule, new, own)
    return await _shown(call, new.id)


def _check_statement(asked: New) -> None:
    if asked.kind == "backup" and (asked.query or asked.database):
        invalid("backup_schedule.query", "it is for schedules of the kind verify.")
    if len(asked.query) > QUERY_MAX:
        invalid("backup_schedule.query", f"it has at most {QUERY_MAX} characters.")
    if asked.database:
        text_of(asked.database, "backup_schedule.database", most=63)


async def _shown(call: Call, key: str) -> Reply:
    wake(call)
    return Reply({"backup_schedule": _view(*await call.store.run_read(_get, key, scope(call)))})


async def change(call: Call) -> Reply:
    """``PATCH /{id}``: what is left out stays as it is."""
    key = object_id(call.params["id"], "Backup schedule")
    asked: Changed = call.body.backup_schedule
    given = {
        name: value for name, value in msgspec.structs.asdict(asked).items() if value is not UNSET
    }  # fmt: skip
    if not given:
        invalid("backup_schedule", "it says nothing that is to change.")
    if "name" in given:
        text_of(given["name"], "backup_schedule.name")
    if "missed" in given:
        given["missed"] = Missed(given["missed"])
    await call.store.run(store.change_schedule, key, scope(call), Changes(**given))
    return await _shown(call, key)


async def delete(call: Call) -> Reply:
    """``DELETE /{id}``: the backups that it made stay."""
    key = object_id(call.params["id"], "Backup schedule")
    await call.store.run(store.delete_schedule, key, scope(call))
    return Reply()


_ALL: Final = f"{BASE}/backup_schedules"

ROUTES: list[Route] = [
    route("GET", _ALL, list_schedules, "reader", query=Filters),
    route("POST", _ALL, create, "member", body=CreateBody, status=202),
    route("GET", f"{_ALL}/{{id}}", show, "reader"),
    route("PATCH", f"{_ALL}/{{id}}", change, "member", body=ChangeBody, status=202),
    route("DELETE", f"{_ALL}/{{id}}", delete, "member", status=202),
]
