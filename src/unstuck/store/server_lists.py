"""Servers as users see them: rows, facts and addresses, two statements however many they are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import NotFound
from unstuck.core.server.data import BootImage, ImageRole, Server
from unstuck.core.time import Now
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import JOINED, loaded_from
from unstuck.store.schema.compute import servers
from unstuck.store.schema.network import networks, ports
from unstuck.store.servers import Caller

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 500

COLUMNS = JOINED.add_columns(
    servers.c.project_id,
    servers.c.user_id,
    servers.c.name,
    servers.c.description,
    servers.c.image_id,
    servers.c.flavor_id,
    servers.c.flavor,
    servers.c.key_name,
    servers.c.meta,
    servers.c.tags,
    servers.c.requested_zone,
    servers.c.config_drive,
    servers.c.disk_config,
    servers.c.reservation_id,
    servers.c.launch_index,
    servers.c.access_ipv4,
    servers.c.access_ipv6,
    servers.c.created_wall,
    servers.c.updated_wall,
    servers.c.removed_wall,
    servers.c.seen_wall,
    servers.c.spec,
)


class SpecPart(msgspec.Struct, frozen=True, gc=False):
    """What lists need of a spec."""

    hostname: str
    images: tuple[BootImage, ...] = ()
    user_data: str | None = None

    def image(self, role: ImageRole) -> str:
        for image in self.images:
            if image.role is role:
                return image.id
        return ""


class FlavorPart(msgspec.Struct, frozen=True):
    """What must be there of a flavor for it to be shown."""

    vcpus: int
    ram: int
    disk: int


class Address(msgspec.Struct, frozen=True, gc=False):
    network: str
    address: str
    mac: str


class ServerItem(msgspec.Struct, frozen=True, gc=False):
    """A server with all that is shown of it. ``flavor`` and ``meta`` are JSON."""

    facts: Server
    addresses: tuple[Address, ...]
    spec: SpecPart
    project_id: str
    user_id: str
    name: str
    description: str | None
    image_id: str
    flavor_id: str
    flavor: str
    key_name: str | None
    meta: str
    tags: tuple[str, ...]
    requested_zone: str | None
    config_drive: bool
    disk_config: str
    reservation_id: str
    launch_index: int
    access_ipv4: str
    access_ipv6: str
    created_wall: float
    updated_wall: float
    removed_wall: float | None
    seen_wall: float | None

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def host(self) -> str | None:
        """The name of its host, once it has one."""
        return self.facts.host.hostname if self.facts.host else None


class Shown(msgspec.Struct, frozen=True):
    """One server as of one moment."""

    item: ServerItem
    now: Now


_spec = msgspec.json.Decoder(SpecPart)
_tags = msgspec.json.Decoder(tuple[str, ...])
_meta = msgspec.json.Decoder(dict[str, str])
_flavor = msgspec.json.Decoder(FlavorPart)


@functools.lru_cache(256)
def _check_flavor(text: str) -> None:
    """Raises :class:`msgspec.DecodeError`. Servers of one flavor have the same text."""
    _flavor.decode(text)


_NO_FLAVOR = (
    '{"vcpus":0,"ram":0,"disk":0,"ephemeral":0,"swap":0,"original_name":"unreadable","extra_specs":{}}'
)
"""For a server whose flavor cannot be read: clients need the keys, and nothing is known."""
_PORTS = (
    sa.select(ports.c.server_id, networks.c.name, ports.c.address, ports.c.mac)
    .join(networks, networks.c.id == ports.c.network_id)
    .where(ports.c.server_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(ports.c.created_wall, ports.c.id)
)
_PORTS_OF_ONE = Prepared(
    sa.select(networks.c.name, ports.c.address, ports.c.mac)
    .join(networks, networks.c.id == ports.c.network_id)
    .where(ports.c.server_id == sa.bindparam("server"))
    .order_by(ports.c.created_wall, ports.c.id)
)
_ONE = Prepared(COLUMNS.where(servers.c.id == sa.bindparam("server")))
_OWNER = Prepared(
    sa.select(servers.c.project_id, servers.c.removed).where(servers.c.id == sa.bindparam("server"))
)


def addresses_of(tx: Tx, server_ids: list[str]) -> dict[str, tuple[Address, ...]]:
    """The addresses of many servers."""
    found: dict[str, list[Address]] = {}
    for start in range(0, len(server_ids), CHUNK):
        rows: Iterable[Any] = tx.execute(_PORTS, {"ids": server_ids[start : start + CHUNK]}).all()
        for server_id, *port in rows:
            found.setdefault(server_id, []).append(Address(*port))
    return {key: tuple(values) for key, values in found.items()}


def _salvage(row: Any) -> tuple[SpecPart, tuple[str, ...], str, str, tuple[str, ...]]:
    """Spec, tags, flavor and metadata of a row of which not all can be read, and which that are."""
    kept: dict[str, Any] = {}
    for column, decoder in (("spec", _spec), ("tags", _tags), ("flavor", _flavor), ("meta", _meta)):
        with contextlib.suppress(msgspec.DecodeError):
            kept[column] = decoder.decode(row._asdict()[column])
    return (
        kept.get("spec", SpecPart("")),
        kept.get("tags", ()),
        row.flavor if "flavor" in kept else _NO_FLAVOR,
        row.meta if "meta" in kept else "{}",
        tuple(column for column in ("spec", "tags", "flavor", "meta") if column not in kept),
    )


def item_from(row: Any, addresses: tuple[Address, ...]) -> ServerItem:
    """One item from a row of :data:`COLUMNS`."""
    facts = loaded_from(row).server
    try:
        spec = _spec.decode(row.spec)
        tags = () if row.tags == "[]" else _tags.decode(row.tags)
        _check_flavor(row.flavor)  # both go into answers as they are: one that is no JSON would spoil all
        if row.meta != "{}":
            _meta.decode(row.meta)
        flavor, meta = row.flavor, row.meta
    except msgspec.DecodeError:
        spec, tags, flavor, meta, bad = _salvage(row)
        facts = msgspec.structs.replace(facts, unreadable=(*facts.unreadable, *bad))
    return ServerItem(
        facts=facts,
        addresses=addresses,
        spec=spec,
        project_id=row.project_id,
        user_id=row.user_id,
        name=row.name,
        description=row.description,
        image_id=row.image_id,
        flavor_id=row.flavor_id,
        flavor=flavor,
        key_name=row.key_name,
        meta=meta,
        tags=tags,
        requested_zone=row.requested_zone,
        config_drive=row.config_drive,
        disk_config=row.disk_config,
        reservation_id=row.reservation_id,
        launch_index=row.launch_index,
        access_ipv4=row.access_ipv4,
        access_ipv6=row.access_ipv6,
        created_wall=row.created_wall,
        updated_wall=row.updated_wall,
        removed_wall=row.removed_wall,
        seen_wall=row.seen_wall,
    )


def find_server(tx: Tx, server_id: str, project_id: str | None, *, removed: bool = False) -> ServerItem:
    """One server of a project (``None``: of any). A removed one is not there, unless ``removed`` says so."""
    row = _ONE.first(tx, server=server_id)
    hidden = row is None or (row.removed and not removed)
    if row is None or hidden or (project_id is not None and row.project_id != project_id):
        raise NotFound(f"Instance {server_id} could not be found.")
    return item_from(row, tuple(Address(*port) for port in _PORTS_OF_ONE.all(tx, server=server_id)))


def show_server(tx: Tx, server_id: str, project_id: str | None, *, removed: bool = False) -> Shown:
    """One server and the time it was looked at."""
    return Shown(find_server(tx, server_id, project_id, removed=removed), tx.now)


def check_owner(tx: Tx, server_id: str, project_id: str | None) -> None:
    """404 unless the server is the project's (``None``: any) and not removed."""
    row = _OWNER.first(tx, server=server_id)
    if row is None or row.removed or (project_id is not None and row.project_id != project_id):
        raise NotFound(f"Instance {server_id} could not be found.")


def within_project(
    action: Callable[Concatenate[Tx, str, Caller, P], T],
) -> Callable[Concatenate[Tx, str, str | None, Caller, P], T]:
    """The same transaction for a caller of this project (``None``: any); 404 for another's server."""

    def own(
        tx: Tx, server_id: str, project_id: str | None, caller: Caller, /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        check_owner(tx, server_id, project_id)
        return action(tx, server_id, caller, *args, **kwargs)

    own.__name__ = action.__name__  # which a kill can be aimed at
    return own
