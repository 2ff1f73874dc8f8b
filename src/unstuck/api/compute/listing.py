"""``GET /servers`` and ``/servers/detail``: filters, sorting, pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from unstuck.api.compute.common import as_bool, as_int, as_wall, page_limit
from unstuck.api.compute.views import brief_view, detail_view
from unstuck.api.errors import bad_request, forbidden
from unstuck.api.microversions import Version
from unstuck.api.pages import next_url
from unstuck.api.routes import Call, Reply
from unstuck.core.time import Now
from unstuck.store.server_search import EQUAL, SORTABLE, Found, ServerFilter, search_servers

STATES: Final[dict[str, frozenset[str]]] = {
    "active": frozenset({"ACTIVE"}), "build": frozenset({"BUILD"}), "deleted": frozenset({"DELETED"}),
    "error": frozenset({"ERROR"}), "hard_reboot": frozenset({"HARD_REBOOT"}),
    "paused": frozenset({"PAUSED"}), "reboot": frozenset({"REBOOT"}), "shutoff": frozenset({"SHUTOFF"}),
    "migrating": frozenset(), "password": frozenset(), "rebuild": frozenset({"REBUILD"}),
    "rescue": frozenset(), "resize": frozenset({"RESIZE"}), "revert_resize": frozenset({"REVERT_RESIZE"}),
    "shelved": frozenset({"SHELVED"}), "shelved_offloaded": frozenset({"SHELVED_OFFLOADED"}),
    "soft_deleted": frozenset(),
    "suspended": frozenset({"SUSPENDED"}), "unknown": frozenset(),
    "verify_resize": frozenset({"VERIFY_RESIZE"}),
}  # fmt: skip
"""Every status of the compute API, and which of ours it means."""

_PAGING = frozenset({"limit", "marker", "sort_key", "sort_dir", "all_tenants"})
_USER: Final[dict[str, Version]] = {
    "reservation_id": (2, 1), "name": (2, 1), "status": (2, 1), "image": (2, 1), "flavor": (2, 1),
    "ip": (2, 1), "ip6": (2, 5), "changes-since": (2, 1), "changes-before": (2, 66), "tags": (2, 26),
    "tags-any": (2, 26), "not-tags": (2, 26), "not-tags-any": (2, 26), "locked": (2, 73),
    "availability_zone": (2, 83), "config_drive": (2, 83), "key_name": (2, 83), "power_state": (2, 83),
    "task_state": (2, 83), "vm_state": (2, 83), "user_id": (2, 83), "hostname": (2, 90),
}  # fmt: skip
"""What anybody may filter by, and since when; administrators may always filter by everything."""
_KNOWN = {
    "user_id", "project_id", "tenant_id", "launch_index", "image_ref", "image", "kernel_id",
    "ramdisk_id", "hostname", "key_name", "power_state", "vm_state", "task_state", "host", "node",
    "flavor", "reservation_id", "launched_at", "terminated_at", "availability_zone", "name",
    "display_name", "description", "display_description", "locked_by", "uuid", "root_device_name",
    "config_drive", "access_ip_v4", "access_ip_v6", "auto_disk_config", "progress", "instance_type_id",
    "status", "changes-since", "changes-before", "ip", "ip6", "created_at", "updated_at", "tags",
    "tags-any", "not-tags", "not-tags-any", "all_tenants", "soft_deleted", "deleted", "limit", "marker",
    "sort_key", "sort_dir", "locked",
}  # fmt: skip
_RENAMED = {"display_name": "name", "image_ref": "image", "node": "host", "tenant_id": "project_id",
            "display_description": "description", "instance_type_id": "flavor"}  # fmt: skip


async def list_brief(call: Call) -> Reply:
    """``GET /servers``."""
    found = await _find(call)
    return _reply(call, found, [brief_view(call, item) for item in found.items])


async def list_detail(call: Call) -> Reply:
    """``GET /servers/detail``."""
    found = await _find(call)
    # Each is written out before the next is built: a thousand views at once cost more in memory that the
    # system hands out and takes back than in their making.
    encode = msgspec.json.Encoder().encode
    views = await asyncio.to_thread(
        lambda: [msgspec.Raw(encode(detail_view(call, item, found.now))) for item in found.items]
    )
    return _reply(call, found, views)


def _reply(call: Call, found: Found, views: Sequence[dict[str, Any] | msgspec.Raw]) -> Reply:
    body: dict[str, Any] = {"servers": views}
    if found.more:
        target = next_url(call.url(call.path()), call.query_params.multi_items(), found.items[-1].id)
        body["servers_links"] = [{"rel": "next", "href": target}]
    return Reply(body)


async def _find(call: Call) -> Found:
    wanted = build_filter(call)
    if wanted is None:
        return Found((), False, Now(0.0, 0.0))
    return await call.store.run_read(search_servers, wanted)


def _given(call: Call) -> dict[str, str]:
    """The filters that count for this caller in this microversion."""
    params = call.query_params
    if call.version >= (2, 75):
        for name in params:
            if name not in _KNOWN:
                raise bad_request(
                    "Invalid input for query parameters: Additional properties are not allowed "
                    f"({name[:60]!r} was unexpected)"
                )
    given = {}
    for name in params:
        allowed = call.is_admin or _USER.get(name, (9, 0)) <= call.version
        if name not in _PAGING and (allowed or name == "deleted"):
            given[_RENAMED.get(name, name)] = params[name]
    for name in ("changes-since", "changes-before"):
        if name in given and _USER[name] > call.version:
            del given[name]
    if not call.is_admin:
        given.pop("deleted", None)
    return given


def build_filter(call: Call) -> ServerFilter | None:
    """What the query asks for; None where nothing can match."""
    given = _given(call)
    statuses = _statuses(call, given)
    if statuses is not None and not statuses:
        return None
    since = as_wall(given.get("changes-since"), "changes-since")
    before = as_wall(given.get("changes-before"), "changes-before")
    if since is not None and before is not None and since > before:
        raise bad_request("The value of changes-since must be less than or equal to changes-before.")
    if "ip6" in given:
        return None  # no port has such an address
    return ServerFilter(
        project_id=_project(call, given),
        removed=_removed(given, statuses, changes=since is not None or before is not None),
        equal=_equal(given),
        locked=as_bool(given["locked"], "locked") if "locked" in given else None,
        name=given.get("name") or None,
        changed_since=since,
        changed_before=before,
        statuses=statuses,
        vm_states=_words(given.get("vm_state")),
        task_state=given.get("task_state"),
        power_state=_power(given.get("power_state")),
        zone=given.get("availability_zone"),
        address=given.get("ip"),
        hostname=given.get("hostname"),
        tags=_words(given.get("tags")),
        tags_any=_words(given.get("tags-any")),
        not_tags=_words(given.get("not-tags")),
        not_tags_any=_words(given.get("not-tags-any")),
        sort=_sort(call),
        limit=page_limit(call),
        marker=call.query_params.get("marker"),
    )


def _statuses(call: Call, given: dict[str, str]) -> frozenset[str] | None:
    if "status" not in given:
        return None
    asked = [text.lower() for text in call.query_params.getlist("status")]
    unknown = [text for text in asked if text not in STATES]
    if len(unknown) == len(asked) and call.version >= (2, 38):
        raise bad_request(f"Invalid status value: {unknown[0][:60]!r}")
    found = frozenset(state for text in asked for state in STATES.get(text, ()))
    if "DELETED" in found and not call.is_admin:
        raise forbidden("Only administrators may list deleted instances")
    return found


def _project(call: Call, given: dict[str, str]) -> str | None:
    """The project whose servers are listed: the caller's own, unless ``all_tenants`` asks for more."""
    text = call.query_params.get("all_tenants")
    everything = text is not None and (text == "" or as_bool(text, "all_tenants"))
    if not everything:
        return call.project_id
    if not call.is_admin:
        raise forbidden("Policy doesn't allow os_compute_api:servers:index:get_all_tenants to be performed.")
    return given.get("project_id")


