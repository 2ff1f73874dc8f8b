"""Instances as users see them: four statements for a page, however many instances it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Invalid
from unstuck.core.instance.data import Instance, LiveBackup
from unstuck.core.server.data import Server
from unstuck.core.time import Now
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.instance_backups import live_of_many
from unstuck.store.instance_rows import FACTS, ROOM, facts_from, missing
from unstuck.store.rows import load_servers
from unstuck.store.schema.compute import operations
from unstuck.store.schema.database import configurations, datastore_versions, datastores, instances
from unstuck.store.server_lists import CHUNK, Address, addresses_of

_cidrs = msgspec.json.Decoder(tuple[str, ...])
_COLUMNS = (
    sa.select(
        *FACTS, ROOM, instances.c.user_id, instances.c.name, instances.c.datastore_version_id,
        instances.c.port, instances.c.is_public, instances.c.allowed_cidrs, instances.c.created_wall,
        instances.c.updated_wall, instances.c.deleted_wall, instances.c.seen_wall,
        datastores.c.id.label("datastore_id"), datastores.c.name.label("datastore"),
        datastore_versions.c.name.label("version"), datastore_versions.c.version.label("version_number"),
        configurations.c.name.label("configuration"),
        datastore_versions.c.manager,
    )
    .join(datastore_versions, datastore_versions.c.id == instances.c.datastore_version_id)
    .join(datastores, datastores.c.id == datastore_versions.c.datastore_id)
    .outerjoin(configurations, configurations.c.id == instances.c.configuration_id)
)  # fmt: skip


class InstanceItem(msgspec.Struct, frozen=True, gc=False):
    """An instance with all that is shown of it. Sizes in MiB and GiB. ``seen_wall``: its last news."""

    facts: Instance
    addresses: tuple[Address, ...]
    server_id: str
    project_id: str
    user_id: str
    name: str
    datastore_id: str
    datastore: str
    version_id: str
    version: str
    version_number: str
    manager: str
    flavor_id: str
    ram_mb: int
    volume_gb: int
    port: int
    is_public: bool
    allowed_cidrs: tuple[str, ...]
    created_wall: float
    updated_wall: float
    deleted_wall: float | None
    seen_wall: float | None
    configuration_id: str | None
    configuration: str | None

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def host(self) -> str | None:
        """The name of its host, once it has one."""
        server = self.facts.server
        return None if server is None or server.host is None else server.host.hostname


class InstancePage(msgspec.Struct, frozen=True):
    """Instances as of one moment; ``more``: there are others after the last one."""

    items: tuple[InstanceItem, ...]
    more: bool
    now: Now


class ShownInstance(msgspec.Struct, frozen=True):
    item: InstanceItem
    now: Now


class Request(msgspec.Struct, frozen=True):
    """What was asked of an instance, for its history."""

    kind: str
    state: str
    reason: str
    request_id: str
    user_id: str
    started_wall: float
    finished_wall: float | None


def list_instances(
    tx: Tx, project_id: str | None, *, limit: int, marker: str | None = None, deleted: bool | None = False
) -> InstancePage:
    """A project's instances (None: all), the oldest first, after the one with the id ``marker``.

    ``deleted``: True for those in the trash only, None for both. Raises :class:`Invalid` for a marker that
    is not there.
    """
    query = _COLUMNS.where(sa.not_(instances.c.removed))
    if project_id is not None:
        query = query.where(instances.c.project_id == project_id)
    if deleted is not None:
        query = query.where(instances.c.deleted if deleted else sa.not_(instances.c.deleted))
    if marker is not None:
        at = tx.execute(
            sa.select(instances.c.created_wall).where(instances.c.id == marker)
        ).scalar_one_or_none()
        if at is None:
            raise Invalid(f"marker: instance {marker} cannot be found.")
        query = query.where(sa.tuple_(instances.c.created_wall, instances.c.id) > sa.tuple_(at, marker))
    rows = tx.execute(query.order_by(instances.c.created_wall, instances.c.id).limit(limit + 1)).all()
    return InstancePage(_items(tx, rows[:limit]), len(rows) > limit > 0, tx.now)


def show_instance(
    tx: Tx, instance_id: str, project_id: str | None, *, deleted: bool | None = False
) -> ShownInstance:
    """One instance and the time it was looked at; 404 where it is not this project's (None: any)."""
    row = tx.execute(_COLUMNS.where(instances.c.id == instance_id)).first()
    if row is None or row.removed or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    if deleted is not None and bool(row.deleted) is not deleted:
        raise missing(instance_id)
    return ShownInstance(_items(tx, [row])[0], tx.now)


def requests_of(tx: Tx, instance_id: str, *, limit: int = 50) -> list[Request]:
    """What was asked of it, the newest first."""
    query = (
        sa.select(*(operations.c[name] for name in Request.__struct_fields__))
        .where(operations.c.resource_id == instance_id)
        .order_by(operations.c.started_wall.desc(), operations.c.id.desc())
        .limit(limit)
    )
    return [Request(**row._mapping) for row in tx.execute(query)]


def _items(tx: Tx, rows: Sequence[Any]) -> tuple[InstanceItem, ...]:
    server_ids = [row.server_id for row in rows]
    ids = [row.id for row in rows]
    servers: dict[str, Server] = {}
    backups: dict[str, LiveBackup] = {}
    for start in range(0, len(rows), CHUNK):
        servers |= load_servers(tx, server_ids[start : start + CHUNK])
        backups |= live_of_many(tx, ids[start : start + CHUNK])
    addresses = addresses_of(tx, server_ids)
    return tuple(
        InstanceItem(
            facts=facts_from(row, servers.get(row.server_id), backups.get(row.id)),
            addresses=addresses.get(row.server_id, ()), server_id=row.server_id, project_id=row.project_id,
            user_id=row.user_id, name=row.name, datastore_id=row.datastore_id, datastore=row.datastore,
            version_id=row.datastore_version_id, version=row.version, version_number=row.version_number,
            manager=row.manager,
            flavor_id=row.flavor_id, ram_mb=row.ram_mb, volume_gb=row.volume_gb, port=row.port,
            is_public=row.is_public, allowed_cidrs=readable.read(_cidrs, row.allowed_cidrs, ()),
            created_wall=row.created_wall, updated_wall=row.updated_wall, deleted_wall=row.deleted_wall,
            seen_wall=row.seen_wall,
            configuration_id=None if row.configuration is None else row.configuration_id,
            configuration=row.configuration,
        )
        for row in rows
    )  # fmt: skip
