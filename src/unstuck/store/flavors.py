"""Flavors: what a guest gets. A server keeps its own copy, so a flavor may change or go at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, NotFound
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import flavor_access, flavors

_DEFAULTS = (
    ("1", "t.nano", 1, 64, 0),
    ("2", "t.micro", 1, 128, 1),
    ("3", "m1.tiny", 1, 512, 1),
    ("4", "m1.small", 1, 2048, 20),
    ("5", "m1.medium", 2, 4096, 40),
)
_specs = msgspec.json.Decoder(dict[str, str])


class FlavorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One flavor. Memory and swap in MiB, disks in GiB (0: as large as the image)."""

    id: str
    name: str
    vcpus: int
    ram_mb: int
    disk_gb: int
    ephemeral_gb: int = 0
    swap_mb: int = 0
    rxtx_factor: float = 1.0
    is_public: bool = True
    description: str | None = None
    extra_specs: dict[str, str] = {}
    created_wall: float = 0.0


def ensure_default_flavors(tx: Tx) -> None:
    """The flavors that a new cloud begins with; where there is any flavor, nothing is changed."""
    if tx.execute(sa.select(flavors.c.id).limit(1)).first() is not None:
        return
    for key, name, vcpus, ram, disk in _DEFAULTS:
        create_flavor(tx, FlavorRow(id=key, name=name, vcpus=vcpus, ram_mb=ram, disk_gb=disk))


_ONE = Prepared(sa.select(flavors).where(flavors.c.id == sa.bindparam("flavor")))


def _row(values: Mapping[Any, Any]) -> FlavorRow:
    return FlavorRow(**{**values, "extra_specs": readable.read(_specs, values["extra_specs"], {})})


def _visible(project_id: str | None) -> sa.ColumnElement[bool]:
    """Public flavors and those the project was let to; ``None`` is an administrator, who sees all."""
    if project_id is None:
        return sa.true()
    mine = sa.select(flavor_access.c.flavor_id).where(flavor_access.c.project_id == project_id)
    return sa.or_(flavors.c.is_public, flavors.c.id.in_(mine))


def list_flavors(tx: Tx, project_id: str | None, *, public: bool | None) -> list[FlavorRow]:
    """The flavors a project may use (``None``: all); ``public`` narrows it down to one kind."""
    query = sa.select(flavors).where(_visible(project_id)).order_by(flavors.c.id)
    if public is not None:
        query = query.where(flavors.c.is_public.is_(public))
    return [_row(row._mapping) for row in tx.execute(query)]


def get_flavor(tx: Tx, flavor_id: str, project_id: str | None) -> FlavorRow:
    """One flavor; raises :class:`NotFound`."""
    row = _ONE.first(tx, flavor=flavor_id)
    hidden = row is not None and project_id is not None and not row.is_public
    if row is None or (hidden and project_id not in _access(tx, flavor_id)):
        raise NotFound(f"Flavor {flavor_id} could not be found.")
    return _row(row._asdict())


def create_flavor(tx: Tx, new: FlavorRow) -> FlavorRow:
    """Add a flavor; raises :class:`Conflict` where its id or name is taken."""
    taken = sa.select(flavors.c.id, flavors.c.name).where(
        sa.or_(flavors.c.id == new.id, flavors.c.name == new.name)
    )
    for row in tx.execute(taken):
        what = f"ID {new.id}" if row.id == new.id else f"name {new.name}"
        raise Conflict(f"Flavor with {what} already exists.")
    made = msgspec.structs.replace(new, created_wall=tx.now.wall)
    values = msgspec.structs.asdict(made)
    values["extra_specs"] = msgspec.json.encode(made.extra_specs).decode()
    try:
        tx.execute(sa.insert(flavors).values(values))
    except sa.exc.IntegrityError:
        raise Conflict(f"Flavor with ID {new.id} or name {new.name} already exists.") from None
    return made


def describe_flavor(tx: Tx, flavor_id: str, description: str | None) -> FlavorRow:
    """Change the one thing of a flavor that may change."""
    tx.execute(sa.update(flavors).where(flavors.c.id == flavor_id).values(description=description))
    return get_flavor(tx, flavor_id, None)


def delete_flavor(tx: Tx, flavor_id: str) -> None:
    """Servers made of it keep what they have."""
    if tx.execute(sa.delete(flavors).where(flavors.c.id == flavor_id)).rowcount != 1:
        raise NotFound(f"Flavor {flavor_id} could not be found.")


def merge_specs(tx: Tx, flavor_id: str, changes: dict[str, str | None]) -> dict[str, str]:
    """Set extra specs, or drop those whose value is None (:class:`NotFound` if one is not there)."""
    query = sa.select(flavors.c.extra_specs).where(flavors.c.id == flavor_id).with_for_update()
    text = tx.execute(query).scalar_one_or_none()
    if text is None:
        raise NotFound(f"Flavor {flavor_id} could not be found.")
    specs = readable.read(_specs, text, {})
    for key, value in changes.items():
        if value is not None:
            specs[key] = value
        elif specs.pop(key, None) is None:
            raise NotFound(f"Flavor {flavor_id} has no extra specs with key {key}.")
    encoded = msgspec.json.encode(specs).decode()
    tx.execute(sa.update(flavors).where(flavors.c.id == flavor_id).values(extra_specs=encoded))
    return specs


def list_access(tx: Tx, flavor_id: str) -> list[str]:
    """The projects that a private flavor was given to."""
    if get_flavor(tx, flavor_id, None).is_public:
        raise NotFound("Access list not available for public flavors.")
    return _access(tx, flavor_id)


def _access(tx: Tx, flavor_id: str) -> list[str]:
    query = sa.select(flavor_access.c.project_id).where(flavor_access.c.flavor_id == flavor_id)
    return list(tx.execute(query.order_by(flavor_access.c.project_id)).scalars())


def add_access(tx: Tx, flavor_id: str, project_id: str) -> list[str]:
    """Let a project use a private flavor."""
    if get_flavor(tx, flavor_id, None).is_public:
        raise Conflict("Can not add access to a public flavor.")
    if project_id in _access(tx, flavor_id):
        raise Conflict(f"Flavor access already exists for flavor {flavor_id} and project {project_id}.")
    try:
        tx.execute(sa.insert(flavor_access).values(flavor_id=flavor_id, project_id=project_id))
    except sa.exc.IntegrityError:
        raise Conflict(f"Flavor {flavor_id} is changing; try again.") from None
    return _access(tx, flavor_id)


def remove_access(tx: Tx, flavor_id: str, project_id: str) -> list[str]:
    """Take it away again."""
    get_flavor(tx, flavor_id, None)
    gone = sa.delete(flavor_access).where(
        flavor_access.c.flavor_id == flavor_id, flavor_access.c.project_id == project_id
    )
    if tx.execute(gone).rowcount != 1:
        raise NotFound(f"Flavor access not found for {flavor_id} / {project_id} combination.")
    return _access(tx, flavor_id)
