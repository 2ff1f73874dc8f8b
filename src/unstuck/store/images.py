"""Images: rows, uploads under a lease, and which files are in use. One function is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge
from unstuck.core.image import BootImage, Data, Image, for_boot, status, uploading, visible_to
from unstuck.store import quotas, readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.images import image_members, images

# Compiled once: every create of a server looks up to three images up.
_LIVE = sa.select(images).where(images.c.id == sa.bindparam("image"), images.c.deleted_wall.is_(None))
_MEMBER = Prepared(
    sa.select(image_members.c.status).where(
        image_members.c.image_id == sa.bindparam("image"),
        image_members.c.member_id == sa.bindparam("project"),
    )
)
_ONE, _ONE_LOCKED = Prepared(_LIVE), Prepared(_LIVE.with_for_update())


_tags = msgspec.json.Decoder(tuple[str, ...])
_properties = msgspec.json.Decoder(dict[str, str])
_UNREADABLE: dict[str, str] = {}


def _image(row: Any) -> Image:
    data = None
    if row.data_name is not None:
        data = Data(
            name=row.data_name, size=row.size, virtual_size=row.virtual_size,
            checksum=row.checksum, sha512=row.sha512,
        )  # fmt: skip
    return Image(
        id=row.id, project_id=row.project_id, name=row.name, created=row.created, updated=row.updated,
        visibility=row.visibility, protected=row.protected, os_hidden=row.os_hidden,
        disk_format=row.disk_format, container_format=row.container_format,
        min_disk=row.min_disk, min_ram=row.min_ram,
        tags=readable.read(_tags, row.tags, ()),
        properties=readable.read(_properties, row.properties, _UNREADABLE),
        data=data, upload_nonce=row.upload_nonce, upload_until=row.upload_until,
        deactivated=row.deactivated, deleted_wall=row.deleted_wall, source_server=row.source_server,
    )  # fmt: skip


def _described(image: Image) -> dict[str, Any]:
    """The columns that users may change; the others belong to uploads and deletes."""
    return {
        "name": image.name, "visibility": image.visibility, "protected": image.protected,
        "os_hidden": image.os_hidden, "disk_format": image.disk_format,
        "container_format": image.container_format, "min_disk": image.min_disk, "min_ram": image.min_ram,
        "tags": msgspec.json.encode(image.tags).decode(),
        "properties": msgspec.json.encode(image.properties).decode(),
        "project_id": image.project_id,
    }  # fmt: skip


def create_image(tx: Tx, image: Image, *, most: int) -> Image:
    """Add an image without data; refused when the id was ever used, or the project has ``most`` images."""
    if tx.execute(sa.select(images.c.id).where(images.c.id == image.id)).first() is not None:
        raise Conflict(f"Image ID {image.id} already exists!")
    if not quotas.lock_project(tx, image.project_id):
        raise Forbidden(f"Project {image.project_id} is not there any more.")
    live = sa.select(sa.func.count()).where(
        images.c.project_id == image.project_id, images.c.deleted_wall.is_(None)
    )
    if tx.execute(live).scalar_one() >= most:
        raise TooLarge(f"The project has {most} images already; delete some first.")
    made = msgspec.structs.replace(image, created=tx.now.wall, updated=tx.now.wall)
    values = {
        "id": made.id, "created": made.created, "updated": made.updated,
        "source_server": made.source_server, **_described(made),
    }  # fmt: skip
    tx.execute(sa.insert(images).values(values))
    return made


def get_image(
    tx: Tx, image_id: str, *, project_id: str | None, admin: bool = False, lock: bool = False
) -> Image:
    """An image that the project may see; 404 otherwise. ``lock``: until the transaction's end."""
    row = (_ONE_LOCKED if lock else _ONE).first(tx, image=image_id)
    image = None if row is None else _image(row)
    if image is not None and visible_to(image, project_id, admin=admin):
        return image
    if image is None or not visible_to(
        image, project_id, admin=False, member=_is_member(tx, image_id, project_id)
    ):
        raise NotFound(f"No image found with ID {image_id}")
    return image


def _is_member(tx: Tx, image_id: str, project_id: str | None) -> bool:
    return _MEMBER.first(tx, image=image_id, project=project_id) is not None


