"""Instances: create, list, show, change, delete, and the actions on them."""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from unstuck.api.database import create as creating
from unstuck.api.database.common import (
    BASE,
    caller,
    invalid,
    limit,
    marker,
    object_id,
    page,
    project,
    refuse_given,
    scope,
    text_of,
    truth,
    wake,
)
from unstuck.api.database.create import Access, CreateBody, Volume, access_cidrs, flavor_id_of, volume_size
from unstuck.api.database.views import detail, short
from unstuck.api.errors import bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Query, Reply, Route, actions, route
from unstuck.store import instances as store
from unstuck.store.instance_lists import Found, InstanceFilter, Shown, list_instances, show_instance


class Filters(Query, frozen=True, kw_only=True):
    """``include_clustered`` changes nothing: there are no clusters. ``deleted``: what is in the trash."""

    include_clustered: str | None = None
    deleted: str | None = None


class Changes(Body, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    access: Access | UnsetType = UNSET
    protected: bool | UnsetType = UNSET
    configuration: Any = UNSET
    replica_of: Any = UNSET
    slave_of: Any = UNSET
    datastore_version: Any = UNSET


class ChangeBody(Body, frozen=True, kw_only=True):
    instance: Changes


class Nothing(Body, frozen=True, kw_only=True):
    """The empty object that an action is given."""


class Resize(Body, frozen=True, kw_only=True):
    """One of the two."""

    flavor_ref: str | int | UnsetType = msgspec.field(name="flavorRef", default=UNSET)
    volume: Volume | UnsetType = UNSET


class Reset(Body, frozen=True, kw_only=True):
    force_delete: Any = UNSET


class Protect(Body, frozen=True, kw_only=True):
    protected: bool = True


async def shown(call: Call, *, deleted: bool = False) -> Shown:
    """The instance that the path names."""
    key = object_id(call.params["id"], "Instance")
    return await call.store.run_read(show_instance, key, scope(call), deleted=deleted)


async def create(call: Call) -> Reply:
    """``POST /instances``."""
    who = caller(call)
    asked = creating.wanted(call.body.instance, region=call.app.settings.region)
    ids = store.NewIds(call.new_id(), call.new_id(), call.new_id(), secrets.token_hex(16))
    made = await call.store.run(store.create_instance, asked, ids, who)
    wake(call)
    found = await call.store.run_read(show_instance, made, None)
    return Reply({"instance": detail(call, found.item, found.now)})


async def find(call: Call, wanted: InstanceFilter) -> Found:
    return await call.store.run_read(list_instances, wanted)


async def _list(call: Call, view: Any) -> Reply:
    filters: Filters = call.query
    found = await find(
        call,
        InstanceFilter(
            project_id=project(call),
            limit=limit(call),
            marker=marker(call),
            deleted=filters.deleted is not None and truth(filters.deleted, "deleted"),
        ),
    )
    items = [view(call, item, found.now) for item in found.items]
    return page(call, "instances", items, found.items[-1].id if found.more else None)


async def list_short(call: Call) -> Reply:
    """``GET /instances``."""
    return await _list(call, short)


async def list_detail(call: Call) -> Reply:
    """``GET /instances/detail``."""
    return await _list(call, detail)


async def show(call: Call) -> Reply:
    """``GET /instances/{id}``."""
    found = await shown(call)
    return Reply({"instance": detail(call, found.item, found.now)})


async def change(call: Call) -> Reply:
    """``PUT`` and ``PATCH /instances/{id}``: name, access, protection."""
    key = object_id(call.params["id"], "Instance")
    asked: Changes = call.body.instance
    refuse_given(asked.configuration, "configuration", "configuration groups are not offered by this cloud.")
    refuse_given(asked.datastore_version, "datastore_version", "upgrades are not offered by this cloud.")
    for name, given in (("replica_of", asked.replica_of), ("slave_of", asked.slave_of)):
        if given is not UNSET:
            raise bad_request(f"{name}: replicas are not offered by this cloud.")
    who, owner = caller(call), scope(call)
    name = None if isinstance(asked.name, UnsetType) else text_of(asked.name, "instance.name")
    access = None if isinstance(asked.access, UnsetType) else asked.access
    cidrs = None if access is None else access_cidrs(access)
    await call.store.run_read(show_instance, key, owner)  # nothing named is no change, of what is there
    if not isinstance(asked.protected, UnsetType):
        await call.store.run(store.protect_instance, key, owner, who, protected=asked.protected)
    if name is not None:
        await call.store.run(store.rename_instance, key, owner, name, who)
    if access is not None:
        public = None if isinstance(access.is_public, UnsetType) else access.is_public
        host = await call.store.run(store.change_access, key, owner, who, is_public=public, cidrs=cidrs)
        wake(call, host)
    return Reply()


async def delete(call: Call) -> Reply:
    """``DELETE /instances/{id}``: in every state, unless it is protected."""
    key = object_id(call.params["id"], "Instance")
    await call.store.run_read(show_instance, key, scope(call))
    host = await call.store.run(store.delete_instance, key, scope(call), caller(call))
    wake(call, host)
    return Reply()


async def restart(call: Call) -> Reply:
    """Action ``restart``, and the operator's ``reboot``."""
    key = object_id(call.params["id"], "Instance")
    wake(call, await call.store.run(store.restart_instance, key, scope(call), caller(call)))
    return Reply()


async def resize(call: Call) -> Reply:
    """Action ``resize``: another flavor, or a larger volume."""
    key = object_id(call.params["id"], "Instance")
    asked: Resize = call.body
    if isinstance(asked.flavor_ref, UnsetType) == isinstance(asked.volume, UnsetType):
        invalid("resize", "it names either a flavorRef or a volume.")
    owner, who = scope(call), caller(call)
    if not isinstance(asked.volume, UnsetType):
        size = volume_size(asked.volume)
        host = await call.store.run(store.resize_volume, key, owner, size, who)
    else:
        assert not isinstance(asked.flavor_ref, UnsetType)
        flavor = flavor_id_of(asked.flavor_ref)
        host = await call.store.run(store.resize_instance, key, owner, flavor, who)
    wake(call, host)
    return Reply()


async def reset_status(call: Call) -> Reply:
    """Action ``reset_status``: writes no status, but has everybody look anew; or deletes for good."""
    key = object_id(call.params["id"], "Instance")
    asked: Reset | Nothing | None = call.body
    owner, who = scope(call), caller(call)
    host = await call.store.run(store.reset_status, key, owner, who)
    if isinstance(asked, Reset) and asked.force_delete not in (UNSET, None, False):
        host = await call.store.run(store.delete_instance, key, owner, who, force=True)
    wake(call, host)
    return Reply()


async def protect(call: Call) -> Reply:
    """Ours: action ``protect``: a delete is refused until it is lifted."""
    key = object_id(call.params["id"], "Instance")
    await call.store.run(
        store.protect_instance, key, scope(call), caller(call), protected=call.body.protected
    )
    return Reply()


async def undelete(call: Call) -> Reply:
    """Ours: action ``undelete``: out of the trash, with its data."""
    key = object_id(call.params["id"], "Instance")
    wake(call, await call.store.run(store.undelete_instance, key, scope(call), caller(call)))
    return Reply()


_ALL: Final = f"{BASE}/instances"
_ONE: Final = f"{_ALL}/{{id}}"

ROUTES: list[Route] = [
    route("GET", _ALL, list_short, "reader", query=Filters),
    route("GET", f"{_ALL}/detail", list_detail, "reader", query=Filters),
    route("POST", _ALL, create, "member", body=CreateBody),
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, change, "member", body=ChangeBody, status=202),
    route("PATCH", _ONE, change, "member", body=ChangeBody, status=202),
    route("DELETE", _ONE, delete, "member", status=202),
    *actions(
        f"{_ONE}/action",
        [
            Act(name="restart", handler=restart, rule="member", body=Nothing | None),
            Act(name="resize", handler=resize, rule="member", body=Resize),
            Act(name="reset_status", handler=reset_status, rule="member", body=Reset | None),
            Act(name="protect", handler=protect, rule="member", body=Protect),
            Act(name="undelete", handler=undelete, rule="member", body=Nothing | None),
        ],
    ),
]
