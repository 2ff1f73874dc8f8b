"""Instances: create, list, show, change, delete, and the actions on them."""

from __future__ import annotations

import asyncio
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
    scope,
    text_of,
    truth,
    wake,
)
from unstuck.api.database.configured import until_configured
from unstuck.api.database.create import (
    Access,
    CreateBody,
    Volume,
    access_cidrs,
    configuration_id_of,
    flavor_id_of,
    volume_size,
)
from unstuck.api.database.views import detail, restorable, short
from unstuck.api.errors import bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Query, Reply, Route, actions, route
from unstuck.core.instance.naming import NAMINGS, POSTGRESQL, Naming
from unstuck.store import instances as store
from unstuck.store.archive_moments import moments
from unstuck.store.datastores import choose
from unstuck.store.engine import Tx
from unstuck.store.instance_configuration import set_configuration
from unstuck.store.instance_lists import ShownInstance, list_instances, show_instance
from unstuck.store.servers import Caller


class Filters(Query, frozen=True, kw_only=True):
    """``include_clustered`` changes nothing: there are no clusters. ``deleted``: what is in the trash."""

    include_clustered: str | None = None
    deleted: str | None = None


class Changes(Body, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    access: Access | UnsetType = UNSET
    protected: bool | UnsetType = UNSET
    configuration: str | UnsetType | None = UNSET
    replica_of: Any = UNSET
    slave_of: Any = UNSET
    datastore_version: str | UnsetType = UNSET


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


async def shown(call: Call) -> ShownInstance:
    """The instance that the path names."""
    key = object_id(call.params["id"], "Instance")
    return await call.store.run_read(show_instance, key, scope(call))


async def create(call: Call) -> Reply:
    """``POST /instances``."""
    who = caller(call)
    new = call.body.instance
    naming = await _naming(call, new)
    # Verifiers of passwords take a millisecond each.
    asked = await asyncio.to_thread(creating.wanted, new, region=call.app.settings.region, naming=naming)
    daily = call.new_id() if call.app.settings.database_schedules else None
    ids = store.NewIds(call.new_id(), call.new_id(), call.new_id(), secrets.token_hex(16), daily)
    made = await call.store.run(store.create_instance, asked, ids, who)
    wake(call)
    found = await call.store.run_read(show_instance, made, None)
    return Reply({"instance": detail(call, found.item, found.now)})


async def _naming(call: Call, new: creating.NewInstance) -> Naming:
    """What the datastore that it is to be of makes of names. From a backup there are none in the request."""
    if new.restore_point is not None and not new.users and not new.databases:
        return POSTGRESQL
    chosen = await call.store.run_read(choose, *creating.named_datastore(new))
    return NAMINGS[chosen.version.manager]


async def _list(call: Call, view: Any) -> Reply:
    filters: Filters = call.query
    trash = filters.deleted is not None and truth(filters.deleted, "deleted")
    found = await call.store.run_read(
        list_instances, project(call), limit=limit(call), marker=marker(call), deleted=trash
    )
    items = await asyncio.to_thread(lambda: [view(call, item, found.now) for item in found.items])
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
    can = await call.store.run_read(moments, found.item.id)
    answer = detail(call, found.item, found.now)
    answer["unstuck"] |= restorable(can)
    return Reply({"instance": answer})


async def change(call: Call) -> Reply:
    """``PUT`` and ``PATCH /instances/{id}``: name, access, protection, configuration group, version."""
    key = object_id(call.params["id"], "Instance")
    asked: Changes = call.body.instance
    for field, given in (("replica_of", asked.replica_of), ("slave_of", asked.slave_of)):
        if given is not UNSET:
            raise bad_request(f"{field}: replicas are not offered by this cloud.")
    if not isinstance(asked.name, UnsetType):
        text_of(asked.name, "instance.name")
    cidrs = None if isinstance(asked.access, UnsetType) else access_cidrs(asked.access)
    wake(call, *await call.store.run(_change, key, scope(call), caller(call), asked, cidrs))
    if not isinstance(asked.configuration, UnsetType):
        await until_configured(call, [key])
    return Reply()


def _change(
    tx: Tx, key: str, owner: str | None, who: Caller, asked: Changes, cidrs: tuple[str, ...] | None
) -> tuple[str | None, ...]:
    """All that is asked for, or nothing; returns hosts to notify. Where nothing is named, only a look."""
    show_instance(tx, key, owner)
    told: str | None = None
    if not isinstance(asked.configuration, UnsetType):  # its lock comes first
        group = configuration_id_of(asked.configuration)
        told = set_configuration(tx, key, owner, group, who)
    if not isinstance(asked.datastore_version, UnsetType):
        version = text_of(asked.datastore_version, "instance.datastore_version")
        store.upgrade_instance(tx, key, owner, version, who)
    if not isinstance(asked.protected, UnsetType):
        store.protect_instance(tx, key, owner, who, protected=asked.protected)
    if not isinstance(asked.name, UnsetType):
        store.rename_instance(tx, key, owner, asked.name, who)
    if isinstance(asked.access, UnsetType):
        return (told,)
    public = None if isinstance(asked.access.is_public, UnsetType) else asked.access.is_public
    return told, store.change_access(tx, key, owner, who, is_public=public, cidrs=cidrs)


async def delete(call: Call) -> Reply:
    """``DELETE /instances/{id}``: in every state, unless it is protected."""
    key = object_id(call.params["id"], "Instance")
    await call.store.run_read(show_instance, key, scope(call))
    kept = call.app.settings.database_trash_seconds
    host = await call.store.run(store.delete_instance, key, scope(call), caller(call), trash_seconds=kept)
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
    host: str | None
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
