"""Our own calls under ``/unstuck/v1``: what no OpenStack schema has room for (law 10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from unstuck.api.errors import not_found
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.backup.explain import explain as explain_backup
from unstuck.core.backup.status import status as backup_status
from unstuck.core.instance.explain import explain as explain_instance
from unstuck.core.server.data import Server
from unstuck.core.server.explain import Explanation, buried, explain, readdressed
from unstuck.core.server.explain import held_back as unheard
from unstuck.core.time import Now
from unstuck.store.backup_rows import BackupRow
from unstuck.store.backups import get_backup
from unstuck.store.engine import Tx
from unstuck.store.generation import held_back
from unstuck.store.host_lists import HostRow
from unstuck.store.instance_lists import show_instance
from unstuck.store.overview import inventory, overview, tombstone
from unstuck.store.readable import find_unreadable
from unstuck.store.readdress import readdressed as notes
from unstuck.store.server_lists import show_server

BASE = "/unstuck/v1"


async def explain_one(call: Call) -> Reply:
    """``GET /unstuck/v1/explain/{kind}/{id}``."""
    kind = call.params["kind"]
    if kind not in _KINDS:
        raise not_found(f"There is no kind {kind[:60]!r}; there are: {', '.join(_KINDS)}.")
    return Reply(await _KINDS[kind](call, None if call.is_admin else call.project_id))


async def _server(call: Call, scope: str | None) -> dict[str, Any]:
    shown = await call.store.run_read(show_server, call.params["id"], scope, removed=True)
    said = await call.store.run_read(_beside, shown.item.facts, explain(shown.item.facts, shown.now))
    told = msgspec.to_builtins(said)
    return {"kind": "server", "id": shown.item.id, "name": shown.item.name, **told}


async def _instance(call: Call, scope: str | None) -> dict[str, Any]:
    shown = await call.store.run_read(show_instance, call.params["id"], scope, deleted=None)
    told = msgspec.to_builtins(explain_instance(shown.item.facts, shown.now))
    return {"kind": "instance", "id": shown.item.id, "name": shown.item.name, **told}


async def _backup(call: Call, scope: str | None) -> dict[str, Any]:
    row, now = await call.store.run_read(_one_backup, call.params["id"], scope)
    said = explain_backup(row.backup, now.lease)
    return {
        "kind": "backup", "id": row.id, "name": row.name, "status": backup_status(row.backup), "task": None,
        "host_status": "", "reason": said.why, "holder": said.holder, "next": said.next,
        "since_seconds": None, "since": None,
        "by_seconds": None if said.by is None else max(said.by - now.lease, 0.0), "conditions": [],
    }  # fmt: skip


def _one_backup(tx: Tx, backup_id: str, scope: str | None) -> tuple[BackupRow, Now]:
    return get_backup(tx, backup_id, scope), tx.now


_KINDS: dict[str, Callable[[Call, str | None], Awaitable[dict[str, Any]]]] = {
    "server": _server,
    "instance": _instance,
    "backup": _backup,
}


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
