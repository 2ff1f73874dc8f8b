"""Tags of projects. They are kept with what else callers want kept of a project."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.errors import not_found
from unstuck.api.identity.projects import check_tags, readable_project, tags_of
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.store import identity
from unstuck.store.identity import Project


class TagsBody(Body, frozen=True):
    tags: list[str]


def _with(project: Project, tags: list[str]) -> Project:
    return msgspec.structs.replace(project, extra={**project.extra, "tags": check_tags(tags)})


def _json(call: Call, tags: list[str]) -> dict[str, Any]:
    return {"tags": tags, "links": {"self": call.url(call.path()), "next": None, "previous": None}}


async def list_tags(call: Call) -> Reply:
    """``GET /v3/projects/{id}/tags``."""
    return Reply(_json(call, tags_of(await readable_project(call, call.params["id"]))))


async def replace_tags(call: Call) -> Reply:
    """``PUT /v3/projects/{id}/tags``."""
    tags: list[str] = call.body.tags
    made = await call.store.run(identity.update_project, call.params["id"], lambda old: _with(old, tags))
    return Reply(_json(call, tags_of(made)))


async def drop_tags(call: Call) -> Reply:
    """``DELETE /v3/projects/{id}/tags``."""
    await call.store.run(identity.update_project, call.params["id"], lambda old: _with(old, []))
    return Reply()


async def check_tag(call: Call) -> Reply:
    """``GET`` and ``HEAD /v3/projects/{id}/tags/{tag}``: 204 or 404."""
    if call.params["tag"] not in tags_of(await readable_project(call, call.params["id"])):
        raise not_found(f"Could not find project tag: {call.params['tag'][:255]}.")
    return Reply()


async def add_tag(call: Call) -> Reply:
    """``PUT /v3/projects/{id}/tags/{tag}``."""
    tag = call.params["tag"]
    await call.store.run(
        identity.update_project, call.params["id"], lambda old: _with(old, [*tags_of(old), tag])
    )
    return Reply()


async def drop_tag(call: Call) -> Reply:
    """``DELETE /v3/projects/{id}/tags/{tag}``."""
    tag = call.params["tag"]

    def without(old: Project) -> Project:
        if tag not in tags_of(old):
            raise not_found(f"Could not find project tag: {tag[:255]}.")
        return _with(old, [name for name in tags_of(old) if name != tag])

    await call.store.run(identity.update_project, call.params["id"], without)
    return Reply()


_ALL: Final = "/identity/v3/projects/{id}/tags"
ROUTES: list[Route] = [
    route("GET", _ALL, list_tags, "authenticated"),
    route("PUT", _ALL, replace_tags, "admin", body=TagsBody),
    route("DELETE", _ALL, drop_tags, "admin", status=204),
    route("GET", f"{_ALL}/{{tag}}", check_tag, "authenticated", status=204),
    route("PUT", f"{_ALL}/{{tag}}", add_tag, "admin", status=201),
    route("DELETE", f"{_ALL}/{{tag}}", drop_tag, "admin", status=204),
]
