"""Questions that only an instance's database can answer, put to its agent through its host."""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.core.errors import Conflict
from unstuck.core.instance.control import blocking, host_silent
from unstuck.core.instance.view import ServerState
from unstuck.store.asks import ask_guest
from unstuck.store.engine import Tx
from unstuck.store.instance_rows import load_instance, missing
from unstuck.store.schema.database import datastore_versions, instances


def ask_instance(
    tx: Tx, instance_id: str, project_id: str | None, *, ask_id: str, argument: str, seconds: float,
    agent_only: bool = False,
) -> str:  # fmt: skip
    """Ask it; returns the host to wake. 404 where it is not this project's, 409 where nobody would answer.
    ``agent_only``: its agent answers that by itself, whatever the database server does."""
    loaded = load_instance(tx, instance_id)
    if loaded is None or loaded.instance.deleted:
        raise missing(instance_id)
    if project_id is not None and loaded.row.project_id != project_id:
        raise missing(instance_id)
    instance = loaded.instance
    host_id = None
    why = ""
    if instance.launched_wall is None and not agent_only:
        why = "it is still being built"
    elif not agent_only and (trouble := blocking(instance)) is not None:
        why = trouble.reason
    elif host_silent(instance, tx.now):
        why = "its host is silent"
    elif not instance.alive:
        why = "its agent is silent"
    elif not agent_only and instance.seen is not None and instance.seen.server is not ServerState.UP:
        why = f"its database server is {instance.seen.server.value}"
    else:
        host_id = ask_guest(tx, ask_id, loaded.server_id, argument, seconds)
    if host_id is None:
        raise Conflict(
            f"The database of instance {instance_id} cannot be asked now: {why or 'it has no host'}."
        )
    return host_id


def manager_of(tx: Tx, instance_id: str, project_id: str | None) -> str:
    """What runs its datastore; 404 where it is not this project's."""
    query = (
        sa.select(instances.c.project_id, instances.c.deleted, datastore_versions.c.manager)
        .join(datastore_versions, datastore_versions.c.id == instances.c.datastore_version_id)
        .where(instances.c.id == instance_id)
    )
    row = tx.execute(query).first()
    if row is None or row.deleted or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    return str(row.manager)
