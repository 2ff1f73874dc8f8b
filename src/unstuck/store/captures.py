"""Images of servers' disks. One function is one transaction.

A request adds the image and wants it of the server, in one step; from then on the server's open operation,
with its deadline, is the work item. It ends with the image's data, with the host giving up, at the deadline,
or with the delete of server or image. An image that got no data is removed: none is "saving" for ever.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, NotFound
from unstuck.core.image import Data, Image
from unstuck.core.server.control import Outcome, capture_is_late
from unstuck.core.server.data import Fence, ImageRole, OperationKind, Server, Spec
from unstuck.store import images as rows
from unstuck.store import quotas
from unstuck.store.agents import Stale, check_incarnation, placement_state
from unstuck.store.engine import Tx
from unstuck.store.rows import close_operation, drop_capture, judge, load_server, lock_host, made_of
from unstuck.store.schema.compute import operations, servers
from unstuck.store.schema.images import images
from unstuck.store.server_lists import check_owner
from unstuck.store.servers import (
    OPERATION_DEADLINE,
    Caller,
    change_intent,
    load_for_change,
    load_locked,
    refuse_unless,
)

PATIENCE = OPERATION_DEADLINE[OperationKind.IMAGE]
"""Seconds without a byte after which an image is given up."""
_PER_GIB = 20.0
"""Seconds that a slow disk takes to copy a GiB."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the new image's id, its name, and the properties that its maker gave it.

    ``most``: images that a project may have.
    """

    image_id: str
    name: str
    properties: dict[str, str]
    most: int


def create_image_of(
    tx: Tx, server_id: str, project_id: str | None, asked: Capture, caller: Caller
) -> str | None:
    """The user wants an image of the server's disk, as it is in one moment. Returns the host to notify."""
    check_owner(tx, server_id, project_id)
    quotas.lock_project(tx, caller.project_id)  # before host and server: the image's row takes it, too
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "createImage", frozenset({"active", "stopped", "paused", "suspended"}))
    spec = made_of(tx, server_id)
    if server.place is None or not server.disk_recorded:
        raise Conflict(f"Cannot 'createImage' instance {server_id}: it has no disk yet")
    if spec is None:
        raise Conflict(f"Instance {server_id}: its record cannot be read in the store; delete it.")
    if spec.data:
        raise Conflict(f"Instance {server_id} is a database's, whose volume gives no image: back it up.")
    quotas.check_metadata_count(tx, caller.project_id, len(asked.properties))
    rows.create_image(tx, _image(tx, server_id, spec, asked, caller), most=asked.most)
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(capture=asked.image_id))
    change_intent(tx, server, OperationKind.IMAGE, caller, power=server.power, edge=server.edge, soft=False)
    _postpone(tx, server_id, PATIENCE + _PER_GIB * spec.flavor.disk_gb)
    judge(tx, server_id)
    return server.place.host_id


def _image(tx: Tx, server_id: str, spec: Spec, asked: Capture, caller: Caller) -> Image:
    base = tx.execute(sa.select(servers.c.image_id).where(servers.c.id == server_id)).scalar_one()
    boots = {f"{image.role.value}_id": image.id for image in spec.images if image.role is not ImageRole.DISK}
    try:
        least = rows.get_image(tx, base, project_id=None, admin=True).min_ram
    except NotFound:
        least = 0
    return Image(
        id=asked.image_id, project_id=caller.project_id, created=0.0, updated=0.0, name=asked.name,
        visibility="private", disk_format="qcow2", container_format="bare", min_disk=spec.flavor.disk_gb,
        min_ram=least, source_server=server_id,
        properties={
            **asked.properties, **boots, "image_type": "snapshot", "instance_uuid": server_id,
            "user_id": caller.user_id, "base_image_ref": base,
        },
    )  # fmt: skip


