"""``/limits`` of a project, and its quotas for operators."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.database.common import BASE, invalid, number, project
from unstuck.api.errors import forbidden
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.store import database_quotas as quotas


class QuotaBody(Body, frozen=True, kw_only=True):
    quotas: dict[str, Any]


async def show_limits(call: Call) -> Reply:
    """``GET /limits``: the first entry has all absolute ones, as clients expect. There are no rates."""
    found, used = await call.store.run_read(quotas.with_usage, project(call))
    absolute = {f"max_{name}": limit for name, limit in found.items()}
    counted = {f"used_{name}": count for name, count in msgspec.structs.asdict(used).items()}
    return Reply({"limits": [{"verb": "ABSOLUTE", **absolute, **counted}]})


async def show(call: Call) -> Reply:
    """``GET /mgmt/quotas/{project}``: an operator's call, and everybody's for the own project."""
    asked = call.params["asked"]
    if not call.is_admin and asked != project(call):
        raise forbidden("Policy does not allow this request: it is about another project.")
    project(call)
    found, used = await call.store.run_read(quotas.with_usage, asked)
    counted = msgspec.structs.asdict(used)
    shown = [
        {"resource": name, "in_use": counted[name], "reserved": 0, "limit": limit}
        for name, limit in found.items()
    ]
    return Reply({"quotas": shown})


async def update(call: Call) -> Reply:
    """``PUT /mgmt/quotas/{project}``."""
    project(call)
    wanted = {}
    for name, value in call.body.quotas.items():
        if name not in quotas.DEFAULTS:
            invalid("quotas", f"there is no resource {name[:60]!r}; there are {', '.join(quotas.DEFAULTS)}.")
        wanted[name] = number(value, f"quotas.{name}", least=-1)
    made = await call.store.run(quotas.set_limits, call.params["asked"], wanted)
    return Reply({"quotas": made})


_QUOTAS: Final = f"{BASE}/mgmt/quotas/{{asked}}"

ROUTES: list[Route] = [
    route("GET", f"{BASE}/limits", show_limits, "reader"),
    route("GET", _QUOTAS, show, "reader"),
    route("PUT", _QUOTAS, update, "admin", body=QuotaBody),
]
