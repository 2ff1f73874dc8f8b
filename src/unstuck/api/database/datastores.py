"""Datastores and their versions; for administrators, what versions there are."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, UnsetType

from unstuck.api.database.common import (
    BASE,
    base,
    invalid,
    limit,
    links,
    marker,
    object_id,
    page,
    project,
    refuse_given,
    text_of,
)
from unstuck.api.database.create import VOLUME_TYPE
from unstuck.api.database.flavors import flavor_view, usable_flavors
from unstuck.api.errors import bad_request
from unstuck.api.pages import cut
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.store import datastores as store
from unstuck.store.datastores import Chosen, Datastore, Version
from unstuck.store.engine import Tx
from unstuck.store.images import image_for_boot

_TAGS: Final = "images are named by their id here."
_TYPE_ID: Final = "7d0b7a3c-4c55-4c37-8a2e-6f8f6f1c9b20"


class NewVersion(Body, frozen=True, kw_only=True):
    name: str
    datastore_name: str
    datastore_manager: str
    image: str | None = None
    image_tags: list[str] | None = None
    packages: list[str] | str | None = None
    active: bool = True
    default: bool = False
    version: str | None = None
    registry_ext: str | None = None
    repl_strategy: str | None = None


class CreateBody(Body, frozen=True, kw_only=True):
    version: NewVersion


class Changes(Body, frozen=True, kw_only=True):
    """What ``PATCH`` changes; unlike ``POST`` it stands in no further object."""

    name: str | UnsetType = UNSET
    datastore_manager: str | None = None
    image: str | UnsetType = UNSET
    image_tags: list[str] | None = None
    packages: list[str] | str | None = None
    active: bool | UnsetType = UNSET
    default: bool | UnsetType = UNSET
    registry_ext: str | None = None
    repl_strategy: str | None = None


def _version(call: Call, found: Datastore, version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": version.id,
        "name": version.name,
        "version": version.version,
        "links": links(call, f"datastores/{found.id}/versions", version.id),
        "datastore": found.id,
    }
    if call.is_admin:
        shown |= {
            "active": version.active, "image": version.image_id, "image_tags": [], "packages": "",
            "registry_ext": None, "repl_strategy": None,
        }  # fmt: skip
    return shown


def _datastore(call: Call, found: Datastore) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": found.id,
        "name": found.name,
        "links": links(call, "datastores", found.id),
        "versions": [_version(call, found, version) for version in found.versions],
    }
    if any(version.id == found.default_version_id for version in found.versions):
        shown["default_version"] = found.default_version_id
    return shown


def _paged(call: Call, key: str, shown: list[dict[str, Any]]) -> Reply:
    found = cut(shown, limit(call), marker(call), key=lambda item: str(item["id"]))
    if found is None:
        raise bad_request("Invalid input for query parameter marker: there is no such item.")
    items, more = found
    return page(call, key, items, items[-1]["id"] if more and items else None)


async def list_datastores(call: Call) -> Reply:
    """``GET /datastores``."""
    project(call)
    found = await call.store.run_read(store.list_datastores)
    return _paged(call, "datastores", [_datastore(call, item) for item in found])


async def show_datastore(call: Call) -> Reply:
    """``GET /datastores/{ds}``: by id or name."""
    return Reply({"datastore": _datastore(call, await _found(call))})


async def delete_datastore(call: Call) -> Reply:
    """``DELETE /datastores/{ds}``: refused while it has versions."""
    project(call)
    await call.store.run(store.delete_datastore, call.params["ds"])
    return Reply()


async def _found(call: Call) -> Datastore:
    project(call)
    return await call.store.run_read(store.get_datastore, call.params["ds"])


async def _chosen(call: Call) -> Chosen:
    project(call)
    return await call.store.run_read(store.get_version, call.params["v"], call.params["ds"])


async def list_versions(call: Call) -> Reply:
    """``GET /datastores/{ds}/versions``."""
    found = await _found(call)
    return _paged(call, "versions", [_version(call, found, version) for version in found.versions])


async def show_version(call: Call) -> Reply:
    """``GET /datastores/{ds}/versions/{v}``: by id or name."""
    found = await _chosen(call)
    return Reply({"version": _version(call, found.datastore, found.version)})


async def show_version_by_id(call: Call) -> Reply:
    """``GET /datastores/versions/{v}``."""
    project(call)
    key = object_id(call.params["v"], "Datastore version")
    found = await call.store.run_read(store.get_version, key)
    return Reply({"version": _version(call, found.datastore, found.version)})


async def list_flavors(call: Call) -> Reply:
    """``GET /datastores/{ds}/versions/{v}/flavors``: all there are."""
    await _chosen(call)
    return Reply({"flavors": [flavor_view(call, flavor) for flavor in await usable_flavors(call)]})


async def list_volume_types(call: Call) -> Reply:
    """``GET /datastores/{ds}/versions/{v}/volume-types``: there is one."""
    await _chosen(call)
    return Reply(
        {"volume_types": [{"id": _TYPE_ID, "name": VOLUME_TYPE, "is_public": True, "description": ""}]}
    )


def _managed(found: Chosen) -> dict[str, Any]:
    version = found.version
    return {
        "id": version.id,
        "name": version.name,
        "datastore_id": found.datastore.id,
        "datastore_name": found.datastore.name,
        "datastore_manager": version.manager,
        "image": version.image_id,
        "image_tags": [],
        "packages": [],
        "active": version.active,
        "default": version.id == found.datastore.default_version_id,
        "version": version.version,
        "registry_ext": None,
        "repl_strategy": None,
    }


async def list_managed(call: Call) -> Reply:
    """``GET /mgmt/datastore-versions``: also those that nobody can choose."""
    project(call)
    found = await call.store.run_read(store.list_datastores, inactive=True)
    shown = [_managed(Chosen(item, version)) for item in found for version in item.versions]
    return _paged(call, "versions", shown)


async def show_managed(call: Call) -> Reply:
    """``GET /mgmt/datastore-versions/{v}``."""
    return Reply({"version": _managed(await _managed_one(call))})


async def _managed_one(call: Call) -> Chosen:
    project(call)
    key = object_id(call.params["v"], "Datastore version")
    return await call.store.run_read(store.get_version, key, inactive=True)


async def create(call: Call) -> Reply:
    """``POST /mgmt/datastore-versions``: makes the datastore, too, where there is none of that name.

    Without a body, as Trove: the stock client takes any for an error. The address is in a header.
    """
    project(call)
    new: NewVersion = call.body.version
    _refuse_what_is_not_there(new)
    name = text_of(new.name, "version.name")
    made = await call.store.run(
        store.register_version,
        version_id=call.new_id(),
        datastore_id=call.new_id(),
        datastore=text_of(new.datastore_name, "version.datastore_name"),
        name=name,
        manager=new.datastore_manager,
        version=text_of(new.version or name, "version.version", most=64),
        image_id=await _image(call, new.image, "version.image"),
        active=new.active,
        default=new.default,
    )
    return Reply(headers={"location": f"{base(call)}/mgmt/datastore-versions/{made.version.id}"})


async def change(call: Call) -> Reply:
    """``PATCH /mgmt/datastore-versions/{v}``."""
    found = await _managed_one(call)
    asked: Changes = call.body
    _refuse_what_is_not_there(asked)
    if asked.datastore_manager not in (None, found.version.manager):
        invalid("datastore_manager", "it cannot be changed; register another version.")
    changes: dict[str, Any] = {}
    if not isinstance(asked.name, UnsetType):
        changes["name"] = text_of(asked.name, "name")
    if not isinstance(asked.image, UnsetType):
        changes["image_id"] = await _image(call, asked.image, "image")
    if not isinstance(asked.active, UnsetType):
        changes["active"] = asked.active
    if asked.default is False and found.version.id == found.datastore.default_version_id:
        invalid("default", "make another version the default instead.")
    await call.store.run(_update, found.version.id, asked.default is True, changes)
    return Reply()


def _update(tx: Tx, version_id: str, default: bool, changes: dict[str, Any]) -> None:
    store.update_version(tx, version_id, default=default, **changes)


async def delete(call: Call) -> Reply:
    """``DELETE /mgmt/datastore-versions/{v}``: refused while anything was made of it."""
    found = await _managed_one(call)
    await call.store.run(store.delete_version, found.version.id)
    return Reply()


def _refuse_what_is_not_there(asked: NewVersion | Changes) -> None:
    refuse_given(asked.image_tags, "image_tags", _TAGS)
    refuse_given(asked.packages, "packages", "an image has all that it needs.")
    refuse_given(asked.registry_ext, "registry_ext", "managers of one's own are not offered by this cloud.")
    refuse_given(asked.repl_strategy, "repl_strategy", "replicas are not offered by this cloud.")


async def _image(call: Call, image_id: str | None, field: str) -> str | None:
    """An image's id, after a look that it is there."""
    if image_id in (None, ""):
        return None
    try:
        found = await call.store.run_read(image_for_boot, image_id, None, admin=True)
    except NotFound:
        invalid(field, f"there is no image {image_id[:60]!r}.")
    return str(found.id)


