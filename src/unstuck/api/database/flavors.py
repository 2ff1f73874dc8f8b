"""``/flavors``: the compute API's flavors in Trove's form."""

from __future__ import annotations

from typing import Any

from unstuck.api.database.common import BASE, links, missing, project
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.store import flavors as store
from unstuck.store.flavors import FlavorRow


def flavor_view(call: Call, flavor: FlavorRow) -> dict[str, Any]:
    """``id`` is a number or null, and ``str_id`` always the id."""
    numeric = flavor.id.isascii() and flavor.id.isdigit() and str(int(flavor.id)) == flavor.id
    return {
        "id": int(flavor.id) if numeric else None,
        "str_id": flavor.id,
        "name": flavor.name,
        "ram": flavor.ram_mb,
        "vcpus": flavor.vcpus,
        "disk": flavor.disk_gb,
        "ephemeral": flavor.ephemeral_gb,
        "links": links(call, "flavors", flavor.id),
    }


async def usable_flavors(call: Call) -> list[FlavorRow]:
    """What the project may make instances of."""
    return await call.store.run_read(store.list_flavors, project(call), public=None)


async def list_flavors(call: Call) -> Reply:
    """``GET /flavors``."""
    return Reply({"flavors": [flavor_view(call, flavor) for flavor in await usable_flavors(call)]})


async def show_flavor(call: Call) -> Reply:
    """``GET /flavors/{id}``."""
    try:
        flavor = await call.store.run_read(store.get_flavor, call.params["id"], project(call))
    except NotFound:
        raise missing("Flavor", call.params["id"]) from None
    return Reply({"flavor": flavor_view(call, flavor)})


ROUTES: list[Route] = [
    route("GET", f"{BASE}/flavors", list_flavors, "reader"),
    route("GET", f"{BASE}/flavors/{{id}}", show_flavor, "reader"),
]
