"""What hangs from a server: metadata, tags, addresses, security groups."""

from __future__ import annotations

from typing import Any

import msgspec

from unstuck.api.compute.common import BASE, scope
from unstuck.api.compute.create import check_metadata, check_tag, check_tags
from unstuck.api.compute.views import addresses_view
from unstuck.api.errors import bad_request, not_found
from unstuck.api.network.groups import compute_group
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.store import server_edit as store
from unstuck.store.server_lists import ServerItem, show_server


class MetadataBody(Body, frozen=True, kw_only=True):
    metadata: dict[str, str]


class MetaBody(Body, frozen=True, kw_only=True):
    meta: dict[str, str]


class TagsBody(Body, frozen=True, kw_only=True):
    tags: list[str]


async def _item(call: Call) -> ServerItem:
    return (await call.store.run_read(show_server, call.params["id"], scope(call))).item


async def _metadata(call: Call) -> dict[str, str]:
    return msgspec.json.decode((await _item(call)).meta, type=dict[str, str])


async def list_metadata(call: Call) -> Reply:
    """``GET /servers/{id}/metadata``."""
    return Reply({"metadata": await _metadata(call)})


async def merge_metadata(call: Call) -> Reply:
    """``POST /servers/{id}/metadata``."""
    items = check_metadata(call.body.metadata)
    made = await call.store.run(
        store.change_metadata, call.params["id"], scope(call), lambda old: {**old, **items}
    )
    return Reply({"metadata": made})


async def replace_metadata(call: Call) -> Reply:
    """``PUT /servers/{id}/metadata``."""
    items = check_metadata(call.body.metadata)
    made = await call.store.run(store.change_metadata, call.params["id"], scope(call), lambda _old: items)
    return Reply({"metadata": made})


async def show_meta(call: Call) -> Reply:
    """``GET /servers/{id}/metadata/{key}``."""
    items, key = await _metadata(call), call.params["key"]
    if key not in items:
        raise not_found("Metadata item was not found")
    return Reply({"meta": {key: items[key]}})


async def set_meta(call: Call) -> Reply:
    """``PUT /servers/{id}/metadata/{key}``."""
    items, key = check_metadata(call.body.meta), call.params["key"]
    if list(items) != [key]:
        raise bad_request("Request body and URI mismatch: meta must have just the key of the address.")
    await call.store.run(store.change_metadata, call.params["id"], scope(call), lambda old: {**old, **items})
    return Reply({"meta": items})


async def drop_meta(call: Call) -> Reply:
    """``DELETE /servers/{id}/metadata/{key}``."""
    key = call.params["key"]

    def without(old: dict[str, str]) -> dict[str, str]:
        if key not in old:
            raise not_found("Metadata item was not found")
        return {name: value for name, value in old.items() if name != key}

    await call.store.run(store.change_metadata, call.params["id"], scope(call), without)
    return Reply()


async def list_tags(call: Call) -> Reply:
    """``GET /servers/{id}/tags``."""
    return Reply({"tags": (await _item(call)).tags})


async def replace_tags(call: Call) -> Reply:
    """``PUT /servers/{id}/tags``."""
    tags = check_tags(call.body.tags)
    made = await call.store.run(store.change_tags, call.params["id"], scope(call), lambda _old: tags)
    return Reply({"tags": made})


async def drop_tags(call: Call) -> Reply:
    """``DELETE /servers/{id}/tags``."""
    await call.store.run(store.change_tags, call.params["id"], scope(call), lambda _old: ())
    return Reply()


async def show_tag(call: Call) -> Reply:
    """``GET /servers/{id}/tags/{tag}``: 204 when it has it."""
    if call.params["tag"] not in (await _item(call)).tags:
        raise _no_tag(call)
    return Reply()


