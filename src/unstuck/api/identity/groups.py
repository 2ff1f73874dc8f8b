"""Groups of users."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.errors import bad_request
from unstuck.api.identity.catalog import collection
from unstuck.api.identity.people import (
    DOMAIN,
    check_domain,
    check_name,
    group_json,
    self_or_admin,
    user_json,
)
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.store import groups as store
from unstuck.store.groups import Group


class GroupFields(Body, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    domain_id: str | None = None


class GroupBody(Body, frozen=True):
    group: GroupFields


class GroupQuery(Query, frozen=True):
    name: str | None = None
    domain_id: str | None = None


def _changes(wanted: GroupFields) -> dict[str, Any]:
    check_domain(wanted.domain_id)
    changes: dict[str, Any] = {}
    if not isinstance(wanted.name, msgspec.UnsetType):
        changes["name"] = check_name("group", wanted.name, 255)
    if not isinstance(wanted.description, msgspec.UnsetType):
        changes["description"] = wanted.description or ""
    return changes


async def list_all(call: Call) -> Reply:
    """``GET /v3/groups``; the name is matched exactly."""
    wanted: GroupQuery = call.query
    found: list[Group] = []
    if wanted.domain_id in (None, DOMAIN):
        found = await call.store.run_read(store.list_groups, name=wanted.name)
    return collection(call, "groups", [group_json(call, item) for item in found])


async def create(call: Call) -> Reply:
    """``POST /v3/groups``."""
    changes = _changes(call.body.group)
    if "name" not in changes:
        raise bad_request("group.name is missing.")
    group = Group(id=call.new_id().replace("-", ""), **changes)
    await call.store.run(store.create_group, group)
    return Reply({"group": group_json(call, group)})


async def show(call: Call) -> Reply:
    """``GET /v3/groups/{id}``."""
    return Reply({"group": group_json(call, await call.store.run_read(store.get_group, call.params["id"]))})


async def update(call: Call) -> Reply:
    """``PATCH /v3/groups/{id}``."""
    made = await call.store.run(store.update_group, call.params["id"], _changes(call.body.group))
    return Reply({"group": group_json(call, made)})


async def delete(call: Call) -> Reply:
    """``DELETE /v3/groups/{id}``."""
    await call.store.run(store.delete_group, call.params["id"])
    return Reply()


async def list_members(call: Call) -> Reply:
    """``GET /v3/groups/{id}/users``."""
    found = await call.store.run_read(store.list_members, call.params["id"])
    return collection(call, "users", [user_json(call, item) for item in found])


async def add_member(call: Call) -> Reply:
    """``PUT /v3/groups/{id}/users/{user}``."""
    await call.store.run(store.add_member, call.params["id"], call.params["user"])
    return Reply()


async def check_member(call: Call) -> Reply:
    """``GET`` and ``HEAD /v3/groups/{id}/users/{user}``: 204 or 404."""
    if not await call.store.run_read(store.is_member, call.params["id"], call.params["user"]):
        raise NotFound(f"User {call.params['user']!r} not found in group {call.params['id']!r}.")
    return Reply()


async def remove_member(call: Call) -> Reply:
    """``DELETE /v3/groups/{id}/users/{user}``."""
    await call.store.run(store.remove_member, call.params["id"], call.params["user"])
    return Reply()


async def of_user(call: Call) -> Reply:
    """``GET /v3/users/{id}/groups``."""
    self_or_admin(call, call.params["id"])
    found = await call.store.run_read(store.list_groups, user_id=call.params["id"])
    return collection(call, "groups", [group_json(call, item) for item in found])


_ALL: Final = "/identity/v3/groups"
_ONE: Final = f"{_ALL}/{{id}}"
_MEMBER: Final = f"{_ONE}/users/{{user}}"
ROUTES: list[Route] = [
    route("GET", _ALL, list_all, "admin", query=GroupQuery),
    route("POST", _ALL, create, "admin", body=GroupBody, status=201),
    route("GET", _ONE, show, "admin"),
    route("PATCH", _ONE, update, "admin", body=GroupBody),
    route("DELETE", _ONE, delete, "admin", status=204),
    route("GET", f"{_ONE}/users", list_members, "admin"),
    route("PUT", _MEMBER, add_member, "admin", status=204),
    route("GET", _MEMBER, check_member, "admin", status=204),
    route("DELETE", _MEMBER, remove_member, "admin", status=204),
    route("GET", "/identity/v3/users/{id}/groups", of_user, "authenticated"),
]
