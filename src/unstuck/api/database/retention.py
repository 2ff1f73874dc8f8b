"""``/instances/{id}/retention``, which is ours: how long automatic backups are kept (docs/schedules.md)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from unstuck.api.database.common import BASE, object_id, scope, truth
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.backup.retention import Policy
from unstuck.core.time import iso_seconds
from unstuck.store import retention as store
from unstuck.store.retention import Kept


class ChangeBody(Body, frozen=True, kw_only=True):
    """The whole policy: what is left out has no rule. null: the default again."""

    retention: Policy | None


class Asked(Query, frozen=True, kw_only=True):
    """``dry_run``: say what would go, and change nothing."""

    dry_run: str | UnsetType = UNSET


def view(kept: Kept) -> dict[str, Any]:
    row = kept.row
    return {
        "policy": msgspec.to_builtins(kept.policy),
        "default": row.policy is None,
        "looked": _time(row.looked_wall),
        "next_seconds": None if row.next_look is None else round(max(row.next_look - kept.now.lease, 0.0), 3),
        "trouble": row.trouble,
        "backups": [
            {
                "id": backup.id, "name": backup.name, "created": _time(backup.created_wall),
                "made_by": backup.made_by, "keep": said.keep, "why": said.why,
            }
            for backup, said in zip(kept.rows, kept.decisions, strict=True)
        ],
        "removed": [
            {
                "id": gone.id, "name": gone.name, "created": _time(gone.created), "removed": _time(gone.at),
                "why": gone.why,
            }
            for gone in row.removed
        ],
    }  # fmt: skip


def _time(wall: float | None) -> str | None:
    return None if wall is None else iso_seconds(wall)[:-1]


async def show(call: Call) -> Reply:
    """``GET``: the policy, what it means for each backup now, and what it has removed."""
    key = object_id(call.params["id"], "Instance")
    return Reply({"retention": view(await call.store.run_read(store.preview, key, scope(call)))})


async def change(call: Call) -> Reply:
    """``PUT``: another policy (null: the default), or with ``dry_run`` only what that would mean."""
    key, own = object_id(call.params["id"], "Instance"), scope(call)
    policy: Policy | None = call.body.retention
    query: Asked = call.query
    if query.dry_run is not UNSET and truth(query.dry_run, "dry_run"):
        return Reply({"retention": view(await call.store.run_read(store.preview, key, own, policy))})
    await call.store.run(store.set_policy, key, own, policy)
    return await show(call)


_ONE: Final = f"{BASE}/instances/{{id}}/retention"

ROUTES: list[Route] = [
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, change, "member", body=ChangeBody, query=Asked),
]
