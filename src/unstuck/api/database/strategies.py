"""``/backup_strategies``: where a project's, or one instance's, backups go."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.backups import places
from unstuck.api.database.common import BASE, invalid, object_id, project, text_of
from unstuck.api.errors import forbidden
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.store import backup_strategies as store
from unstuck.store.backup_strategies import Strategy


class NewStrategy(Body, frozen=True, kw_only=True):
    swift_container: str
    instance_id: str | None = None
    project_id: str | None = None


class CreateBody(Body, frozen=True, kw_only=True):
    backup_strategy: NewStrategy


class Filters(Query, frozen=True, kw_only=True):
    instance_id: str | None = None
    project_id: str | None = None


def _view(found: Strategy) -> dict[str, Any]:
    return {
        "project_id": found.project_id,
        "instance_id": found.instance_id,
        "backend": "swift",
        "swift_container": found.container,
    }


def _whose(call: Call, asked: str | None) -> str:
    """The project that it is about: the own one; an administrator may name any."""
    own = project(call)
    if asked in (None, "", own):
        return own
    if not call.is_admin:
        raise forbidden("Policy does not allow this request: it is about another project.")
    assert asked is not None
    return asked


def _instance(text: str | None) -> str | None:
    return None if text in (None, "") else object_id(str(text), "Instance")


async def create(call: Call) -> Reply:
    """``POST``: again replaces what was there."""
    asked: NewStrategy = call.body.backup_strategy
    owner = _whose(call, asked.project_id)
    container = text_of(asked.swift_container, "backup_strategy.swift_container")
    names = places(call.app).names
    if container not in names:
        known = ", ".join(names)
        invalid(
            "backup_strategy.swift_container",
            f"no store of backups is called {container[:60]!r}; there are: {known}.",
        )
    made = await call.store.run(store.set_strategy, owner, _instance(asked.instance_id), container)
    return Reply({"backup_strategy": _view(made)})


async def list_strategies(call: Call) -> Reply:
    """``GET``."""
    filters: Filters = call.query
    owner = _whose(call, filters.project_id)
    found = await call.store.run_read(store.list_strategies, owner, _instance(filters.instance_id))
    return Reply({"backup_strategies": [_view(item) for item in found]})


async def delete(call: Call) -> Reply:
    """``DELETE``, with what it is about in the query."""
    filters: Filters = call.query
    owner = _whose(call, filters.project_id)
    await call.store.run(store.drop_strategy, owner, _instance(filters.instance_id))
    return Reply()


_ALL: Final = f"{BASE}/backup_strategies"

ROUTES: list[Route] = [
    route("GET", _ALL, list_strategies, "reader", query=Filters),
    route("POST", _ALL, create, "member", body=CreateBody, status=202),
    route("DELETE", _ALL, delete, "member", query=Filters, status=202),
]
