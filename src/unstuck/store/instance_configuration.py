"""The configuration group that an instance has."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.instance.data import Instance
from unstuck.core.time import Now
from unstuck.store.configurations import configuration_for, get_configuration
from unstuck.store.engine import Tx
from unstuck.store.instance_create import note_operation
from unstuck.store.instance_rows import hold, host_of, load_instance, missing
from unstuck.store.instances import write
from unstuck.store.rows import bump_world
from unstuck.store.schema.database import datastore_versions, instances
from unstuck.store.servers import Caller


def set_configuration(
    tx: Tx, instance_id: str, project_id: str | None, configuration_id: str | None, caller: Caller
) -> str | None:
    """Give an instance a group in place of the one that it had, or (None) take it away. Takes effect without
    a restart, as far as the datastore can; returns the host to notify."""
    row = tx.execute(
        sa.select(
            instances.c.project_id, instances.c.datastore_version_id, instances.c.ram_mb, instances.c.removed
        ).where(instances.c.id == instance_id)
    ).first()
    if row is None or row.removed or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    if configuration_id is not None:  # locked before host, server and instance
        configuration_for(
            tx, configuration_id, row.project_id, row.datastore_version_id, row.ram_mb, instance_id
        )
    loaded = hold(tx, instance_id, project_id)
    if loaded.row.configuration_id == configuration_id:
        return None
    write(tx, instance_id, configuration_id=configuration_id)
    note_operation(tx, instance_id, "configuration", caller)
    host_id = host_of(tx, loaded.server_id)
    if host_id is not None:
        bump_world(tx, host_id, loaded.server_id)
    return host_id


def defaults_for(tx: Tx, instance_id: str, project_id: str | None) -> tuple[str, int, int]:
    """What runs the instance's datastore, its memory in MiB and its volume in GiB: its default parameters
    follow from them."""
    row = tx.execute(
        sa.select(
            instances.c.project_id,
            instances.c.ram_mb,
            instances.c.volume_gb,
            instances.c.deleted,
            datastore_versions.c.manager,
        )
        .join(datastore_versions, datastore_versions.c.id == instances.c.datastore_version_id)
        .where(instances.c.id == instance_id)
    ).first()
    if row is None or row.deleted or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    return row.manager, row.ram_mb, row.volume_gb


class Configuring(msgspec.Struct, frozen=True):
    """An instance, and the parameters that it is to have, as texts."""

    instance: Instance
    server_id: str
    wanted: dict[str, str]
    now: Now


def configuring(tx: Tx, instance_id: str) -> Configuring | None:
    """None where it is gone."""
    loaded = load_instance(tx, instance_id)
    if loaded is None or loaded.instance.deleted:
        return None
    group = loaded.row.configuration_id
    wanted = {} if group is None else get_configuration(tx, group, None).texts()
    return Configuring(loaded.instance, loaded.server_id, wanted, tx.now)
