"""Our own calls under ``/unstuck/v1``: what no OpenStack schema has room for (law 10)."""

from __future__ import annotations

from typing import Any

import msgspec

from unstuck.api.database.backup_views import extension as backup_extension
from unstuck.api.database.views import extension, restorable
from unstuck.api.errors import not_found
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.backup.status import status as backup_status
from unstuck.core.instance.explain import explain as explain_instance
from unstuck.core.instance.status import status as instance_status
from unstuck.core.server.data import Server
from unstuck.core.server.explain import Explanation, buried, explain, readdressed
from unstuck.core.server.explain import held_back as unheard
from unstuck.core.time import Now, iso_seconds
from unstuck.store.archive_moments import moments
from unstuck.store.backup_rows import BackupRow
from unstuck.store.backups import get_backup, list_backups
from unstuck.store.engine import Tx
from unstuck.store.generation import held_back
from unstuck.store.host_lists import HostRow
from unstuck.store.instance_lists import show_instance
from unstuck.store.overview import inventory, overview, tombstone
from unstuck.store.protection import protection
from unstuck.store.readable import find_unreadable
from unstuck.store.readdress import readdressed as notes
from unstuck.store.schedules import ScheduleRow, list_schedules
from unstuck.store.server_lists import show_server

BASE = "/unstuck/v1"
SHOWN = 20
"""Schedules and backups of an instance that are looked at, at most."""


async def explain_one(call: Call) -> Reply:
    """``GET /unstuck/v1/explain/{kind}/{id}``."""
    match call.params["kind"]:
        case "server":
            return await _server(call)
        case "instance":
            return await _instance(call)
        case "backup":
            return await _backup(call)
        case other:
            raise not_found(f"There is no kind {other[:60]!r}; there are: server, instance, backup.")


def _protected(tx: Tx, instance_id: str) -> dict[str, Any]:
    """Which moments can be restored, what is planned, and what its last backups were found to be."""
    found = restorable(moments(tx, instance_id))
    found["archive_conditions"] = found.pop("conditions")
    recent = list_backups(tx, None, limit=SHOWN, instance_id=instance_id)
    damaged = [{"id": row.id, "name": row.name, "reason": row.damaged} for row in recent if row.damaged]
    planned = list_schedules(tx, None, limit=SHOWN, instance_id=instance_id)
    return found | {"schedules": [_schedule(row) for row in planned], "damaged_backups": damaged}


def _schedule(row: ScheduleRow) -> dict[str, Any]:
    last = row.history[0] if row.history else None
    return {
        "name": row.name,
        "kind": row.kind.value,
        "cron": row.cron,
        "timezone": row.timezone,
        "paused": row.paused or None,
        "next_run": None if row.planned is None else iso_seconds(row.planned),
        "last": None if last is None else f"{last.what.value} {last.reason}".rstrip(),
    }


async def _instance(call: Call) -> Reply:
    found = await call.store.run_read(show_instance, call.params["id"], _scope(call), deleted=None)
    protected = await call.store.run_read(_protected, found.item.id)
    item, state = found.item, instance_status(found.item.facts, found.now)
    said = msgspec.to_builtins(explain_instance(item.facts, found.now))
    told = {"status": state.status, "operating_status": state.operating_status, **extension(item, found.now)}
    told |= protected
    return Reply({"kind": "instance", "id": item.id, "name": item.name, **said, **told})


async def _backup(call: Call) -> Reply:
    row, now = await call.store.run_read(_backup_row, call.params["id"], _scope(call))
    told = {"status": backup_status(row.backup), **backup_extension(row, now)}
    return Reply({"kind": "backup", "id": row.id, "name": row.name, **told})


def _backup_row(tx: Tx, backup_id: str, project_id: str | None) -> tuple[BackupRow, Now]:
    return get_backup(tx, backup_id, project_id), tx.now


def _scope(call: Call) -> str | None:
    return None if call.is_admin else call.project_id


async def _server(call: Call) -> Reply:
    scope = _scope(call)
    shown = await call.store.run_read(show_server, call.params["id"], scope, removed=True)
    said = await call.store.run_read(_beside, shown.item.facts, explain(shown.item.facts, shown.now))
    told = msgspec.to_builtins(said)
    return Reply({"kind": "server", "id": shown.item.id, "name": shown.item.name, **told})


def _beside(tx: Tx, server: Server, said: Explanation) -> Explanation:
    """What the server's own row does not say."""
    if server.removed:
        tomb = tombstone(tx, server.id)
        return said if tomb is None else buried(said, tomb)
    if server.place is None and server.failure is None:
        waiting = held_back(tx, server.created)
        if waiting is not None:
            said = unheard(said, waiting, tx.now)
    return readdressed(said, notes(tx, server.id))


def _host(host: HostRow, now: Now) -> dict[str, Any]:
    return {
        "id": host.id,
        "hostname": host.hostname,
        "up": host.up(now),
        "enabled": host.enabled,
        "incarnation": host.incarnation,
        "last_word": host.seen_wall,
        "silent_seconds": max(now.lease - host.seen, 0.0),
        "servers": len(host.guests),
        "unknown": host.unknown,
    }


async def status(call: Call) -> Reply:
    """``GET /unstuck/v1/status``: "age of the oldest unsettled row" is the promise in one number."""
    found = await call.store.run_read(overview)
    return Reply(
        {
            "protection": await call.store.run_read(protection),
            "time": found.now.wall,
            "clock_age": found.clock_age,
            "unsettled": found.unsettled,
            "tombstones": found.tombstones,
            "hosts": [_host(host, found.now) for host in found.hosts],
        }
    )


async def show_unreadable(call: Call) -> Reply:
    """``GET /unstuck/v1/unreadable``: rows with columns that cannot be read, for ``unstuck doctor``."""
    return Reply({"unreadable": await call.store.run_read(find_unreadable)})


async def show_inventory(call: Call) -> Reply:
    """``GET /unstuck/v1/inventory``: what ``unstuck doctor`` compares hosts with."""
    found = await call.store.run_read(inventory)
    return Reply(
        {
            "time": found.now.wall,
            "hosts": [
                {**_host(host, found.now), "placements": found.placements.get(host.id, [])}
                for host in found.hosts
            ],
        }
    )


ROUTES: list[Route] = [
    route("GET", f"{BASE}/explain/{{kind}}/{{id}}", explain_one, "reader"),
    route("GET", f"{BASE}/status", status, "admin"),
    route("GET", f"{BASE}/inventory", show_inventory, "admin"),
    route("GET", f"{BASE}/unreadable", show_unreadable, "admin"),
]
