"""Roles, and who has which role in which project: users and groups."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.errors import bad_request, forbidden
from unstuck.api.identity.catalog import collection
from unstuck.api.identity.people import DOMAIN, check_name, role_json
from unstuck.api.identity.projects import flag
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.store import identity
from unstuck.store import roles as store
from unstuck.store.engine import Tx
from unstuck.store.identity import Role
from unstuck.store.roles import Assignment


class RoleFields(Body, frozen=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    domain_id: str | None = None
    options: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class RoleBody(Body, frozen=True):
    role: RoleFields


class AssignmentQuery(Query, frozen=True):
    user_id: str | None = msgspec.field(name="user.id", default=None)
    project_id: str | None = msgspec.field(name="scope.project.id", default=None)
    role_id: str | None = msgspec.field(name="role.id", default=None)
    group_id: str | None = msgspec.field(name="group.id", default=None)
    scope_domain: str | None = msgspec.field(name="scope.domain.id", default=None)
    scope_system: str | None = msgspec.field(name="scope.system", default=None)
    include_names: str | None = None
    effective: str | None = None


def _changes(wanted: RoleFields) -> dict[str, Any]:
    if wanted.domain_id is not None:
        raise forbidden("role.domain_id: roles of single domains are not there; leave it out.")
    if wanted.options not in (msgspec.UNSET, {}):
        raise bad_request("role.options are not supported.")
    changes: dict[str, Any] = {}
    if not isinstance(wanted.name, msgspec.UnsetType):
        changes["name"] = check_name("role", wanted.name, 255)
    if not isinstance(wanted.description, msgspec.UnsetType):
        changes["description"] = wanted.description
    return changes


async def list_roles(call: Call) -> Reply:
    """``GET /v3/roles``."""
    found = await call.store.run_read(store.list_roles, name=call.query_params.get("name"))
    if call.query_params.get("domain_id") is not None:
        found = []
    return collection(call, "roles", [role_json(call, item) for item in found])


async def create_role(call: Call) -> Reply:
    """``POST /v3/roles``."""
    changes = _changes(call.body.role)
    if "name" not in changes:
        raise bad_request("role.name is missing.")
    role = Role(id=call.new_id().replace("-", ""), **changes)
    await call.store.run(store.create_role, role)
    return Reply({"role": role_json(call, role)})


async def show_role(call: Call) -> Reply:
    """``GET /v3/roles/{id}``."""
    return Reply({"role": role_json(call, await call.store.run_read(store.get_role, call.params["id"]))})


async def update_role(call: Call) -> Reply:
    """``PATCH /v3/roles/{id}``."""
    made = await call.store.run(store.update_role, call.params["id"], _changes(call.body.role))
    return Reply({"role": role_json(call, made)})


async def delete_role(call: Call) -> Reply:
    """``DELETE /v3/roles/{id}``."""
    await call.store.run(store.delete_role, call.params["id"])
    return Reply()


def _in_project(tx: Tx, user_id: str, project_id: str) -> list[Role]:
    identity.get_user(tx, user_id)
    identity.get_project(tx, project_id)
    return store.roles_in(tx, user_id, project_id)


async def user_roles(call: Call) -> Reply:
    """``GET /v3/projects/{project}/users/{user}/roles``."""
    found = await call.store.run_read(_in_project, call.params["user"], call.params["project"])
    return collection(call, "roles", [role_json(call, item) for item in found])


async def group_roles(call: Call) -> Reply:
    """``GET /v3/projects/{project}/groups/{group}/roles``."""
    found = await call.store.run_read(store.roles_of_group, call.params["group"], call.params["project"])
    return collection(call, "roles", [role_json(call, item) for item in found])


def _ids(call: Call, who: str) -> tuple[str, str, str]:
    return call.params[who], call.params["project"], call.params["role"]


async def grant(call: Call) -> Reply:
    """``PUT …/users/{user}/roles/{role}``."""
    await call.store.run(store.grant, *_ids(call, "user"))
    return Reply()


async def revoke(call: Call) -> Reply:
    """``DELETE …/users/{user}/roles/{role}``."""
    await call.store.run(store.revoke, *_ids(call, "user"))
    return Reply()


async def check_grant(call: Call) -> Reply:
    """``GET`` and ``HEAD …/users/{user}/roles/{role}``: 204 or 404."""
    if not await call.store.run_read(store.has_role, *_ids(call, "user")):
        raise NotFound("Could not find the role assignment.")
    return Reply()


async def grant_group(call: Call) -> Reply:
    """``PUT …/groups/{group}/roles/{role}``."""
    await call.store.run(store.grant_group, *_ids(call, "group"))
    return Reply()


async def revoke_group(call: Call) -> Reply:
    """``DELETE …/groups/{group}/roles/{role}``."""
    await call.store.run(store.revoke_group, *_ids(call, "group"))
    return Reply()


async def check_group_grant(call: Call) -> Reply:
    """``GET`` and ``HEAD …/groups/{group}/roles/{role}``: 204 or 404."""
    if not await call.store.run_read(store.group_has_role, *_ids(call, "group")):
        raise NotFound("Could not find the role assignment.")
    return Reply()


def _named(thing: Any, *, names: bool, domain: bool = True) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": thing.id}
    if names:
        shown["name"] = thing.name
        if domain:
            shown["domain"] = {"id": DOMAIN, "name": "Default"}
    return shown


def _json(call: Call, item: Assignment, *, names: bool) -> dict[str, Any]:
    kind, who = ("user", item.user) if item.user is not None else ("group", item.group)
    assert who is not None
    path = f"/identity/v3/projects/{item.project.id}/{kind}s/{who.id}/roles/{item.role.id}"
    return {
        "role": _named(item.role, names=names, domain=False),
        kind: _named(who, names=names),
        "scope": {"project": _named(item.project, names=names)},
        "links": {"assignment": call.url(path)},
    }


async def list_assignments(call: Call) -> Reply:
    """``GET /v3/role_assignments``."""
    wanted: AssignmentQuery = call.query
    if wanted.user_id is not None and wanted.group_id is not None:
        raise bad_request("Specify a user or group, not both")
    effective = flag("effective", wanted.effective) or False
    if effective and wanted.group_id is not None:
        raise bad_request("Combining effective and group filter will always result in an empty list.")
    found: list[Assignment] = []
    if wanted.scope_domain is None and wanted.scope_system is None:
        found = await call.store.run_read(
            store.list_assignments, user_id=wanted.user_id, group_id=wanted.group_id,
            project_id=wanted.project_id, role_id=wanted.role_id, effective=effective,
        )  # fmt: skip
    names = flag("include_names", wanted.include_names) or False
    return collection(call, "role_assignments", [_json(call, item, names=names) for item in found])


_V3: Final = "/identity/v3"
_USERS: Final = f"{_V3}/projects/{{project}}/users/{{user}}/roles"
_GROUPS: Final = f"{_V3}/projects/{{project}}/groups/{{group}}/roles"
ROUTES: list[Route] = [
    route("GET", f"{_V3}/roles", list_roles, "admin"),
    route("POST", f"{_V3}/roles", create_role, "admin", body=RoleBody, status=201),
    route("GET", f"{_V3}/roles/{{id}}", show_role, "admin"),
    route("PATCH", f"{_V3}/roles/{{id}}", update_role, "admin", body=RoleBody),
    route("DELETE", f"{_V3}/roles/{{id}}", delete_role, "admin", status=204),
    route("GET", _USERS, user_roles, "admin"),
    route("PUT", f"{_USERS}/{{role}}", grant, "admin", status=204),
    route("GET", f"{_USERS}/{{role}}", check_grant, "admin", status=204),
    route("DELETE", f"{_USERS}/{{role}}", revoke, "admin", status=204),
    route("GET", _GROUPS, group_roles, "admin"),
    route("PUT", f"{_GROUPS}/{{role}}", grant_group, "admin", status=204),
    route("GET", f"{_GROUPS}/{{role}}", check_group_grant, "admin", status=204),
    route("DELETE", f"{_GROUPS}/{{role}}", revoke_group, "admin", status=204),
    route("GET", f"{_V3}/role_assignments", list_assignments, "admin", query=AssignmentQuery),
]