def own_image(tx: Tx, image_id: str, *, project_id: str | None, admin: bool = False) -> Image:
    """An image that the project may change: 404 when it may not see it, 403 when it may only see it."""
    image = get_image(tx, image_id, project_id=project_id, admin=admin, lock=True)
    if image.project_id != project_id and not admin:
        raise Forbidden("You are not permitted to change this image: it belongs to another project.")
    return image


def list_images(
    tx: Tx, *, project_id: str | None, admin: bool, ids: Collection[str] | None = None,
    names: Collection[str] | None = None, member_status: str = "accepted",
) -> tuple[list[Image], float]:  # fmt: skip
    """The images that the project may see, newest first, and the lease time that statuses depend on.

    ``member_status``: which of the images that others share with it (``all``: any).
    """
    query = sa.select(images).where(images.c.deleted_wall.is_(None))
    if not admin:
        query = query.where(
            sa.or_(
                images.c.project_id == project_id,
                images.c.visibility.in_(("public", "community")),
                sa.and_(
                    images.c.visibility == "shared", images.c.id.in_(_shared_with(project_id, member_status))
                ),
            )
        )
    if ids is not None:
        query = query.where(images.c.id.in_(list(ids)))
    if names is not None:
        query = query.where(images.c.name.in_(list(names)))
    rows = tx.execute(query.order_by(images.c.created.desc(), images.c.id.desc()))
    return [_image(row) for row in rows], tx.now.lease


def _shared_with(project_id: str | None, member_status: str) -> sa.Select[Any]:
    query = sa.select(image_members.c.image_id).where(image_members.c.member_id == project_id)
    return query if member_status == "all" else query.where(image_members.c.status == member_status)


def with_lease(tx: Tx, image_id: str, *, project_id: str | None, admin: bool = False) -> tuple[Image, float]:
    """:func:`get_image`, and the lease time that its status depends on."""
    return get_image(tx, image_id, project_id=project_id, admin=admin), tx.now.lease


def update_image(
    tx: Tx, image_id: str, change: Callable[[Image], Image], *, project_id: str | None, admin: bool = False
) -> tuple[Image, float]:
    """Change what describes an image."""
    before = own_image(tx, image_id, project_id=project_id, admin=admin)
    after = change(before)
    busy = before.data is not None or uploading(before, tx.now.lease)
    if busy and (after.disk_format, after.container_format) != (before.disk_format, before.container_format):
        raise Forbidden("disk_format and container_format can be changed only while the image is queued.")
    after = msgspec.structs.replace(after, updated=tx.now.wall)
    tx.execute(
        sa.update(images).where(images.c.id == image_id).values(updated=after.updated, **_described(after))
    )
    return after, tx.now.lease


def delete_image(tx: Tx, image_id: str, *, project_id: str | None, admin: bool = False) -> str | None:
    """Delete an image, in whatever state; returns the name of the file that nobody needs any more."""
    image = own_image(tx, image_id, project_id=project_id, admin=admin)
    if image.protected:
        raise Forbidden(f"Image {image_id} is protected and cannot be deleted: set protected to false first.")
    tx.execute(
        sa.update(images)
        .where(images.c.id == image_id)
        .values(
            deleted_wall=tx.now.wall, data_name=None, size=None, virtual_size=None, checksum=None,
            sha512=None, deactivated=False, upload_nonce=None, upload_since=None, upload_until=None,
            properties="{}", tags="[]",
        )
    )  # fmt: skip
    tx.execute(sa.delete(image_members).where(image_members.c.image_id == image_id))
    return image.data.name if image.data else None


def set_active(tx: Tx, image_id: str, *, active: bool, project_id: str | None, admin: bool = False) -> None:
    """Deactivate an image, or reactivate it; again is no error. 403 for one without data."""
    image = own_image(tx, image_id, project_id=project_id, admin=admin)
    if image.data is None:
        what = "reactivate" if active else "deactivate"
        raise Forbidden(f"Not allowed to {what} image in status '{status(image, tx.now.lease)}'")
    if image.deactivated == active:
        tx.execute(
            sa.update(images)
            .where(images.c.id == image_id)
            .values(deactivated=not active, updated=tx.now.wall)
        )