def _postpone(tx: Tx, server_id: str, seconds: float) -> None:
    """The deadline lies so far ahead from now on, and never nearer than before."""
    tx.execute(
        sa.update(operations)
        .where(
            operations.c.resource_id == server_id,
            operations.c.state == "open",
            operations.c.kind == OperationKind.IMAGE.value,
            operations.c.deadline < tx.now.lease + seconds,
        )
        .values(deadline=tx.now.lease + seconds)
    )


def claim_capture(
    tx: Tx, host_id: str, incarnation: int, server_id: str, fence: Fence, image_id: str, *,
    nonce: str, seconds: float,
) -> None:  # fmt: skip
    """The host begins to deliver. What an earlier agent of it has begun is lost then.

    Raises :class:`Stale` where nobody wants the image of it any more, and :class:`Superseded`.
    """
    check_incarnation(tx, host_id, incarnation, hold=True)
    _wanted(tx, host_id, server_id, fence, image_id)
    rows.hold_upload(tx, image_id, nonce=nonce, seconds=seconds)
    _postpone(tx, server_id, PATIENCE)


def renew_capture(tx: Tx, server_id: str, image_id: str, *, nonce: str, seconds: float) -> bool:
    """Bytes arrive: neither lease nor deadline runs out. False where the delivery has lost the image."""
    load_server(tx, server_id, lock=True)  # before the image: whoever ends this has them in that order
    if not rows.renew_upload(tx, image_id, nonce=nonce, seconds=seconds):
        return False
    _postpone(tx, server_id, PATIENCE)
    return True


def finish_capture(
    tx: Tx, host_id: str, server_id: str, fence: Fence, image_id: str, *, nonce: str, data: Data
) -> bool:
    """The image is active, and with that the request is done. False where the delivery has lost the image."""
    lock_host(tx, host_id)
    server = _wanted(tx, host_id, server_id, fence, image_id)
    if not rows.finish_upload(tx, image_id, nonce=nonce, disk_format="qcow2", data=data):
        return False
    _end(tx, server, Outcome("done", ""))
    return True


def _wanted(tx: Tx, host_id: str, server_id: str, fence: Fence, image_id: str) -> Server:
    if placement_state(tx, host_id, server_id, fence) != "live":
        raise Stale(f"server {server_id} is to be removed from host {host_id}")
    loaded = load_server(tx, server_id, lock=True)
    if loaded is None or loaded.server.capture != image_id:
        raise Stale(f"image {image_id} is not wanted of server {server_id} any more")
    return loaded.server


def end_capture(tx: Tx, server_id: str) -> str | None:
    """Give up an image that has not come in time. Returns the host to notify."""
    try:
        server = load_locked(tx, server_id)
    except NotFound:
        return None
    if not capture_is_late(server, tx.now):
        judge(tx, server_id)
        return None
    seen = server.seen
    why = f": {seen.trouble.reason}" if seen is not None and seen.trouble is not None else ""
    return _end(tx, server, Outcome("failed", f"no image was made in time{why}"))


def _end(tx: Tx, server: Server, outcome: Outcome) -> str | None:
    if server.operation is not None and server.operation.kind is OperationKind.IMAGE:
        close_operation(tx, server.operation.id, outcome)
    drop_capture(tx, server)
    judge(tx, server.id)
    return server.place.host_id if server.place else None


def delete_image(
    tx: Tx, image_id: str, *, project_id: str | None, admin: bool = False
) -> tuple[str | None, str | None]:
    """Delete an image, in whatever state; returns the file that nobody needs any more, and the host to wake.

    One that is being made of a server's disk is not made any more.
    """
    source = tx.execute(sa.select(images.c.source_server).where(images.c.id == image_id)).scalar()
    server = None if source is None else _maker(tx, source, image_id)
    name = rows.delete_image(tx, image_id, project_id=project_id, admin=admin)
    if server is None:
        return name, None
    return name, _end(tx, server, Outcome("superseded", "the image was deleted"))


def _maker(tx: Tx, server_id: str, image_id: str) -> Server | None:
    """The server of which the image is wanted, locked before the image: in that order everywhere."""
    try:
        server = load_locked(tx, server_id)
    except NotFound:
        return None
    return server if server.capture == image_id else None
