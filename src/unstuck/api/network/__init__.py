"""Network v2.0, read only for now: what exists is made by the cloud itself and by servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from unstuck.api.errors import conflict, forbidden, not_found
from unstuck.api.network.groups import group_id, network_group, network_rules
from unstuck.api.network.lists import chosen, listed
from unstuck.api.network.views import network_view, port_view, subnet_view
from unstuck.api.routes import Call, Handler, Reply, Route, route
from unstuck.store import identity, quotas
from unstuck.store import network_lists as store

BASE: Final = "/networking/v2.0"
MAX_NICS: Final = 16
Items = Callable[[Call], Awaitable[list[dict[str, Any]]]]
_ALIASES: Final = (
    "address-scope", "agent", "binding", "external-net", "net-mtu", "pagination", "project-id",
    "provider", "quotas", "router", "security-group", "sorting", "standard-attr-timestamp",
)  # fmt: skip


def _scope(call: Call) -> str | None:
    return None if call.is_admin else call.project_id


async def _networks(call: Call) -> list[dict[str, Any]]:
    rows = await call.store.run_read(store.list_networks, _scope(call))
    return [network_view(row, admin=call.is_admin) for row in rows]


async def _subnets(call: Call) -> list[dict[str, Any]]:
    rows = await call.store.run_read(store.list_subnets, _scope(call))
    return [subnet_view(row) for row in rows]


async def _ports(call: Call) -> list[dict[str, Any]]:
    servers = call.query_params.getlist("device_id") or None
    rows = await call.store.run_read(
        store.list_ports, _scope(call), server_ids=servers, port_id=call.params.get("id")
    )
    return [port_view(row, admin=call.is_admin) for row in rows]


def _group_project(call: Call) -> str:
    """Whose group is meant: administrators may name a project."""
    params = call.query_params
    asked = params.get("project_id") or params.get("tenant_id")
    return asked if asked and call.is_admin else call.project_id


async def _groups(call: Call) -> list[dict[str, Any]]:
    return [network_group(_group_project(call))]


async def _rules(call: Call) -> list[dict[str, Any]]:
    return network_rules(_group_project(call))


async def _nothing(_call: Call) -> list[dict[str, Any]]:
    return []


async def _extensions(_call: Call) -> list[dict[str, Any]]:
    return [
        {"id": alias, "alias": alias, "name": alias, "description": "", "links": [],
         "updated": "2026-01-01T00:00:00-00:00"}
        for alias in _ALIASES
    ]  # fmt: skip


def _limits(instances: int) -> dict[str, int]:
    """There is no quota of ports but that of servers, and of ports per server."""
    ports = -1 if instances < 0 else instances * MAX_NICS
    return {
        "network": 0, "subnet": 0, "port": ports, "router": 0, "floatingip": 0,
        "security_group": 1, "security_group_rule": 2, "subnetpool": 0, "rbac_policy": 0,
    }  # fmt: skip


def _quota_project(call: Call) -> str:
    project = call.params["project"]
    if not call.is_admin and project != call.project_id:
        raise forbidden("This quota belongs to another project.", kind="PolicyNotAuthorized")
    return project


async def show_quota(call: Call) -> Reply:
    """``GET /quotas/{project}``."""
    found = await call.store.run_read(quotas.limits, _quota_project(call))
    return Reply({"quota": _limits(found["instances"])})


async def default_quota(call: Call) -> Reply:
    """``GET /quotas/{project}/default``."""
    _quota_project(call)
    found = await call.store.run_read(quotas.default_limits)
    return Reply({"quota": _limits(found["instances"])})


async def detail_quota(call: Call) -> Reply:
    """``GET /quotas/{project}/details``."""
    project = _quota_project(call)
    used = {"port": len(await call.store.run_read(store.list_ports, project)), "security_group": 1}
    limits = _limits((await call.store.run_read(quotas.limits, project))["instances"])
    shown = {key: {"limit": limit, "used": used.get(key, 0), "reserved": 0} for key, limit in limits.items()}
    return Reply({"quota": shown})


async def refuse(_call: Call) -> Reply:
    """Every change."""
    raise forbidden(
        "The network API is read only here for now: networks are made by the cloud, ports by servers.",
        kind="PolicyNotAuthorized",
    )


async def reset_group(call: Call) -> Reply:
    """``DELETE /security-groups/{id}``: a project's default group is there again at once, as in neutron.

    So there is nothing to do but to say whether it may be asked for.
    """
    wanted = call.params["id"]
    owners = await call.store.run_read(identity.list_projects)
    owner = next((project.id for project in owners if group_id(project.id) == wanted), None)
    if owner is None or (not call.is_admin and owner != call.project_id):
        raise not_found(f"Security group {wanted[:64]} does not exist", kind="SecurityGroupNotFound")
    if not call.is_admin:
        raise conflict(
            "Insufficient rights for removing default security group.",
            kind="SecurityGroupCannotRemoveDefault",
        )
    if await call.store.run_read(store.list_ports, owner):
        raise conflict(f"Security Group {wanted} in use.", kind="SecurityGroupInUse")
    return Reply()


def _collection(
    name: str, one: str, kind: str, items: Items, *, delete: Handler = refuse, role: str = "reader"
) -> list[Route]:
    """List and show of a resource, and the refusal of changes to it."""
    path = f"{BASE}/{name}"
    members, member = name.replace("-", "_"), one

    async def list_all(call: Call) -> Reply:
        return listed(call, members, await items(call))

    async def show(call: Call) -> Reply:
        for item in await items(call):
            if call.params["id"] in (item["id"], item.get("alias")):
                return Reply({member: chosen(call, item)})
        raise not_found(f"{kind} {call.params['id'][:64]} could not be found.", kind=f"{kind}NotFound")

    return [
        route("GET", path, list_all, "reader"),
        route("GET", f"{path}/{{id}}", show, "reader"),
        route("POST", path, refuse, "reader"),
        route("PUT", f"{path}/{{id}}", refuse, "reader"),
        route("DELETE", f"{path}/{{id}}", delete, role, status=204),
    ]


_QUOTA = f"{BASE}/quotas/{{project}}"

ROUTES: list[Route] = [
    *_collection("networks", "network", "Network", _networks),
    *_collection("subnets", "subnet", "Subnet", _subnets),
    *_collection("ports", "port", "Port", _ports),
    *_collection(
        "security-groups", "security_group", "SecurityGroup", _groups, delete=reset_group, role="member"
    ),
    *_collection("security-group-rules", "security_group_rule", "SecurityGroupRule", _rules),
    *_collection("floatingips", "floatingip", "FloatingIP", _nothing),
    *_collection("routers", "router", "Router", _nothing),
    *_collection("subnetpools", "subnetpool", "SubnetPool", _nothing),
    *_collection("agents", "agent", "Agent", _nothing),
    *_collection("availability_zones", "availability_zone", "AvailabilityZone", _nothing),
    *_collection("extensions", "extension", "Extension", _extensions),
    route("GET", _QUOTA, show_quota, "reader"),
    route("GET", f"{_QUOTA}/default", default_quota, "reader"),
    route("GET", f"{_QUOTA}/details", detail_quota, "reader"),
    route("PUT", _QUOTA, refuse, "reader"),
    route("DELETE", _QUOTA, refuse, "reader"),
]
