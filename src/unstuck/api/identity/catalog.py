"""The catalog: which services there are and where. Services, endpoints and regions are views of it."""

from __future__ import annotations

import uuid
from typing import Any, Final

import msgspec

from unstuck.api.errors import forbidden, not_found
from unstuck.api.routes import Call, Query, Reply, Route, route

_SPACE: Final = uuid.UUID("6e1c2f3a-52b5-4c0e-9d55-0d4f2c7a9b11")
INTERFACES: Final = ("public", "internal", "admin")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """``path`` may contain ``{project_id}``, the token's own project."""

    type: str
    name: str
    path: str

    @property
    def id(self) -> str:
        return uuid.uuid5(_SPACE, self.type).hex

    def endpoint_id(self, interface: str) -> str:
        return uuid.uuid5(_SPACE, f"{self.type}/{interface}").hex


SERVICES: Final[list[Service]] = [
    # A new service: add it here, and its routes in api/app.py.
    Service(type="identity", name="keystone", path="/identity"),
    Service(type="image", name="glance", path="/image"),
    Service(type="network", name="neutron", path="/networking"),
    Service(type="compute", name="nova", path="/compute/v2.1"),
    Service(type="database", name="trove", path="/database/v1.0/{project_id}"),
]


def catalog(call: Call, project_id: str | None) -> list[dict[str, Any]]:
    """The catalog of a token."""
    region = call.app.settings.region
    entries = []
    for service in SERVICES:
        if "{project_id}" in service.path and project_id is None:
            continue
        url = call.url(service.path.replace("{project_id}", project_id or ""))
        endpoints = [
            {
                "id": service.endpoint_id(interface), "interface": interface,
                "region": region, "region_id": region, "url": url,
            }
            for interface in INTERFACES
        ]  # fmt: skip
        entries.append({"type": service.type, "name": service.name, "id": service.id, "endpoints": endpoints})
    return entries


class Filter(Query, frozen=True):
    """Filters of the lists."""

    name: str | None = None
    type: str | None = None
    service_id: str | None = None
    interface: str | None = None


def collection(call: Call, key: str, items: list[dict[str, Any]]) -> Reply:
    """A list in keystone's form."""
    return Reply({key: items, "links": {"self": call.url(call.path()), "next": None, "previous": None}})


def _service(call: Call, service: Service) -> dict[str, Any]:
    return {
        "id": service.id, "type": service.type, "name": service.name, "description": "", "enabled": True,
        "links": {"self": call.url(f"/identity/v3/services/{service.id}")},
    }  # fmt: skip


def _endpoints(call: Call) -> list[dict[str, Any]]:
    region = call.app.settings.region
    return [
        {
            "id": service.endpoint_id(interface), "interface": interface, "enabled": True,
            "region": region, "region_id": region, "service_id": service.id,
            "url": call.url(service.path.replace("{project_id}", "$(project_id)s")),
            "links": {"self": call.url(f"/identity/v3/endpoints/{service.endpoint_id(interface)}")},
        }
        for service in SERVICES
        for interface in INTERFACES
    ]  # fmt: skip


def _region(call: Call) -> dict[str, Any]:
    name = call.app.settings.region
    links = {"self": call.url(f"/identity/v3/regions/{name}")}
    return {"id": name, "description": "", "parent_region_id": None, "links": links}


def _one(items: list[dict[str, Any]], key: str, item_id: str) -> Reply:
    for item in items:
        if item["id"] == item_id:
            return Reply({key: item})
    raise not_found(f"Could not find {key}: {item_id}.")


async def show_catalog(call: Call) -> Reply:
    """``GET /v3/auth/catalog``."""
    return collection(call, "catalog", catalog(call, call.token.project_id))


async def list_services(call: Call) -> Reply:
    """``GET /v3/services``."""
    wanted: Filter = call.query
    found = [s for s in SERVICES if wanted.name in (None, s.name) and wanted.type in (None, s.type)]
    return collection(call, "services", [_service(call, item) for item in found])


async def show_service(call: Call) -> Reply:
    """``GET /v3/services/{id}``."""
    return _one([_service(call, item) for item in SERVICES], "service", call.params["id"])


async def list_endpoints(call: Call) -> Reply:
    """``GET /v3/endpoints``."""
    wanted: Filter = call.query
    found = [
        item
        for item in _endpoints(call)
        if wanted.service_id in (None, item["service_id"]) and wanted.interface in (None, item["interface"])
    ]
    return collection(call, "endpoints", found)


async def show_endpoint(call: Call) -> Reply:
    """``GET /v3/endpoints/{id}``."""
    return _one(_endpoints(call), "endpoint", call.params["id"])


async def list_regions(call: Call) -> Reply:
    """``GET /v3/regions``."""
    return collection(call, "regions", [_region(call)])


async def show_region(call: Call) -> Reply:
    """``GET /v3/regions/{id}``."""
    return _one([_region(call)], "region", call.params["id"])


async def refuse(_call: Call) -> Reply:
    """Every change to the catalog."""
    raise forbidden("The catalog is built in: services, endpoints and regions cannot be changed.")


def _read_only(name: str) -> list[Route]:
    path = f"{_V3}/{name}"
    return [
        route("POST", path, refuse, "admin"),
        route("PATCH", f"{path}/{{id}}", refuse, "admin"),
        route("PUT", f"{path}/{{id}}", refuse, "admin"),
        route("DELETE", f"{path}/{{id}}", refuse, "admin"),
    ]


_V3: Final = "/identity/v3"
ROUTES: list[Route] = [
    route("GET", f"{_V3}/auth/catalog", show_catalog, "authenticated"),
    route("GET", f"{_V3}/services", list_services, "admin", query=Filter),
    route("GET", f"{_V3}/services/{{id}}", show_service, "admin"),
    route("GET", f"{_V3}/endpoints", list_endpoints, "admin", query=Filter),
    route("GET", f"{_V3}/endpoints/{{id}}", show_endpoint, "admin"),
    route("GET", f"{_V3}/regions", list_regions, "authenticated"),
    route("GET", f"{_V3}/regions/{{id}}", show_region, "authenticated"),
    *_read_only("services"),
    *_read_only("endpoints"),
    *_read_only("regions"),
]