def _removed(given: dict[str, str], statuses: frozenset[str] | None, *, changes: bool) -> bool | None:
    if statuses is not None and "DELETED" in statuses:
        return None if len(statuses) > 1 else True
    if "deleted" in given:
        return as_bool(given["deleted"], "deleted")
    return None if changes else False


def _equal(given: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {key: given[key] for key in EQUAL if key in given}
    if "config_drive" in found:
        found["config_drive"] = as_bool(found["config_drive"], "config_drive")
    if "launch_index" in found:
        found["launch_index"] = as_int(found["launch_index"], "launch_index", least=0)
    for key in ("image", "flavor"):
        if key in found:  # some clients send an address
            found[key] = found[key].rstrip("/").rpartition("/")[2]
    return found


def _words(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(text.split(","))


def _power(text: str | None) -> int | None:
    return None if text is None else as_int(text, "power_state", least=0)


def _sort(call: Call) -> tuple[tuple[str, bool], ...]:
    params = call.query_params
    keys, ways = params.getlist("sort_key"), params.getlist("sort_dir")
    if not keys:
        keys = ["created_at"]
    if len(ways) > len(keys):
        raise bad_request("Sort direction size exceeds sort key size")
    found: list[tuple[str, bool]] = []
    for index, key in enumerate(keys):
        way = ways[index] if index < len(ways) else (ways[-1] if ways else "desc")
        if way not in ("asc", "desc"):
            raise bad_request(f"Invalid input for query parameter sort_dir: {way[:60]!r} is not asc or desc.")
        if key not in SORTABLE:
            raise bad_request(f"Invalid input for query parameter sort_key: cannot sort by {key[:60]!r}.")
        if key not in [known for known, _ in found]:
            found.append((key, way == "desc"))
    return tuple(found)