def claim_upload(
    tx: Tx, image_id: str, *, project_id: str | None, admin: bool, nonce: str, seconds: float
) -> Image:
    """Take an image for an upload: 409 when it has data, or while another upload holds it."""
    image = own_image(tx, image_id, project_id=project_id, admin=admin)
    if image.data is not None:
        raise Conflict(f"Image {image_id} has data already, and data is never replaced.")
    if image.source_server is not None:
        raise Conflict(f"Image {image_id} is being made of server {image.source_server}: no data is taken.")
    if uploading(image, tx.now.lease):
        raise Conflict(f"Another upload to image {image_id} is running.")
    hold_upload(tx, image_id, nonce=nonce, seconds=seconds)
    return image


def hold_upload(tx: Tx, image_id: str, *, nonce: str, seconds: float) -> None:
    """Give the image to this upload; an earlier one has lost it then."""
    tx.execute(
        sa.update(images)
        .where(images.c.id == image_id)
        .values(upload_nonce=nonce, upload_since=tx.now.lease, upload_until=tx.now.lease + seconds)
    )


def renew_upload(tx: Tx, image_id: str, *, nonce: str, seconds: float) -> bool:
    """Bytes are flowing; false when the upload lost the image."""
    return _fenced(tx, image_id, nonce, {"upload_until": tx.now.lease + seconds})


def finish_upload(tx: Tx, image_id: str, *, nonce: str, disk_format: str, data: Data) -> bool:
    """Record the data: the image is active. False when the upload lost the image.

    ``disk_format`` is what the data was inspected as; an image whose format was changed since is lost too.
    """
    values = {
        "data_name": data.name, "size": data.size, "virtual_size": data.virtual_size,
        "checksum": data.checksum, "sha512": data.sha512, "updated": tx.now.wall,
        "upload_nonce": None, "upload_since": None, "upload_until": None,
    }  # fmt: skip
    return _fenced(tx, image_id, nonce, values, images.c.disk_format == disk_format)


def release_upload(tx: Tx, image_id: str, *, nonce: str) -> bool:
    """The upload failed: the image is queued again."""
    return _fenced(tx, image_id, nonce, {"upload_nonce": None, "upload_since": None, "upload_until": None})


def _fenced(tx: Tx, image_id: str, nonce: str, values: dict[str, Any], *conditions: Any) -> bool:
    done = tx.execute(
        sa.update(images)
        .where(images.c.id == image_id, images.c.upload_nonce == nonce, *conditions)
        .values(values)
    )
    return done.rowcount == 1


def expire_uploads(tx: Tx) -> int:
    """End uploads whose lease has run out, so that they can never finish any more."""
    done = tx.execute(
        sa.update(images)
        .where(images.c.upload_until <= tx.now.lease)
        .values(upload_nonce=None, upload_since=None, upload_until=None)
    )
    return done.rowcount


def nonces_in_use(tx: Tx, image_ids: Sequence[str]) -> dict[str, str | None]:
    """For each of these images that was ever made here: the one nonce whose file is needed."""
    rows = tx.execute(
        sa.select(images.c.id, images.c.data_name, images.c.upload_nonce).where(
            images.c.id.in_(list(image_ids))
        )
    )
    return {
        row.id: row.data_name.rpartition(".")[2] if row.data_name is not None else row.upload_nonce
        for row in rows
    }


def files_in_use(tx: Tx) -> dict[str, str]:
    """Names of all files that images need, with the image's id; an upload under way has no whole file yet,
    so its name comes with an empty id."""
    found = {}
    for row in tx.execute(sa.select(images.c.id, images.c.data_name, images.c.upload_nonce)):
        if row.data_name is not None:
            found[row.data_name] = row.id
        elif row.upload_nonce is not None:
            found[f"{row.id}.{row.upload_nonce}"] = ""
    return found


def image_for_boot(tx: Tx, image_id: str, project_id: str | None, *, admin: bool = False) -> BootImage:
    """The image in the form the compute API uses; 404 when the project may not see it."""
    image = get_image(tx, image_id, project_id=project_id, admin=admin)
    if image.properties is _UNREADABLE:  # among them may be the kernel that it boots with
        raise Invalid(f"Image {image_id}: the store cannot read its properties; upload it again.")
    return for_boot(image, tx.now.lease)
