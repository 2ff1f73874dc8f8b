"""Images: the status is derived from what is recorded, never stored."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Status = Literal["queued", "saving", "active", "deactivated", "deleted"]

DISK_FORMATS: Final = ("raw", "qcow2", "aki", "ari", "ami")
CONTAINER_FORMATS: Final = ("bare", "aki", "ari", "ami")
VISIBILITIES: Final = ("public", "community", "shared", "private")
MEMBER_STATUSES: Final = ("pending", "accepted", "rejected")


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of an active image: recorded in one step, and never changed."""

    name: str
    """File name in the folder of images: image id and the nonce of the upload."""
    size: int
    virtual_size: int
    checksum: str
    """md5, which older clients verify."""
    sha512: str


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image as recorded."""

    id: str
    project_id: str
    created: float
    updated: float
    name: str | None = None
    visibility: str = "shared"
    protected: bool = False
    os_hidden: bool = False
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: int = 0
    min_ram: int = 0
    tags: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    data: Data | None = None
    upload_nonce: str | None = None
    upload_until: float | None = None
    """Lease time until which the upload is its holder's."""
    deactivated: bool = False
    """Nobody may read its data or boot from it until it is reactivated."""
    deleted_wall: float | None = None
    source_server: str | None = None
    """The server of whose disk it is made, or was."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A project that a shared image is shared with. It sees the image; in lists once it has accepted."""

    image_id: str
    member_id: str
    status: str
    created: float
    updated: float


class BootImage(msgspec.Struct, frozen=True, kw_only=True):
    """What the compute API needs of an image to boot a server from it."""

    id: str
    name: str | None
    status: Status
    disk_format: str | None
    container_format: str | None
    min_disk: int
    min_ram: int
    size: int
    virtual_size: int
    sha512: str
    data_name: str
    """Empty unless active, like ``sha512``."""
    kernel_id: str | None
    ramdisk_id: str | None
    properties: dict[str, str]


def uploading(image: Image, lease_now: float) -> bool:
    """Whether an upload holds the image. One whose lease has run out does not: anybody may upload again."""
    return image.upload_until is not None and lease_now < image.upload_until


def status(image: Image, lease_now: float) -> Status:
    """What users see."""
    if image.deleted_wall is not None:
        return "deleted"
    if image.data is not None:
        return "deactivated" if image.deactivated else "active"
    return "saving" if uploading(image, lease_now) else "queued"


def visible_to(image: Image, project_id: str | None, *, admin: bool, member: bool = False) -> bool:
    """Whether a project may see the image; to others it does not exist.

    ``member``: the project is among those that the image is shared with, which counts while it is shared.
    """
    if admin or image.project_id == project_id or image.visibility in ("public", "community"):
        return True
    return member and image.visibility == "shared"


def for_boot(image: Image, lease_now: float) -> BootImage:
    """The image in the form the compute API uses."""
    data = image.data
    return BootImage(
        id=image.id, name=image.name, status=status(image, lease_now),
        disk_format=image.disk_format, container_format=image.container_format,
        min_disk=image.min_disk, min_ram=image.min_ram,
        size=data.size if data else 0, virtual_size=data.virtual_size if data else 0,
        sha512=data.sha512 if data else "", data_name=data.name if data else "",
        kernel_id=image.properties.get("kernel_id") or None,
        ramdisk_id=image.properties.get("ramdisk_id") or None,
        properties=image.properties,
    )  # fmt: skip
