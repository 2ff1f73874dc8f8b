"""``/mgmt/instances``: what operators see and do, with the servers that instances live in."""

from __future__ import annotations

from typing import Final

from unstuck.api.database.common import BASE, caller, limit, marker, object_id, page, project, truth, wake
from unstuck.api.database.instances import Nothing, reset_status, restart, shown
from unstuck.api.database.views import managed
from unstuck.api.errors import bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Query, Reply, Route, actions, route
from unstuck.store import instances as store
from unstuck.store.instance_servers import list_managed, show_managed


class Filters(Query, frozen=True, kw_only=True):
    deleted: str | None = None
    include_clustered: str | None = None
    project_id: str | None = None


class Rebuild(Body, frozen=True, kw_only=True):
    """Without an image: the present one of its datastore's version."""

    image_id: str | None = None


async def list_all(call: Call) -> Reply:
    """``GET /mgmt/instances``: of all projects, or of one."""
    filters: Filters = call.query
    project(call)
    found, names = await call.store.run_read(
        list_managed,
        filters.project_id or None,
        limit=limit(call),
        marker=marker(call),
        deleted=filters.deleted is not None and truth(filters.deleted, "deleted"),
    )
    items = [managed(call, item, found.now, names.get(item.server_id, "")) for item in found.items]
    return page(call, "instances", items, found.items[-1].id if found.more else None)


async def show(call: Call) -> Reply:
    """``GET /mgmt/instances/{id}``: also one that is in the trash."""
    project(call)
    found, names = await call.store.run_read(show_managed, object_id(call.params["id"], "Instance"))
    [item] = found.items
    return Reply({"instance": managed(call, item, found.now, names.get(item.server_id, ""))})


async def rebuild(call: Call) -> Reply:
    """Action ``rebuild``: another system; the volume stays."""
    key = object_id(call.params["id"], "Instance")
    project(call)
    image = call.body.image_id or None
    wake(call, await call.store.run(store.rebuild_instance, key, image, caller(call)))
    return Reply()


async def stop(call: Call) -> Reply:
    """Action ``stop``."""
    await shown(call)
    raise bad_request("stop is not offered by this cloud: an instance runs until it is deleted.")


class Migrate(Body, frozen=True, kw_only=True):
    host: str | None = None


async def migrate(call: Call) -> Reply:
    """Action ``migrate``."""
    await shown(call)
    raise bad_request(
        "migrate is not offered by this cloud: an instance's volume is on its host. Restore a backup, or a "
        "moment, into a new instance: it goes to the host that has room."
    )


async def update(call: Call) -> Reply:
    """Action ``update``."""
    await shown(call)
    raise bad_request("update is not offered by this cloud: rebuild the instance with another image.")


_ALL: Final = f"{BASE}/mgmt/instances"
_ONE: Final = f"{_ALL}/{{id}}"

ROUTES: list[Route] = [
    route("GET", _ALL, list_all, "admin", query=Filters),
    route("GET", _ONE, show, "admin"),
    *actions(
        f"{_ONE}/action",
        [
            Act(name="reboot", handler=restart, rule="admin", body=Nothing | None),
            Act(name="rebuild", handler=rebuild, rule="admin", body=Rebuild),
            Act(name="reset-task-status", handler=reset_status, rule="admin", body=Nothing | None),
            Act(name="stop", handler=stop, rule="admin", body=Nothing | None),
            Act(name="migrate", handler=migrate, rule="admin", body=Migrate | None),
            Act(name="update", handler=update, rule="admin", body=Nothing | None),
        ],
    ),
]
