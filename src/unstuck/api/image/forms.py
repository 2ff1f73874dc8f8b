"""How images are written and read: known fields, further properties, JSON patches."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Final

import msgspec

from unstuck.api.context import Token
from unstuck.api.errors import ApiError, bad_request, conflict, forbidden
from unstuck.core.image import CONTAINER_FORMATS, DISK_FORMATS, MEMBER_STATUSES, VISIBILITIES, Image, status
from unstuck.core.time import iso_seconds

READ_ONLY: Final = frozenset({
    "status", "checksum", "size", "virtual_size", "os_hash_algo", "os_hash_value", "created_at", "updated_at",
    "self", "file", "schema", "direct_url", "locations", "deleted", "deleted_at", "stores", "is_public",
})  # fmt: skip
_BASE: Final = frozenset({
    "id", "name", "visibility", "protected", "os_hidden", "disk_format", "container_format", "min_disk",
    "min_ram", "tags", "owner",
})  # fmt: skip
_RESERVED: Final = "os_glance"
_MAX_PROPERTIES: Final = 128
_MAX_TAGS: Final = 128
_MAX_VALUE: Final = 65_535

Name = Annotated[str, msgspec.Meta(max_length=255)]
Megs = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The known fields of an image, as users write them."""

    name: Name | None = None
    visibility: str = "shared"
    protected: bool = False
    os_hidden: bool = False
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: Megs = 0
    min_ram: Megs = 0
    tags: list[Tag] = []
    owner: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a JSON patch."""

    op: str
    path: str
    value: Any = msgspec.UNSET


def _one_of(field: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise bad_request(f"{field}: {value[:64]!r} is not one of {', '.join(allowed)}.")


def _tags(tags: list[str]) -> tuple[str, ...]:
    unique = tuple(sorted(set(tags)))
    if len(unique) > _MAX_TAGS:
        raise ApiError(413, f"tags: an image has at most {_MAX_TAGS} tags.")
    return unique


def reserved(name: str) -> bool:
    """Whether a name is no property that users can give an image."""
    return name in READ_ONLY or name in _BASE or name.startswith(_RESERVED)


def _properties(given: dict[str, Any]) -> dict[str, str]:
    if len(given) > _MAX_PROPERTIES:
        raise ApiError(413, f"An image has at most {_MAX_PROPERTIES} properties.")
    for name, value in given.items():
        if name in READ_ONLY:
            raise forbidden(f"Attribute '{name}' is read-only.")
        if name.startswith(_RESERVED):
            raise forbidden(f"Attribute '{name[:255]}' is reserved.")
        if not name or len(name) > 255:
            raise bad_request("Names of properties have 1 to 255 characters.")
        if not isinstance(value, str) or len(value) > _MAX_VALUE:
            raise bad_request(f"{name[:80]}: the value must be a string of at most {_MAX_VALUE} characters.")
    return given


def apply(base: Image, given: dict[str, Any], token: Token) -> Image:
    """``base`` with everything that ``given`` describes: the one place where fields are checked."""
    more = {key: value for key, value in given.items() if key not in _BASE}
    properties = _properties(more)
    try:
        fields = msgspec.convert({k: v for k, v in given.items() if k in _BASE}, Fields)
    except msgspec.ValidationError as error:
        raise bad_request(f"Invalid input: {error}") from None
    _one_of("visibility", fields.visibility, VISIBILITIES)
    _one_of("disk_format", fields.disk_format, DISK_FORMATS)
    _one_of("container_format", fields.container_format, CONTAINER_FORMATS)
    if fields.visibility == "public" and base.visibility != "public" and not token.is_admin:
        raise forbidden("You are not authorized to complete the action publicize_image: it needs admin.")
    owner = fields.owner or base.project_id
    if owner != base.project_id and not token.is_admin:
        raise forbidden(f"You are not permitted to give images to another owner: {owner!r}.")
    return msgspec.structs.replace(
        base, project_id=owner, name=fields.name, visibility=fields.visibility, protected=fields.protected,
        os_hidden=fields.os_hidden, disk_format=fields.disk_format, min_disk=fields.min_disk,
        container_format=fields.container_format, min_ram=fields.min_ram, tags=_tags(fields.tags),
        properties=properties,
    )  # fmt: skip


def new_image(given: dict[str, Any], token: Token, project_id: str, fresh_id: str) -> Image:
    """The image that a create asks for."""
    image_id = given.get("id")
    if image_id is not None:
        try:
            image_id = str(uuid.UUID(image_id))
        except (ValueError, AttributeError, TypeError):
            raise bad_request("id: it must be a UUID.") from None
    base = Image(id=image_id or fresh_id, project_id=project_id, created=0.0, updated=0.0)
    return apply(base, {key: value for key, value in given.items() if key != "id"}, token)


def described(image: Image) -> dict[str, Any]:
    """What users may change of an image, in the form they see it."""
    return {
        **image.properties,
        "name": image.name, "visibility": image.visibility, "protected": image.protected,
        "os_hidden": image.os_hidden, "disk_format": image.disk_format,
        "container_format": image.container_format, "min_disk": image.min_disk, "min_ram": image.min_ram,
        "tags": list(image.tags), "owner": image.project_id,
    }  # fmt: skip


def image_json(image: Image, lease_now: float) -> dict[str, Any]:
    """An image as users see it."""
    data = image.data
    return {
        **described(image),
        "id": image.id, "status": status(image, lease_now),
        "size": data.size if data else None, "virtual_size": data.virtual_size if data else None,
        "checksum": data.checksum if data else None,
        "os_hash_algo": "sha512" if data else None, "os_hash_value": data.sha512 if data else None,
        "created_at": iso_seconds(image.created), "updated_at": iso_seconds(image.updated),
        "self": f"/v2/images/{image.id}", "file": f"/v2/images/{image.id}/file",
        "schema": "/v2/schemas/image",
    }  # fmt: skip


def patched(image: Image, operations: list[Operation], token: Token) -> Image:
    """The image after a JSON patch, all or nothing."""
    document = described(image)
    for operation in operations:
        _patch(document, operation)
    return apply(image, document, token)


def _patch(document: dict[str, Any], operation: Operation) -> None:
    if operation.op not in ("add", "replace", "remove"):
        raise bad_request(f"op: {operation.op[:32]!r} is not one of add, replace, remove.")
    if operation.path.startswith("/tags/"):
        _patch_tag(document, operation)
        return
    if not operation.path.startswith("/") or "/" in operation.path[1:] or len(operation.path) == 1:
        raise bad_request(f"path: {operation.path[:255]!r} is not of the form /name.")
    name = operation.path[1:].replace("~1", "/").replace("~0", "~")
    if name in READ_ONLY or name == "id":
        raise forbidden(f"Attribute '{name}' is read-only.")
    if operation.op == "remove":
        if name in _BASE:
            raise forbidden(f"Property {name} may not be removed.")
        if name not in document:
            raise conflict(f"Property {name[:255]} does not exist.")
        del document[name]
        return
    if operation.value is msgspec.UNSET:
        raise bad_request(f"value: it is missing in the operation on {operation.path[:255]!r}.")
    if operation.op == "replace" and name not in document:
        raise conflict(f"Property {name[:255]} does not exist.")
    document[name] = operation.value


def _patch_tag(document: dict[str, Any], operation: Operation) -> None:
    """``/tags/0``: the SDK sends the difference of two lists item by item."""
    tags, place = list(document["tags"]), operation.path.removeprefix("/tags/")
    index = len(tags) if place == "-" else int(place) if place.isdecimal() and len(place) < 5 else -1
    if index < 0:
        raise bad_request(f"path: {operation.path[:255]!r} is not of the form /tags/NUMBER.")
    if operation.op == "add":
        tags.insert(index, operation.value)
    elif index >= len(tags):
        raise conflict(f"There is no tag number {index}.")
    elif operation.op == "replace":
        tags[index] = operation.value
    else:
        del tags[index]
    document["tags"] = tags


def _schema_of(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def image_schema() -> dict[str, Any]:
    """A JSON schema of an image, for clients that build their forms from it."""
    text, nullable = _schema_of("string"), {"type": ["null", "string"]}
    fixed = {"type": ["null", "string"], "readOnly": True}
    return {
        "name": "image",
        "properties": {
            "id": text, "name": {**nullable, "maxLength": 255}, "status": _schema_of("string", readOnly=True),
            "visibility": _schema_of("string", enum=list(VISIBILITIES)),
            "protected": _schema_of("boolean"), "os_hidden": _schema_of("boolean"),
            "checksum": fixed, "os_hash_algo": fixed, "os_hash_value": fixed, "owner": nullable,
            "size": {"type": ["null", "integer"], "readOnly": True},
            "virtual_size": {"type": ["null", "integer"], "readOnly": True},
            "container_format": {**nullable, "enum": [None, *CONTAINER_FORMATS]},
            "disk_format": {**nullable, "enum": [None, *DISK_FORMATS]},
            "created_at": fixed, "updated_at": fixed,
            "tags": _schema_of("array", items=_schema_of("string", maxLength=255)),
            "min_disk": _schema_of("integer"), "min_ram": _schema_of("integer"),
            "self": fixed, "file": fixed, "schema": fixed,
        },
        "additionalProperties": text,
        "links": [{"href": "{self}", "rel": "self"}, {"href": "{file}", "rel": "enclosure"}],
    }  # fmt: skip


def member_schema() -> dict[str, Any]:
    """A JSON schema of a member."""
    text = _schema_of("string")
    return {
        "name": "member",
        "properties": {
            "member_id": text, "image_id": text, "created_at": text, "updated_at": text, "schema": text,
            "status": _schema_of("string", enum=list(MEMBER_STATUSES)),
        },
    }  # fmt: skip