_STORES: Final = f"{BASE}/datastores"
_ONE: Final = f"{_STORES}/{{ds}}/versions/{{v}}"
_MGMT: Final = f"{BASE}/mgmt/datastore-versions"

ROUTES: list[Route] = [
    route("GET", _STORES, list_datastores, "reader"),
    route("GET", f"{_STORES}/{{ds}}", show_datastore, "reader"),
    route("DELETE", f"{_STORES}/{{ds}}", delete_datastore, "admin", status=202),
    route("GET", f"{_STORES}/{{ds}}/versions", list_versions, "reader"),
    route("GET", f"{_STORES}/versions/{{v}}", show_version_by_id, "reader"),
    route("GET", _ONE, show_version, "reader"),
    route("GET", f"{_ONE}/flavors", list_flavors, "reader"),
    route("GET", f"{_ONE}/volume-types", list_volume_types, "reader"),
    route("GET", _MGMT, list_managed, "admin"),
    route("POST", _MGMT, create, "admin", body=CreateBody, status=202),
    route("GET", f"{_MGMT}/{{v}}", show_managed, "admin"),
    route("PATCH", f"{_MGMT}/{{v}}", change, "admin", body=Changes, status=202),
    route("DELETE", f"{_MGMT}/{{v}}", delete, "admin", status=202),
]
