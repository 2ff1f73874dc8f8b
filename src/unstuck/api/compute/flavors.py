"""Flavors with their extra specs and access lists."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from unstuck.api.compute.common import (
    BASE,
    as_bool,
    as_int,
    as_name,
    as_text,
    gate,
    links,
    page_limit,
    scope,
)
from unstuck.api.errors import bad_request, not_found
from unstuck.api.pages import cut, next_url, parse_sort
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Query, Reply, Route, actions, route
from unstuck.store import flavors as store
from unstuck.store.flavors import FlavorRow

_ID = re.compile(r"[a-zA-Z0-9._ -]*")
_KEY = re.compile(r"[a-zA-Z0-9_:. -]{1,255}")
_SORT = {
    "flavorid": "id", "id": "id", "name": "name", "memory_mb": "ram_mb", "root_gb": "disk_gb",
    "vcpus": "vcpus", "swap": "swap_mb", "ephemeral_gb": "ephemeral_gb", "rxtx_factor": "rxtx_factor",
    "is_public": "is_public", "created_at": "created_wall", "updated_at": "created_wall",
}  # fmt: skip


class ListQuery(Query, frozen=True, kw_only=True):
    sort_key: str = "flavorid"
    sort_dir: str = "asc"
    marker: str | None = None
    min_ram: str = msgspec.field(name="minRam", default="0")
    min_disk: str = msgspec.field(name="minDisk", default="0")


class NewFlavor(Body, frozen=True, kw_only=True):
    name: str
    ram: int | str
    vcpus: int | str
    disk: int | str
    id: str | int | None = None
    swap: int | str = 0
    ephemeral: int | str = msgspec.field(name="OS-FLV-EXT-DATA:ephemeral", default=0)
    is_public: bool | str = msgspec.field(name="os-flavor-access:is_public", default=True)
    rxtx_factor: float | str = 1.0
    description: str | msgspec.UnsetType | None = msgspec.UNSET


class CreateBody(Body, frozen=True, kw_only=True):
    flavor: NewFlavor


class Described(Body, frozen=True, kw_only=True):
    description: str | None


class UpdateBody(Body, frozen=True, kw_only=True):
    flavor: Described


class SpecsBody(Body, frozen=True, kw_only=True):
    extra_specs: dict[str, str | int | float]


class Project(Body, frozen=True, kw_only=True):
    tenant: str


def flavor_view(call: Call, flavor: FlavorRow) -> dict[str, Any]:
    """A flavor in full."""
    shown: dict[str, Any] = {
        "id": flavor.id,
        "name": flavor.name,
        "ram": flavor.ram_mb,
        "disk": flavor.disk_gb,
        "vcpus": flavor.vcpus,
        "swap": flavor.swap_mb if flavor.swap_mb or call.version >= (2, 75) else "",
        "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral_gb,
        "OS-FLV-DISABLED:disabled": False,
        "os-flavor-access:is_public": flavor.is_public,
        "rxtx_factor": flavor.rxtx_factor,
        "links": links(call, "flavors", flavor.id),
    }
    if call.version >= (2, 55):
        shown["description"] = flavor.description
    if call.version >= (2, 61):
        shown["extra_specs"] = flavor.extra_specs
    return shown


def _brief(call: Call, flavor: FlavorRow) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": flavor.id, "name": flavor.name, "links": links(call, "flavors", flavor.id)}
    if call.version >= (2, 55):
        shown["description"] = flavor.description
    return shown


def _public(call: Call) -> bool | None:
    """``is_public``: only administrators choose; others see what is public or theirs."""
    text = call.query_params.get("is_public")
    if text is not None and text.lower() != "none":
        wanted = as_bool(text, "is_public")
        return wanted if call.is_admin else None
    return None if text is not None else (True if call.is_admin else None)


async def _page(call: Call) -> tuple[list[FlavorRow], bool]:
    query: ListQuery = call.query
    least_ram = as_int(query.min_ram, "minRam", least=0)
    least_disk = as_int(query.min_disk, "minDisk", least=0)
    found = await call.store.run_read(store.list_flavors, scope(call), public=_public(call))
    key, down = parse_sort([query.sort_key], [query.sort_dir], _SORT, default="flavorid", way="asc")[0]
    found.sort(key=lambda flavor: (getattr(flavor, _SORT[key]), flavor.id), reverse=down)
    found = [item for item in found if item.ram_mb >= least_ram and item.disk_gb >= least_disk]
    page = cut(found, page_limit(call), query.marker, key=lambda flavor: flavor.id)
    if page is None:
        raise bad_request(f"marker [{query.marker}] not found")
    return page


def _linked(call: Call, name: str, shown: list[dict[str, Any]], more: bool) -> Reply:
    body: dict[str, Any] = {name: shown}
    if more and shown:
        target = next_url(call.url(call.path()), call.query_params.multi_items(), shown[-1]["id"])
        body[f"{name}_links"] = [{"rel": "next", "href": target}]
    return Reply(body)


async def list_brief(call: Call) -> Reply:
    """``GET /flavors``."""
    found, more = await _page(call)
    return _linked(call, "flavors", [_brief(call, flavor) for flavor in found], more)


async def list_detail(call: Call) -> Reply:
    """``GET /flavors/detail``."""
    found, more = await _page(call)
    return _linked(call, "flavors", [flavor_view(call, flavor) for flavor in found], more)


async def show(call: Call) -> Reply:
    """``GET /flavors/{id}``."""
    flavor = await call.store.run_read(store.get_flavor, call.params["id"], scope(call))
    return Reply({"flavor": flavor_view(call, flavor)})


def _new_id(call: Call, value: str | int | None) -> str:
    if value is None or value == "auto":
        return call.new_id()
    text = as_name(str(value), "id")
    if not _ID.fullmatch(text):
        raise bad_request("Invalid input for field id: letters, digits, spaces and . _ - are allowed.")
    return text


def _factor(value: float | str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 3.4e38:
        raise bad_request(f"Invalid input for field rxtx_factor: {value!r} is not a number above 0.")
    return number


async def create(call: Call) -> Reply:
    """``POST /flavors``."""
    new: NewFlavor = call.body.flavor
    gate(call, "description", new.description, (2, 55))
    described = None if new.description is msgspec.UNSET else new.description
    assert not isinstance(described, msgspec.UnsetType)
    row = FlavorRow(
        id=_new_id(call, new.id),
        name=as_name(new.name, "name"),
        vcpus=as_int(new.vcpus, "vcpus", least=1),
        ram_mb=as_int(new.ram, "ram", least=1),
        disk_gb=as_int(new.disk, "disk", least=0),
        ephemeral_gb=as_int(new.ephemeral, "OS-FLV-EXT-DATA:ephemeral", least=0),
        swap_mb=as_int(new.swap, "swap", least=0),
        rxtx_factor=_factor(new.rxtx_factor),
        is_public=as_bool(new.is_public, "os-flavor-access:is_public"),
        description=as_text(described, "description", most=65535),
    )
    return Reply({"flavor": flavor_view(call, await call.store.run(store.create_flavor, row))})


async def update(call: Call) -> Reply:
    """``PUT /flavors/{id}`` (from 2.55): the description."""
    described = as_text(call.body.flavor.description, "description", most=65535)
    flavor = await call.store.run(store.describe_flavor, call.params["id"], described)
    return Reply({"flavor": flavor_view(call, flavor)})


async def delete(call: Call) -> Reply:
    """``DELETE /flavors/{id}``."""
    await call.store.run(store.delete_flavor, call.params["id"])
    return Reply()


async def _specs(call: Call) -> dict[str, str]:
    return (await call.store.run_read(store.get_flavor, call.params["id"], scope(call))).extra_specs


async def list_specs(call: Call) -> Reply:
    """``GET /flavors/{id}/os-extra_specs``."""
    return Reply({"extra_specs": await _specs(call)})


async def show_spec(call: Call) -> Reply:
    """``GET /flavors/{id}/os-extra_specs/{key}``."""
    key = call.params["key"]
    specs = await _specs(call)
    if key not in specs:
        raise not_found(f"Flavor {call.params['id']} has no extra specs with key {key}.")
    return Reply({key: specs[key]})


def _checked(specs: dict[str, Any]) -> dict[str, str | None]:
    for key, value in specs.items():
        if not _KEY.fullmatch(key):
            raise bad_request(f"Invalid input for field extra_specs: {key[:60]!r} is not a valid key.")
        if isinstance(value, bool) or not isinstance(value, str | int | float) or len(str(value)) > 255:
            raise bad_request(f"Invalid input for field extra_specs: the value of {key!r} is not valid.")
    return {key: str(value) for key, value in specs.items()}


async def add_specs(call: Call) -> Reply:
    """``POST /flavors/{id}/os-extra_specs``."""
    specs = _checked(call.body.extra_specs)
    await call.store.run(store.merge_specs, call.params["id"], specs)
    return Reply({"extra_specs": specs})


async def set_spec(call: Call) -> Reply:
    """``PUT /flavors/{id}/os-extra_specs/{key}``."""
    if list(call.body) != [call.params["key"]]:
        raise bad_request("Request body contains too many items, or another key than the address.")
    specs = _checked(call.body)
    await call.store.run(store.merge_specs, call.params["id"], specs)
    return Reply(specs)


async def drop_spec(call: Call) -> Reply:
    """``DELETE /flavors/{id}/os-extra_specs/{key}``."""
    await call.store.run(store.merge_specs, call.params["id"], {call.params["key"]: None})
    return Reply()


def _access(call: Call, projects: list[str]) -> Reply:
    flavor_id = call.params["id"]
    return Reply({"flavor_access": [{"flavor_id": flavor_id, "tenant_id": key} for key in projects]})


async def list_access(call: Call) -> Reply:
    """``GET /flavors/{id}/os-flavor-access``."""
    return _access(call, await call.store.run_read(store.list_access, call.params["id"]))


async def add_access(call: Call) -> Reply:
    """Action ``addTenantAccess``."""
    project = as_name(call.body.tenant, "tenant", most=64)
    return _access(call, await call.store.run(store.add_access, call.params["id"], project))


async def remove_access(call: Call) -> Reply:
    """Action ``removeTenantAccess``."""
    project = as_name(call.body.tenant, "tenant", most=64)
    return _access(call, await call.store.run(store.remove_access, call.params["id"], project))


_ONE = f"{BASE}/flavors/{{id}}"
_SPECS = f"{_ONE}/os-extra_specs"

ROUTES: list[Route] = [
    route("GET", f"{BASE}/flavors", list_brief, "reader", query=ListQuery),
    route("GET", f"{BASE}/flavors/detail", list_detail, "reader", query=ListQuery),
    route("POST", f"{BASE}/flavors", create, "admin", body=CreateBody),
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, update, "admin", body=UpdateBody, min_version=(2, 55)),
    route("DELETE", _ONE, delete, "admin", status=202),
    route("GET", _SPECS, list_specs, "reader"),
    route("POST", _SPECS, add_specs, "admin", body=SpecsBody),
    route("GET", f"{_SPECS}/{{key}}", show_spec, "reader"),
    route("PUT", f"{_SPECS}/{{key}}", set_spec, "admin", body=dict[str, str | int | float]),
    route("DELETE", f"{_SPECS}/{{key}}", drop_spec, "admin"),
    route("GET", f"{_ONE}/os-flavor-access", list_access, "admin"),
    *actions(
        f"{_ONE}/action",
        [
            Act(name="addTenantAccess", handler=add_access, rule="admin", body=Project, status=200),
            Act(name="removeTenantAccess", handler=remove_access, rule="admin", body=Project, status=200),
        ],
    ),
]
