"""Resize, and its two ends. One function is one transaction.

A server gets another flavor where it is: its host has its disk, and nothing migrates. Until its user has
confirmed that or taken it back, host and quota keep room for the larger of both, so that neither can fail
for want of it. A disk only ever grows: taking a resize back leaves it as large as it was made, since what
lies on it would be lost, and its room stays taken.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.core.server.data import Flavor, Former, OperationKind, Power, Server, Spec
from unstuck.core.server.status import status
from unstuck.store import quotas, readable
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow
from unstuck.store.images import get_image
from unstuck.store.rows import judge, release_room, set_room
from unstuck.store.schema.compute import servers
from unstuck.store.server_create import copy_of, flavor_for
from unstuck.store.server_lists import check_owner, within_project
from unstuck.store.servers import (
    Caller,
    change_intent,
    has_room,
    load_for_change,
    note_done,
    refuse_unless,
)

_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)


def resize_server(
    tx: Tx, server_id: str, project_id: str | None, caller: Caller, *, flavor_id: str,
    disk_config: str | None = None,
) -> str:  # fmt: skip
    """The user wants another flavor. Returns the host to notify.

    Raises :class:`Invalid` also where its host has no room, as the compute API does; nothing is changed then.
    """
    check_owner(tx, server_id, project_id)
    flavor = flavor_for(tx, flavor_id, None if caller.admin else caller.project_id)
    owner = tx.execute(sa.select(servers.c.project_id).where(servers.c.id == server_id)).scalar_one()
    quotas.lock_project(tx, owner)  # before the host, as creates do
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "resize", frozenset({"active", "stopped"}))
    if server.place is None:
        raise Conflict(f"Cannot 'resize' instance {server.id}: it was never placed on a host")
    row = _made_of(tx, server)
    _check(tx, row, flavor)
    _make_room(tx, server, row, flavor)
    former = Former(row.flavor_id, row.flavor, row.spec.flavor)
    values: dict[str, Any] = {"before": msgspec.json.encode(former).decode()}
    if disk_config is not None:
        values["disk_config"] = disk_config
    # A disk that a resize which was taken back has made larger stays so.
    size = Flavor(flavor.vcpus, flavor.ram_mb, max(flavor.disk_gb, row.spec.flavor.disk_gb))
    _write(tx, row, flavor.id, msgspec.json.encode(copy_of(flavor)).decode(), size, values)
    off = status(server, tx.now).vm_state == "stopped"
    return _again(tx, server, OperationKind.RESIZE, caller, Power.OFF if off else Power.ON)


def confirm_resize(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user keeps the new flavor: room for the former one is free."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "confirmResize", frozenset({"resized"}))
    tx.execute(
        sa.update(servers).where(servers.c.id == server_id).values(before=None, updated_wall=tx.now.wall)
    )
    release_room(tx, server_id)
    note_done(tx, server, OperationKind.CONFIRM, caller)
    judge(tx, server_id)
    return server.place.host_id if server.place else None


def revert_resize(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants the former flavor again. Also the way out of a resize that failed, or is overdue."""
    server = load_for_change(tx, server_id, caller)
    operation = server.operation
    late = (
        operation is not None
        and operation.kind is OperationKind.RESIZE
        and tx.now.lease >= operation.deadline
    )
    failed = operation is None and server.before is not None and status(server, tx.now).vm_state == "error"
    if server.deleted or not (late or failed):
        refuse_unless(server, tx, "revertResize", frozenset({"resized"}))
    if server.before is None or server.before is readable.FORMER:
        raise Conflict(f"Cannot 'revertResize' instance {server_id}: its former flavor is not known any more")
    row = _made_of(tx, server)
    former = server.before
    size = Flavor(former.size.vcpus, former.size.ram_mb, max(former.size.disk_gb, row.spec.flavor.disk_gb))
    _write(tx, row, former.flavor_id, former.flavor, size, {"before": None})
    return _again(tx, server, OperationKind.REVERT, caller, server.power)


class _Row(msgspec.Struct, frozen=True):
    id: str
    spec: Spec
    flavor: str
    flavor_id: str
    image_id: str
    project_id: str


def _made_of(tx: Tx, server: Server) -> _Row:
    row = tx.execute(
        sa.select(
            servers.c.spec, servers.c.flavor, servers.c.flavor_id, servers.c.image_id, servers.c.project_id
        ).where(servers.c.id == server.id)
    ).one()
    spec = readable.read(_spec, row.spec, None)
    if spec is None:
        raise Conflict(f"Instance {server.id}: its record cannot be read in the store; delete it.")
    if spec.data:
        raise Conflict(f"Instance {server.id} is a database's: resize the database instance.")
    return _Row(server.id, spec, row.flavor, row.flavor_id, row.image_id, row.project_id)


class _Shown(msgspec.Struct, frozen=True):
    disk: int


_shown = msgspec.json.Decoder(_Shown)


def _check(tx: Tx, row: _Row, flavor: FlavorRow) -> None:
    if flavor.id == row.flavor_id:
        raise Invalid("flavorRef: When resizing, instances must change flavor!")
    disk = readable.read(_shown, row.flavor, _Shown(row.spec.flavor.disk_gb)).disk
    if flavor.disk_gb < disk:
        what = "a disk as large as the image" if flavor.disk_gb == 0 else f"{flavor.disk_gb} GiB of disk"
        raise Invalid(
            f"flavorRef: Resize error: Unable to resize disk down. The server has {disk} GiB, and flavor "
            f"{flavor.id} has {what}."
        )
    try:
        image = get_image(tx, row.image_id, project_id=None, admin=True)
    except NotFound:
        return  # what a deleted image needs of memory nobody knows any more
    if flavor.ram_mb < image.min_ram:
        raise Invalid(
            f"flavorRef: Flavor's memory is too small for requested image: {flavor.ram_mb} MiB, "
            f"the image needs {image.min_ram}."
        )


def _make_room(tx: Tx, server: Server, row: _Row, flavor: FlavorRow) -> None:
    """Room for the larger of both flavors, in quota and host."""
    assert server.place is not None
    had = row.spec.flavor
    quotas.check_growth(tx, row.project_id, vcpus=flavor.vcpus - had.vcpus, ram_mb=flavor.ram_mb - had.ram_mb)
    both = Flavor(
        max(had.vcpus, flavor.vcpus), max(had.ram_mb, flavor.ram_mb), max(had.disk_gb, flavor.disk_gb)
    )
    if not has_room(tx, server.place.host_id, had, both):
        name = server.host.hostname if server.host else server.place.host_id
        raise Invalid(
            f"No valid host was found. Host {name}, which has the server's disk, has no room for flavor "
            f"{flavor.id}, and servers are not moved between hosts here."
        )
    set_room(tx, server.id, both)


def _write(tx: Tx, row: _Row, flavor_id: str, flavor: str, size: Flavor, values: dict[str, Any]) -> None:
    spec = msgspec.structs.replace(row.spec, flavor=size)
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == row.id)
        .values(flavor_id=flavor_id, flavor=flavor, spec=msgspec.json.encode(spec).decode(), **values)
    )


def _again(tx: Tx, server: Server, kind: OperationKind, caller: Caller, power: Power) -> str:
    """A guest that runs is asked to power off, and started with what is wanted now."""
    assert server.place is not None
    edge = server.edge if power is Power.OFF else server.intent + 1
    change_intent(tx, server, kind, caller, power=power, edge=edge, soft=power is not Power.OFF)
    return server.place.host_id


confirm_own = within_project(confirm_resize)
revert_own = within_project(revert_resize)
