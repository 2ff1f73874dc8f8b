"""Limits and usage: sums over rows; nothing here is counted anywhere."""

from __future__ import annotations

from typing import Any

from unstuck.api.compute.common import BASE, as_wall
from unstuck.api.compute.quotas import own_project
from unstuck.api.errors import bad_request
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.time import iso_micros
from unstuck.store import quotas
from unstuck.store.usage import Life, list_lives


async def show_limits(call: Call) -> Reply:
    """``GET /limits``."""
    project = own_project(call, call.query_params.get("tenant_id"))
    limit, used = await call.store.run_read(quotas.with_usage, project)
    absolute = {
        "maxServerMeta": limit["metadata_items"],
        "maxTotalInstances": limit["instances"],
        "maxTotalCores": limit["cores"],
        "maxTotalRAMSize": limit["ram"],
        "maxTotalKeypairs": limit["key_pairs"],
        "maxServerGroups": limit["server_groups"],
        "maxServerGroupMembers": limit["server_group_members"],
        "totalInstancesUsed": used.instances,
        "totalCoresUsed": used.cores,
        "totalRAMUsed": used.ram,
        "totalServerGroupsUsed": 0,
    }
    if call.version <= (2, 38):
        absolute["maxImageMeta"] = limit["metadata_items"]
    if call.version <= (2, 56):
        absolute |= {
            "maxPersonality": limit["injected_files"],
            "maxPersonalitySize": limit["injected_file_content_bytes"],
        }
    if call.version <= (2, 35):
        absolute |= {
            "maxTotalFloatingIps": limit["floating_ips"], "totalFloatingIpsUsed": 0,
            "maxSecurityGroups": limit["security_groups"], "totalSecurityGroupsUsed": 1,
            "maxSecurityGroupRules": limit["security_group_rules"],
        }  # fmt: skip
    return Reply({"limits": {"rate": [], "absolute": absolute}})


def _usage(lives: list[Life], start: float, end: float, now: float, *, detailed: bool) -> dict[str, Any]:
    """A project's usage between two times."""
    entries, totals = [], {"hours": 0.0, "ram": 0.0, "disk": 0.0, "vcpus": 0.0}
    for life in lives:
        until = life.ended if life.ended is not None else now
        hours = max(min(until, end) - max(life.started, start), 0.0) / 3600
        totals["hours"] += hours
        totals["ram"] += hours * life.ram_mb
        totals["disk"] += hours * life.disk_gb
        totals["vcpus"] += hours * life.vcpus
        entries.append(_entry(life, hours, now))
    shown: dict[str, Any] = {
        "tenant_id": lives[0].project_id if lives else "",
        "start": iso_micros(start),
        "stop": iso_micros(end),
        "total_hours": totals["hours"],
        "total_memory_mb_usage": totals["ram"],
        "total_local_gb_usage": totals["disk"],
        "total_vcpus_usage": totals["vcpus"],
    }
    return {**shown, "server_usages": entries} if detailed else shown


def _entry(life: Life, hours: float, now: float) -> dict[str, Any]:
    ended = life.ended
    return {
        "instance_id": life.id,
        "name": life.name,
        "flavor": life.flavor,
        "vcpus": life.vcpus,
        "memory_mb": life.ram_mb,
        "local_gb": life.disk_gb,
        "tenant_id": life.project_id,
        "hours": hours,
        "started_at": iso_micros(life.started),
        "ended_at": None if ended is None else iso_micros(ended),
        "state": "active" if ended is None else "terminated",
        "uptime": int((now if ended is None else ended) - life.started),
    }


async def _lives(call: Call, project: str | None) -> tuple[list[Life], float, float, float]:
    params = call.query_params
    start, end = as_wall(params.get("start"), "start"), as_wall(params.get("end"), "end")
    if start is not None and end is not None and start >= end:
        raise bad_request("Invalid start time. The start time cannot occur after the end time.")
    lives, now = await call.store.run_read(list_lives, project, start=start, end=end)
    return lives, now if start is None else start, now if end is None else end, now


async def show_usage(call: Call) -> Reply:
    """``GET /os-simple-tenant-usage/{project}``."""
    lives, start, end, now = await _lives(call, own_project(call, call.params["project"]))
    return Reply({"tenant_usage": _usage(lives, start, end, now, detailed=True) if lives else {}})


async def list_usage(call: Call) -> Reply:
    """``GET /os-simple-tenant-usage``."""
    lives, start, end, now = await _lives(call, None)
    detailed = call.query_params.get("detailed", "0").lower() in ("1", "true")
    by_project: dict[str, list[Life]] = {}
    for life in lives:
        by_project.setdefault(life.project_id, []).append(life)
    shown = [_usage(items, start, end, now, detailed=detailed) for items in by_project.values()]
    return Reply({"tenant_usages": shown})


ROUTES: list[Route] = [
    route("GET", f"{BASE}/limits", show_limits, "reader"),
    route("GET", f"{BASE}/os-simple-tenant-usage", list_usage, "admin"),
    route("GET", f"{BASE}/os-simple-tenant-usage/{{project}}", show_usage, "reader"),
]
