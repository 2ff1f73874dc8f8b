"""Version documents of all services: the first thing that every client asks for, without a token."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.microversions import MAX, MIN, show
from unstuck.api.routes import Call, Handler, Reply, Route, route

_UPDATED: Final = "2026-01-01T00:00:00Z"
IDENTITY_VERSION: Final = "v3.14"
IMAGE_VERSIONS: Final = ("v2.9", "v2.7", "v2.6", "v2.5", "v2.4", "v2.3", "v2.2", "v2.1", "v2.0")


def _self(call: Call, path: str) -> list[dict[str, str]]:
    return [{"rel": "self", "href": call.url(path)}]


def _identity(call: Call) -> dict[str, Any]:
    return {
        "id": IDENTITY_VERSION,
        "status": "stable",
        "updated": _UPDATED,
        "links": _self(call, "/identity/v3/"),
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }


async def identity_versions(call: Call) -> Reply:
    """``GET /identity``: 300, as keystone."""
    return Reply({"versions": {"values": [_identity(call)]}}, headers={"location": call.url("/identity/v3/")})


async def identity_version(call: Call) -> Reply:
    """``GET /identity/v3``."""
    return Reply({"version": _identity(call)})


async def image_versions(call: Call) -> Reply:
    """``GET /image``: 300; the self link is what the SDK uses as its endpoint."""
    links = _self(call, "/image/v2/")
    versions = [
        {"id": name, "status": "CURRENT" if index == 0 else "SUPPORTED", "links": links}
        for index, name in enumerate(IMAGE_VERSIONS)
    ]
    return Reply({"versions": versions})


def _compute(call: Call) -> dict[str, Any]:
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": show(MAX),
        "min_version": show(MIN),
        "updated": _UPDATED,
        "links": _self(call, "/compute/v2.1/"),
    }


async def compute_versions(call: Call) -> Reply:
    """``GET /compute``."""
    return Reply({"versions": [_compute(call)]})


async def compute_version(call: Call) -> Reply:
    """``GET /compute/v2.1``."""
    media = [{"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}]
    document = _compute(call)
    document["links"] = [
        *document["links"],
        {"rel": "describedby", "type": "text/html", "href": "https://docs.openstack.org/"},
    ]
    return Reply({"version": {**document, "media-types": media}})


def _network(call: Call) -> dict[str, Any]:
    return {
        "id": "v2.0",
        "status": "CURRENT",
        "updated": _UPDATED,
        "links": _self(call, "/networking/v2.0/"),
    }


async def network_versions(call: Call) -> Reply:
    """``GET /networking``."""
    return Reply({"versions": [_network(call)]})


async def network_version(call: Call) -> Reply:
    """``GET /networking/v2.0``: the resources with their addresses, as neutron."""
    names = ("network", "subnet", "port", "router", "security_group", "security_group_rule", "floatingip")
    resources = [
        {"name": name, "collection": f"{name}s", "links": _self(call, f"/networking/v2.0/{name}s")}
        for name in names
    ]
    return Reply({"resources": resources, **_network(call)})


def _database(call: Call) -> dict[str, Any]:
    links = _self(call, "/database/v1.0/")
    return {"id": "v1.0", "status": "CURRENT", "updated": _UPDATED, "links": links}


async def database_versions(call: Call) -> Reply:
    """``GET /database``."""
    return Reply({"versions": [_database(call)]})


async def database_version(call: Call) -> Reply:
    """``GET /database/v1.0``."""
    return Reply({"version": _database(call)})


def _public(path: str, handler: Handler, status: int = 200) -> Route:
    return route("GET", path, handler, "public", status=status)


ROUTES: list[Route] = [
    _public("/identity", identity_versions, 300),
    _public("/identity/v3", identity_version),
    _public("/image", image_versions, 300),
    _public("/image/versions", image_versions),
    _public("/compute", compute_versions),
    _public("/compute/v2.1", compute_version),
    _public("/networking", network_versions),
    _public("/networking/v2.0", network_version),
    _public("/database", database_versions),
    _public("/database/v1.0", database_version),
]
