"""Instance actions: what was asked of a server, from the operations that the store keeps."""

from __future__ import annotations

from typing import Any

from unstuck.api.compute.common import BASE, as_wall, page_limit, scope
from unstuck.api.compute.views import host_id_of
from unstuck.api.errors import bad_request
from unstuck.api.pages import next_url
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.time import iso_micros
from unstuck.store.operations import OperationRow, get_operation, list_operations

_RESULTS = {"done": "Success", "failed": "Error", "superseded": "Error"}


def _removed_too(call: Call) -> bool:
    return call.version >= (2, 21)


def _view(call: Call, row: OperationRow) -> dict[str, Any]:
    failed = row.state in ("failed", "superseded")
    shown = {
        "action": row.kind,
        "instance_uuid": row.resource_id,
        "message": (row.reason or "Error") if failed else None,
        "project_id": row.project_id,
        "request_id": row.request_id,
        "start_time": iso_micros(row.started_wall),
        "user_id": row.user_id,
    }
    if call.version >= (2, 58):
        shown["updated_at"] = iso_micros(row.finished_wall or row.started_wall)
    return shown


def _event(call: Call, row: OperationRow) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "event": f"compute_{row.kind}",
        "start_time": iso_micros(row.started_wall),
        "finish_time": None if row.finished_wall is None else iso_micros(row.finished_wall),
        "result": _RESULTS.get(row.state),
        "traceback": None,
    }
    if call.version >= (2, 62):
        shown["hostId"] = host_id_of(row.project_id, row.host)
        if call.is_admin:
            shown["host"] = row.host
    if call.version >= (2, 84):
        shown["details"] = row.reason or None
    return shown


async def list_all(call: Call) -> Reply:
    """``GET /servers/{id}/os-instance-actions``: the newest first."""
    params = call.query_params
    paged = call.version >= (2, 58)
    since = as_wall(params.get("changes-since"), "changes-since") if paged else None
    before = as_wall(params.get("changes-before"), "changes-before") if call.version >= (2, 66) else None
    if since is not None and before is not None and since > before:
        raise bad_request("The value of changes-since must be less than or equal to changes-before.")
    found = await call.store.run_read(
        list_operations,
        call.params["id"],
        scope(call),
        removed=_removed_too(call),
        limit=page_limit(call) if paged else 1000,
        marker=params.get("marker") if paged else None,
        since=since,
        before=before,
    )
    body: dict[str, Any] = {"instanceActions": [_view(call, row) for row in found.rows]}
    if found.more and paged:
        target = next_url(call.url(call.path()), params.multi_items(), found.rows[-1].request_id)
        body["links"] = [{"rel": "next", "href": target}]
    return Reply(body)


async def show(call: Call) -> Reply:
    """``GET /servers/{id}/os-instance-actions/{request_id}``."""
    found = await call.store.run_read(
        get_operation, call.params["id"], scope(call), call.params["request"], removed=_removed_too(call)
    )
    row = found.rows[0]
    shown = _view(call, row)
    if call.is_admin or call.version >= (2, 51):
        shown["events"] = [_event(call, row)]
    return Reply({"instanceAction": shown})


_ALL = f"{BASE}/servers/{{id}}/os-instance-actions"

ROUTES: list[Route] = [
    route("GET", _ALL, list_all, "reader"),
    route("GET", f"{_ALL}/{{request}}", show, "reader"),
]
