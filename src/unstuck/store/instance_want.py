"""What the store wants of the database in a server: the part of a host's world that goes on to its guest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.datastores import ALLOWED
from unstuck.core.instance.want import DatabaseWant, Origin
from unstuck.core.server.data import Spec
from unstuck.store import archives, instance_backups, readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, lock_host
from unstuck.store.schema.compute import placements
from unstuck.store.schema.database import configurations, datastore_versions, instances

_origin: msgspec.json.Decoder[Origin | None] = msgspec.json.Decoder(Origin)
_values: msgspec.json.Decoder[Mapping[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_IN_SERVER = Prepared(
    sa.select(
        instances.c.id, instances.c.generation, instances.c.data_recorded, instances.c.origin,
        instances.c.port, instances.c.restart, configurations.c.parameters, datastore_versions.c.manager,
        datastore_versions.c.version,
    )
    .join(datastore_versions, datastore_versions.c.id == instances.c.datastore_version_id)
    .outerjoin(configurations, configurations.c.id == instances.c.configuration_id)
    .where(instances.c.server_id == sa.bindparam("server"), sa.not_(instances.c.deleted))
)  # fmt: skip


def database_want(tx: Tx, server_id: str, spec: Spec) -> DatabaseWant | None:
    """None where the store knows no instance of this server (any more), or cannot read what its data is to be
    made from: its guest goes on with what it has heard. Data that was made once needs that no more."""
    row = _IN_SERVER.first(tx, server=server_id)
    if row is None:
        return None
    origin = readable.read(_origin, row.origin, Origin() if row.data_recorded else None)
    if origin is None:
        return None
    return DatabaseWant(
        instance_id=row.id, datastore=row.manager, version=row.version, generation=row.generation,
        data_recorded=row.data_recorded, origin=origin, port=row.port,
        cidrs=() if spec.access is None else spec.access.cidrs, ram_mb=spec.flavor.ram_mb,
        restart=row.restart, parameters=_parameters(row),
        backup=instance_backups.wanted(tx, row.id), archive=archives.wanted(tx, row.id),
    )  # fmt: skip


def tell_guests_anew(tx: Tx) -> None:
    """At the start of a control plane: what comes from its settings may be another since. A guest that is
    wanted as before hears no news."""
    found = tx.execute(
        sa.select(placements.c.host_id, placements.c.server_id)
        .join(instances, instances.c.server_id == placements.c.server_id)
        .where(placements.c.state == "live", sa.not_(instances.c.deleted))
        .order_by(placements.c.host_id, placements.c.server_id)
    ).all()
    for host_id in dict.fromkeys(row.host_id for row in found):
        lock_host(tx, host_id)
    for row in found:
        bump_world(tx, row.host_id, row.server_id)


def _parameters(row: Any) -> dict[str, str]:
    """The texts of its configuration group; what cannot be read or set (any more) is left out."""
    if row.parameters is None or row.manager not in ALLOWED:
        return {}
    return ALLOWED[row.manager].readable(readable.read(_values, row.parameters, {}))
