"""Shared images: whom they are shared with, and whether those have accepted."""

from __future__ import annotations

from typing import Any, Final, Literal

from unstuck.api.context import Token
from unstuck.api.errors import bad_request
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.image import Member
from unstuck.core.time import iso_seconds
from unstuck.store import image_members as store

SCHEMA: Final = "/v2/schemas/member"


class NewMember(Body, frozen=True):
    member: str


class Answer(Body, frozen=True):
    """The SDK names the member again, beside the address."""

    status: Literal["pending", "accepted", "rejected"]
    member: str | None = None


def _who(token: Token) -> dict[str, Any]:
    return {"project_id": token.project_id, "admin": token.is_admin}


def _json(item: Member) -> dict[str, Any]:
    return {
        "member_id": item.member_id, "image_id": item.image_id, "status": item.status,
        "created_at": iso_seconds(item.created), "updated_at": iso_seconds(item.updated), "schema": SCHEMA,
    }  # fmt: skip


async def list_all(call: Call) -> Reply:
    """``GET /v2/images/{id}/members``."""
    found = await call.store.run_read(store.list_members, call.params["id"], **_who(call.token))
    return Reply({"members": [_json(item) for item in found], "schema": "/v2/schemas/members"})


async def show(call: Call) -> Reply:
    """``GET /v2/images/{id}/members/{member}``."""
    key, member = call.params["id"], call.params["member"]
    return Reply(_json(await call.store.run_read(store.show_member, key, member, **_who(call.token))))


async def add(call: Call) -> Reply:
    """``POST /v2/images/{id}/members``."""
    member: str = call.body.member
    if not member.strip() or len(member) > 64:
        raise bad_request("member: it must be a project's id of 1 to 64 characters.")
    return Reply(_json(await call.store.run(store.add_member, call.params["id"], member, **_who(call.token))))


async def update(call: Call) -> Reply:
    """``PUT /v2/images/{id}/members/{member}``: accept or reject."""
    key, member = call.params["id"], call.params["member"]
    if call.body.member not in (None, member):
        raise bad_request("member: it is another one than in the address.")
    made = await call.store.run(store.answer, key, member, call.body.status, **_who(call.token))
    return Reply(_json(made))


async def remove(call: Call) -> Reply:
    """``DELETE /v2/images/{id}/members/{member}``."""
    key, member = call.params["id"], call.params["member"]
    await call.store.run(store.remove_member, key, member, **_who(call.token))
    return Reply()


_ALL: Final = "/image/v2/images/{id}/members"
_ONE: Final = f"{_ALL}/{{member}}"
ROUTES: list[Route] = [
    route("GET", _ALL, list_all, "reader"),
    route("POST", _ALL, add, "member", body=NewMember),
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, update, "member", body=Answer),
    route("DELETE", _ONE, remove, "member", status=204),
]
