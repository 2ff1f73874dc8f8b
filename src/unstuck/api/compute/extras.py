"""What clients ask for and what is simply empty here: extensions, aggregates, server groups."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.compute.common import BASE
from unstuck.api.errors import not_found
from unstuck.api.routes import Call, Reply, Route, route

_ALIASES: Final = (
    "os-availability-zone", "os-extended-availability-zone", "os-extended-server-attributes",
    "os-extended-status", "os-flavor-access", "os-flavor-extra-specs", "os-hypervisors",
    "os-instance-actions", "os-keypairs", "os-quota-sets", "os-scheduler-hints", "os-security-groups",
    "os-server-usage", "os-services", "os-simple-tenant-usage", "os-used-limits", "os-user-data",
)  # fmt: skip


def _extension(alias: str) -> dict[str, Any]:
    name = "".join(part.capitalize() for part in alias.removeprefix("os-").split("-"))
    return {
        "alias": alias,
        "name": name,
        "namespace": "http://docs.openstack.org/compute/ext/fake_xml",
        "description": "",
        "links": [],
        "updated": "2014-12-03T00:00:00Z",
    }


async def list_extensions(_call: Call) -> Reply:
    """``GET /extensions``."""
    return Reply({"extensions": [_extension(alias) for alias in _ALIASES]})


async def show_extension(call: Call) -> Reply:
    """``GET /extensions/{alias}``."""
    if call.params["alias"] not in _ALIASES:
        raise not_found()
    return Reply({"extension": _extension(call.params["alias"])})


async def no_aggregates(_call: Call) -> Reply:
    """``GET /os-aggregates``: there are none."""
    return Reply({"aggregates": []})


async def no_groups(_call: Call) -> Reply:
    """``GET /os-server-groups``: there are none."""
    return Reply({"server_groups": []})


async def no_migrations(_call: Call) -> Reply:
    """``GET /os-migrations``: no server ever moves."""
    return Reply({"migrations": []})


ROUTES: list[Route] = [
    route("GET", f"{BASE}/extensions", list_extensions, "authenticated"),
    route("GET", f"{BASE}/extensions/{{alias}}", show_extension, "authenticated"),
    route("GET", f"{BASE}/os-aggregates", no_aggregates, "admin"),
    route("GET", f"{BASE}/os-server-groups", no_groups, "reader"),
    route("GET", f"{BASE}/os-migrations", no_migrations, "admin"),
]
