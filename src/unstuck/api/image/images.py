"""Images: create, show, change, delete, tags."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from unstuck.api.context import Token
from unstuck.api.errors import ApiError, bad_request, not_found
from unstuck.api.image.data import download, upload
from unstuck.api.image.forms import Operation, image_json, image_schema, member_schema, new_image, patched
from unstuck.api.image.listing import Filters, list_images
from unstuck.api.inputs import checked, read_body
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.blobs import images as files
from unstuck.core.image import Image
from unstuck.store import captures
from unstuck.store import images as rows

_OLD_PATCH: Final = "application/openstack-images-v2.0-json-patch"
_PATCH_TYPES: Final = frozenset({"application/openstack-images-v2.1-json-patch", _OLD_PATCH})
_OPERATIONS: Final = msgspec.json.Decoder(list[Operation])


def _who(token: Token) -> dict[str, Any]:
    """How store functions are told who asks."""
    return {"project_id": token.project_id, "admin": token.is_admin}


async def create_image(call: Call) -> Reply:
    """``POST /v2/images``: unknown keys are kept as properties."""
    image = new_image(call.body, call.token, call.project_id, call.new_id())
    made = await call.store.run(rows.create_image, image, most=call.app.settings.images_per_project)
    headers = {"location": call.url(f"/image/v2/images/{made.id}")}
    return Reply(image_json(made, 0.0), headers=headers)


async def show_image(call: Call) -> Reply:
    """``GET /v2/images/{id}``."""
    found = await call.store.run_read(rows.with_lease, call.params["id"], **_who(call.token))
    return Reply(image_json(*found))


def _old_operations(data: bytes) -> list[Operation]:
    """The 2.0 form of a patch: ``{"replace": "/name", "value": "x"}``."""
    found = []
    for step in msgspec.json.decode(data, type=list[dict[str, Any]]):
        names = [name for name in step if name in ("add", "replace", "remove")]
        if len(names) != 1 or not isinstance(step[names[0]], str) or set(step) - {names[0], "value"}:
            raise bad_request(
                "Each step of a patch needs exactly one of add, replace and remove with a path."
            )
        value = step.get("value", msgspec.UNSET)
        found.append(Operation(op=names[0], path=step[names[0]], value=value))
    return found


async def patch_image(call: Call) -> Reply:
    """``PATCH /v2/images/{id}`` with a JSON patch."""
    kind = call.http.headers.get("content-type", "").partition(";")[0].strip()
    if kind not in _PATCH_TYPES:
        raise ApiError(415, f"Content-Type: {kind[:80]!r} is not {min(_PATCH_TYPES)} or {max(_PATCH_TYPES)}.")
    data = await read_body(call.http, call.app.settings)
    if not data:
        raise bad_request("A JSON body is required.")
    decode = _old_operations if kind == _OLD_PATCH else _OPERATIONS.decode
    operations: list[Operation] = checked(lambda: decode(data), data)
    token = call.token
    changed = await call.store.run(
        rows.update_image, call.params["id"], lambda image: patched(image, operations, token), **_who(token)
    )
    return Reply(image_json(*changed))


async def delete_image(call: Call) -> Reply:
    """``DELETE /v2/images/{id}``: in every state, unless it is protected."""
    name, host_id = await call.store.run(captures.delete_image, call.params["id"], **_who(call.token))
    if host_id is not None:
        call.app.notifier.wake(f"host:{host_id}")
    if name is not None:  # if this is cut off, the sweep removes the file
        await asyncio.to_thread(files.remove, call.app.settings.state_dir, name)
    return Reply()


def _tagged(image: Image, tag: str, token: Token) -> Image:
    operation = Operation(op="replace", path="/tags", value=sorted({*image.tags, tag}))
    return patched(image, [operation], token)


async def add_tag(call: Call) -> Reply:
    """``PUT /v2/images/{id}/tags/{tag}``."""
    token, tag = call.token, call.params["tag"]
    await call.store.run(
        rows.update_image, call.params["id"], lambda image: _tagged(image, tag, token), **_who(token)
    )
    return Reply()


async def remove_tag(call: Call) -> Reply:
    """``DELETE /v2/images/{id}/tags/{tag}``."""
    tag = call.params["tag"]

    def change(image: Image) -> Image:
        if tag not in image.tags:
            raise not_found(f"The image has no tag {tag[:255]!r}.")
        return msgspec.structs.replace(image, tags=tuple(name for name in image.tags if name != tag))

    await call.store.run(rows.update_image, call.params["id"], change, **_who(call.token))
    return Reply()


async def deactivate(call: Call) -> Reply:
    """``POST /v2/images/{id}/actions/deactivate``: nobody may read it or boot from it any more."""
    await call.store.run(rows.set_active, call.params["id"], active=False, **_who(call.token))
    return Reply()


async def reactivate(call: Call) -> Reply:
    """``POST /v2/images/{id}/actions/reactivate``."""
    await call.store.run(rows.set_active, call.params["id"], active=True, **_who(call.token))
    return Reply()


async def show_image_schema(_call: Call) -> Reply:
    """``GET /v2/schemas/image``."""
    return Reply(image_schema())


async def show_images_schema(_call: Call) -> Reply:
    """``GET /v2/schemas/images``."""
    links = [{"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"}]
    properties = {"images": {"type": "array", "items": image_schema()}, "first": {"type": "string"}}
    return Reply({"name": "images", "properties": properties, "links": links})


async def show_member_schema(_call: Call) -> Reply:
    """``GET /v2/schemas/member``."""
    return Reply(member_schema())


async def show_members_schema(_call: Call) -> Reply:
    """``GET /v2/schemas/members``."""
    members = {"type": "array", "items": member_schema()}
    return Reply({"name": "members", "properties": {"members": members, "schema": {"type": "string"}}})


async def import_info(_call: Call) -> Reply:
    """``GET /v2/info/import``: uploads only."""
    methods = {"description": "Import methods available.", "type": "array", "value": []}
    return Reply({"import-methods": methods})


_IMAGES: Final = "/image/v2/images"
_ONE: Final = f"{_IMAGES}/{{id}}"
ROUTES: list[Route] = [
    route("POST", _IMAGES, create_image, "member", body=dict[str, Any], status=201),
    route("GET", _IMAGES, list_images, "reader", query=Filters),
    route("GET", _ONE, show_image, "reader"),
    route("PATCH", _ONE, patch_image, "member", raw=True),
    route("DELETE", _ONE, delete_image, "member", status=204),
    route("PUT", f"{_ONE}/file", upload, "member", raw=True, status=204),
    route("GET", f"{_ONE}/file", download, "reader"),
    route("PUT", f"{_ONE}/tags/{{tag}}", add_tag, "member", status=204),
    route("DELETE", f"{_ONE}/tags/{{tag}}", remove_tag, "member", status=204),
    route("POST", f"{_ONE}/actions/deactivate", deactivate, "member", status=204),
    route("POST", f"{_ONE}/actions/reactivate", reactivate, "member", status=204),
    route("GET", "/image/v2/schemas/image", show_image_schema, "authenticated"),
    route("GET", "/image/v2/schemas/images", show_images_schema, "authenticated"),
    route("GET", "/image/v2/schemas/member", show_member_schema, "authenticated"),
    route("GET", "/image/v2/schemas/members", show_members_schema, "authenticated"),
    route("GET", "/image/v2/info/import", import_info, "authenticated"),
]
