"""Instances as the database API shows them, with our own facts under one key (docs/database.md)."""

from __future__ import annotations

import math
from typing import Any

from unstuck.api.database.common import links
from unstuck.api.routes import Call
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.explain import explain
from unstuck.core.instance.status import status
from unstuck.core.instance.view import DatabaseView
from unstuck.core.server.status import status as server_status
from unstuck.core.time import Now, iso_seconds
from unstuck.store.archive_moments import Moments
from unstuck.store.instance_lists import InstanceItem


def short(call: Call, item: InstanceItem, now: Now) -> dict[str, Any]:
    """One entry of ``GET /instances``."""
    state = status(item.facts, now)
    shown: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "status": state.status,
        "operating_status": state.operating_status,
        "links": links(call, "instances", item.id),
        "flavor": {"id": item.flavor_id, "links": links(call, "flavors", item.flavor_id)},
        "datastore": {"type": item.datastore, "version": item.version},
        "region": call.app.settings.region,
        "access": {"is_public": item.is_public, "allowed_cidrs": list(item.allowed_cidrs)},
        "volume": {"size": item.volume_gb},
        "ip": [address.address for address in item.addresses],
        "addresses": [
            {"address": address.address, "type": "private", "network": address.network}
            for address in item.addresses
        ],
        "unstuck": extension(item, now),
    }
    if call.is_admin:
        shown["tenant_id"] = item.project_id
        shown["server_id"] = item.server_id
    return shown


def detail(call: Call, item: InstanceItem, now: Now) -> dict[str, Any]:
    """``GET /instances/{id}``, and one entry of ``/instances/detail``."""
    shown = short(call, item, now)
    seen = item.facts.seen
    shown |= {
        "created": iso_seconds(item.created_wall)[:-1],
        "updated": iso_seconds(item.updated_wall)[:-1],
        "service_status_updated": iso_seconds(item.seen_wall or item.created_wall)[:-1],
    }
    shown["datastore"] = {
        "type": item.datastore,
        "version": item.version,
        "version_number": item.version_number,
    }
    if item.configuration_id is not None:
        shown["configuration"] = {
            "id": item.configuration_id,
            "name": item.configuration,
            "links": links(call, "configurations", item.configuration_id),
        }
    if seen is not None and seen.volume_size_mb:
        used = round(seen.volume_used_mb / 1024, 2)
        percent = round(100 * seen.volume_used_mb / seen.volume_size_mb, 1)
        shown["volume"] |= {"used": used, "used_percent": percent}
    fault = status(item.facts, now).fault
    if fault is not None:
        since = fault.since if fault.since is not None else item.updated_wall
        words = fault.reason if not fault.remedy else f"{fault.reason}; {fault.remedy}"
        shown["fault"] = {"message": words, "created": iso_seconds(since)[:-1], "details": ""}
    if call.is_admin:
        shown["volume_id"] = item.server_id
    return shown


def managed(call: Call, item: InstanceItem, now: Now, server_name: str) -> dict[str, Any]:
    """``GET /mgmt/instances``: with the server that it lives in."""
    shown = detail(call, item, now)
    facts = item.facts
    pending = facts.pending
    return shown | {
        "tenant_id": item.project_id,
        "deleted": facts.deleted,
        "deleted_at": None if item.deleted_wall is None else iso_seconds(item.deleted_wall)[:-1],
        "task_description": "No tasks for the instance." if pending is None else pending.kind.value,
        "service_status": "unknown" if facts.seen is None else facts.seen.server.value,
        "server": {
            "id": item.server_id,
            "name": server_name,
            "host": item.host,
            "status": "DELETED" if facts.server is None else server_status(facts.server, now).status,
            "tenant_id": SERVICE_PROJECT,
            "deleted": facts.server is None or facts.server.removed,
        },
    }


def restorable(found: Moments) -> dict[str, Any]:
    """Which moments can be restored, without what lies in gaps; and how its log is kept."""
    windows = [
        {"from": iso_seconds(math.ceil(one.earliest)), "to": iso_seconds(one.latest)}
        for one in found.windows
        if math.ceil(one.earliest) <= one.latest
    ]
    conditions = []
    share = 100 * found.waiting_mb // max(found.budget_mb, 1) if found.budget_mb else 0
    if share >= 50:
        level = 80 if share >= 80 else 50
        conditions.append(f"archive-behind: {found.waiting_mb} of {found.budget_mb} MiB of log that may wait "
                          f"on the volume wait ({level} % are passed)")  # fmt: skip
    if found.ended is not None:
        word = "archive-gap" if found.ended == "gap" else f"archive-{found.ended}"
        conditions.append(f"{word}: moments can be restored again from the next complete backup on")
    if found.trouble:
        conditions.append(f"archive-trim: what is needed no more could not be removed: {found.trouble}")
    return {
        "earliest_restorable_time": windows[0]["from"] if windows else None,
        "latest_restorable_time": windows[-1]["to"] if windows else None,
        "restorable": windows,
        "archive": found.archive_id,
        "log_waiting_mb": found.waiting_mb,
        "conditions": conditions,
    }


def extension(item: InstanceItem, now: Now) -> dict[str, Any]:
    """What Trove has no room for: why, who, what next, and by when."""
    facts = item.facts
    said, seen, pending = explain(facts, now), facts.seen, facts.pending
    until = facts.trash_until_wall
    return {
        "reason": said.reason,
        "holder": said.holder,
        "next": said.next,
        "by_seconds": None if said.by_seconds is None else round(said.by_seconds, 3),
        "phase": None if seen is None else seen.step.value,
        "progress": {"done": seen.done, "total": seen.total} if seen is not None and seen.total else None,
        "agent_alive": facts.alive,
        "seen": None if item.seen_wall is None else iso_seconds(item.seen_wall)[:-1],
        "pending": None if pending is None else pending.kind.value,
        "backup": None if facts.backup is None else facts.backup.id,
        "protected": facts.protected,
        "manager": item.manager,
        "port": item.port,
        "restores": facts.restores,
        "deleted": facts.deleted,
        "configuration": _configured(facts.seen),
        "trash_until": None if until is None or not facts.deleted else iso_seconds(until)[:-1],
    }


def _configured(seen: DatabaseView | None) -> dict[str, Any] | None:
    """Its parameters, as its agent saw them last."""
    if seen is None or seen.configured is None:
        return None
    found = seen.configured
    return {
        "applied": found.applied,
        "restart_required": list(found.waiting),
        "refused": found.refused or None,
    }
