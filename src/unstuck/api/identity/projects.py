"""Projects and domains."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.errors import bad_request, forbidden, not_found
from unstuck.api.identity.catalog import collection
from unstuck.api.identity.people import (
    DOMAIN,
    check_domain,
    check_name,
    domain_json,
    extras,
    project_json,
    self_or_admin,
)
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.store import identity
from unstuck.store.engine import Tx
from unstuck.store.identity import Project

_READ_ONLY: Final = {"id", "links", "domain_id", "parent_id", "is_domain"}


class ProjectFields(msgspec.Struct, frozen=True, kw_only=True):
    """What we know of a project's body; other keys are kept as they are."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    domain_id: str | None = None
    parent_id: str | None = None
    is_domain: bool = False
    tags: list[str] | msgspec.UnsetType = msgspec.UNSET
    options: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ProjectBody(Body, frozen=True):
    project: dict[str, Any]


class ProjectQuery(Query, frozen=True):
    name: str | None = None
    enabled: str | None = None
    domain_id: str | None = None
    parent_id: str | None = None
    is_domain: str | None = None


def flag(name: str, text: str | None) -> bool | None:
    """A true/false query parameter; present without a value means true."""
    if text is None:
        return None
    if text.lower() in ("", "1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise bad_request(f"Invalid input for query parameter {name}: {text[:40]!r} is neither true nor false.")


def fields(given: dict[str, Any], kind: type[Any], key: str) -> Any:
    """The known part of a body, checked."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise bad_request(f"Invalid input in {key}: {error}") from None


def _changed(project: Project, given: dict[str, Any]) -> Project:
    known: ProjectFields = fields(given, ProjectFields, "project")
    check_domain(known.domain_id)
    if known.parent_id not in (None, DOMAIN):
        raise not_found(f"Could not find parent project: {known.parent_id}. Projects have no projects below.")
    if known.is_domain:
        raise forbidden("Projects that are domains are not supported.")
    changes: dict[str, Any] = {}
    if known.name is not msgspec.UNSET:
        changes["name"] = check_name("project", known.name, 64)
    if known.description is not msgspec.UNSET:
        changes["description"] = known.description or ""
    if known.enabled is not msgspec.UNSET:
        changes["enabled"] = known.enabled
    more = extras(given, {"name", "description", "enabled", *_READ_ONLY})
    return msgspec.structs.replace(project, extra={**project.extra, **more}, **changes)


async def create_project(call: Call) -> Reply:
    """``POST /v3/projects``."""
    given: dict[str, Any] = call.body.project
    if "name" not in given:
        raise bad_request("project.name is missing.")
    project = _changed(Project(id=call.new_id().replace("-", ""), name=""), given)
    await call.store.run(identity.create_project, project)
    return Reply({"project": project_json(call, project)})


async def list_projects(call: Call) -> Reply:
    """``GET /v3/projects``; the name is matched exactly."""
    wanted: ProjectQuery = call.query
    enabled, is_domain = flag("enabled", wanted.enabled), flag("is_domain", wanted.is_domain)
    found: list[Project] = []
    if wanted.domain_id in (None, DOMAIN) and wanted.parent_id in (None, DOMAIN) and not is_domain:
        found = await call.store.run_read(identity.list_projects, name=wanted.name, enabled=enabled)
    return collection(call, "projects", [project_json(call, item) for item in found])


def _readable(tx: Tx, user_id: str, project_id: str) -> Project | None:
    found = [item for item in identity.projects_of(tx, user_id) if item.id == project_id]
    return found[0] if found else None


async def show_project(call: Call) -> Reply:
    """``GET /v3/projects/{id}``: administrators, and users with a role there."""
    project_id = call.params["id"]
    if call.is_admin:
        project = await call.store.run_read(identity.get_project, project_id)
        return Reply({"project": project_json(call, project)})
    own = await call.store.run_read(_readable, call.token.user_id, project_id)
    if own is None:
        raise forbidden()
    return Reply({"project": project_json(call, own)})


async def update_project(call: Call) -> Reply:
    """``PATCH /v3/projects/{id}``."""
    given: dict[str, Any] = call.body.project
    updated = await call.store.run(
        identity.update_project, call.params["id"], lambda project: _changed(project, given)
    )
    return Reply({"project": project_json(call, updated)})


async def delete_project(call: Call) -> Reply:
    """``DELETE /v3/projects/{id}``."""
    await call.store.run(identity.delete_project, call.params["id"])
    return Reply()


async def user_projects(call: Call) -> Reply:
    """``GET /v3/users/{id}/projects``."""
    self_or_admin(call, call.params["id"])
    found = await call.store.run_read(identity.projects_of, call.params["id"])
    return collection(call, "projects", [project_json(call, item) for item in found])


async def list_domains(call: Call) -> Reply:
    """``GET /v3/domains``."""
    name = call.query_params.get("name")
    hit = name in (None, "Default") and flag("enabled", call.query_params.get("enabled")) is not False
    return collection(call, "domains", [domain_json(call)] if hit else [])


async def show_domain(call: Call) -> Reply:
    """``GET /v3/domains/{id}``."""
    check_domain(call.params["id"])
    return Reply({"domain": domain_json(call)})


_PROJECTS: Final = "/identity/v3/projects"
ROUTES: list[Route] = [
    route("POST", _PROJECTS, create_project, "admin", body=ProjectBody, status=201),
    route("GET", _PROJECTS, list_projects, "admin", query=ProjectQuery),
    route("GET", f"{_PROJECTS}/{{id}}", show_project, "authenticated"),
    route("PATCH", f"{_PROJECTS}/{{id}}", update_project, "admin", body=ProjectBody),
    route("DELETE", f"{_PROJECTS}/{{id}}", delete_project, "admin", status=204),
    route("GET", "/identity/v3/users/{id}/projects", user_projects, "authenticated"),
    route("GET", "/identity/v3/domains", list_domains, "admin"),
    route("GET", "/identity/v3/domains/{id}", show_domain, "authenticated"),
]