async def add_tag(call: Call) -> Reply:
    """``PUT /servers/{id}/tags/{tag}``: 201, or 204 when it had it."""
    tag = check_tag(call.params["tag"])
    had: list[bool] = []

    def with_tag(old: tuple[str, ...]) -> tuple[str, ...]:
        had.append(tag in old)
        return check_tags([*old, tag])

    await call.store.run(store.change_tags, call.params["id"], scope(call), with_tag)
    if had[-1]:
        return Reply(status=204)
    return Reply(headers={"location": call.url(call.path())})


async def drop_tag(call: Call) -> Reply:
    """``DELETE /servers/{id}/tags/{tag}``."""

    def without(old: tuple[str, ...]) -> tuple[str, ...]:
        if call.params["tag"] not in old:
            raise _no_tag(call)
        return tuple(tag for tag in old if tag != call.params["tag"])

    await call.store.run(store.change_tags, call.params["id"], scope(call), without)
    return Reply()


def _no_tag(call: Call) -> Exception:
    return not_found(f"Server {call.params['id']} has no tag '{call.params['tag'][:60]}'")


async def _ips(call: Call) -> dict[str, list[dict[str, Any]]]:
    shown = addresses_view((await _item(call)).addresses)
    return {
        name: [{"version": item["version"], "addr": item["addr"]} for item in items]
        for name, items in shown.items()
    }


async def list_ips(call: Call) -> Reply:
    """``GET /servers/{id}/ips``."""
    return Reply({"addresses": await _ips(call)})


async def show_ips(call: Call) -> Reply:
    """``GET /servers/{id}/ips/{network}``."""
    found, name = await _ips(call), call.params["network"]
    if name not in found:
        raise not_found("Network name not found")
    return Reply({name: found[name]})


async def list_groups(call: Call) -> Reply:
    """``GET /servers/{id}/os-security-groups``."""
    item = await _item(call)
    return Reply({"security_groups": [compute_group(item.project_id)] if item.addresses else []})


async def show_password(call: Call) -> Reply:
    """``GET /servers/{id}/os-server-password``: guests do not hand one over here."""
    await _item(call)
    return Reply({"password": ""})


async def drop_password(call: Call) -> Reply:
    """``DELETE /servers/{id}/os-server-password``: there is none to forget."""
    await _item(call)
    return Reply()


_ONE = f"{BASE}/servers/{{id}}"
_META = f"{_ONE}/metadata"
_TAGS = f"{_ONE}/tags"

ROUTES: list[Route] = [
    route("GET", _META, list_metadata, "reader"),
    route("POST", _META, merge_metadata, "member", body=MetadataBody),
    route("PUT", _META, replace_metadata, "member", body=MetadataBody),
    route("GET", f"{_META}/{{key}}", show_meta, "reader"),
    route("PUT", f"{_META}/{{key}}", set_meta, "member", body=MetaBody),
    route("DELETE", f"{_META}/{{key}}", drop_meta, "member", status=204),
    route("GET", _TAGS, list_tags, "reader", min_version=(2, 26)),
    route("PUT", _TAGS, replace_tags, "member", body=TagsBody, min_version=(2, 26)),
    route("DELETE", _TAGS, drop_tags, "member", status=204, min_version=(2, 26)),
    route("GET", f"{_TAGS}/{{tag}}", show_tag, "reader", status=204, min_version=(2, 26)),
    route("PUT", f"{_TAGS}/{{tag}}", add_tag, "member", status=201, min_version=(2, 26)),
    route("DELETE", f"{_TAGS}/{{tag}}", drop_tag, "member", status=204, min_version=(2, 26)),
    route("GET", f"{_ONE}/ips", list_ips, "reader"),
    route("GET", f"{_ONE}/ips/{{network}}", show_ips, "reader"),
    route("GET", f"{_ONE}/os-security-groups", list_groups, "reader"),
    route("GET", f"{_ONE}/os-server-password", show_password, "reader"),
    route("DELETE", f"{_ONE}/os-server-password", drop_password, "member", status=204),
]
