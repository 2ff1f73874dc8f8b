"""Projects and domains."""

from __future__ import annotations

import re
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
from unstuck.store import identity, roles
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


MAX_TAGS: Final = 80
_TAG: Final = re.compile(r"[^/,]{1,255}")


class ProjectBody(Body, frozen=True):
    project: dict[str, Any]


class ProjectQuery(Query, frozen=True):
    name: str | None = None
    enabled: str | None = None
    domain_id: str | None = None
    parent_id: str | None = None
    is_domain: str | None = None
    tags: str | None = None
    tags_any: str | None = msgspec.field(name="tags-any", default=None)
    not_tags: str | None = msgspec.field(name="not-tags", default=None)
    not_tags_any: str | None = msgspec.field(name="not-tags-any", default=None)


def check_tags(tags: list[str]) -> list[str]:
    """Tags, each once and in the order given; 400 for what is none."""
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise bad_request(f"tags: {tag[:60]!r} must have 1 to 255 characters without , and /.")
    unique = list(dict.fromkeys(tags))
    if len(unique) > MAX_TAGS:
        raise bad_request(f"tags: a project has at most {MAX_TAGS} tags.")
    return unique


def tags_of(project: Project) -> list[str]:
    """A project's tags, which are kept with what else callers want kept of it."""
    found: list[str] = project.extra.get("tags", [])
    return found


def _tagged(project: Project, wanted: ProjectQuery) -> bool:
    """Whether a project passes the filters by tag."""
    have = set(tags_of(project))

    def words(text: str) -> set[str]:
        return set(text.split(","))

    return (
        (wanted.tags is None or words(wanted.tags) <= have)
        and (wanted.tags_any is None or bool(words(wanted.tags_any) & have))
        and (wanted.not_tags is None or not words(wanted.not_tags) <= have)
        and (wanted.not_tags_any is None or not words(wanted.not_tags_any) & have)
    )


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
    if not isinstance(known.tags, msgspec.UnsetType):
        more["tags"] = check_tags(known.tags)
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
    found = [item for item in found if _tagged(item, wanted)]
    return collection(call, "projects", [project_json(call, item) for item in found])


def _readable(tx: Tx, user_id: str, project_id: str) -> Project | None:
    found = [item for item in roles.projects_of(tx, user_id) if item.id == project_id]
    return found[0] if found else None


async def readable_project(call: Call, project_id: str) -> Project:
    """A project, for administrators and for users with a role there; 403 for others."""
    if call.is_admin:
        return await call.store.run_read(identity.get_project, project_id)
    own = await call.store.run_read(_readable, call.token.user_id, project_id)
    if own is None:
        raise forbidden()
    return own


async def show_project(call: Call) -> Reply:
    """``GET /v3/projects/{id}``."""
    return Reply({"project": project_json(call, await readable_project(call, call.params["id"]))})


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
    found = await call.store.run_read(roles.projects_of, call.params["id"])
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


async def refuse_domains(_call: Call) -> Reply:
    """Every change to domains."""
    raise forbidden("There is one domain, default, and it cannot be changed: use projects.")


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
    route("POST", "/identity/v3/domains", refuse_domains, "admin"),
    route("PATCH", "/identity/v3/domains/{id}", refuse_domains, "admin"),
    route("DELETE", "/identity/v3/domains/{id}", refuse_domains, "admin"),
]
