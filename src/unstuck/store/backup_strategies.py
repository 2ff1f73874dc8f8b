"""Where backups of a project, or of one instance, go: a store that the operator has set up, by name."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Invalid, NotFound
from unstuck.store.engine import Tx
from unstuck.store.quotas import lock_project
from unstuck.store.schema.database import backup_strategies, instances

_EVERY = ""
"""The instance of a strategy that is the project's own."""


class Strategy(msgspec.Struct, frozen=True):
    """``instance_id`` None: the project's own, which counts for instances that have none."""

    project_id: str
    instance_id: str | None
    container: str


def set_strategy(tx: Tx, project_id: str, instance_id: str | None, container: str) -> Strategy:
    """Backups made from now on go there; what is stored stays where it is."""
    if not lock_project(tx, project_id):
        raise Invalid(f"Project {project_id} cannot be found.")
    if instance_id is not None:
        mine = sa.select(instances.c.id).where(
            instances.c.id == instance_id, instances.c.project_id == project_id, sa.not_(instances.c.deleted)
        )
        if tx.execute(mine).first() is None:
            raise NotFound(f"Instance {instance_id} cannot be found.")
    tx.execute(sa.delete(backup_strategies).where(*_of(project_id, instance_id)))
    tx.execute(
        sa.insert(backup_strategies).values(
            project_id=project_id, instance_id=instance_id or _EVERY, container=container
        )
    )
    return Strategy(project_id, instance_id, container)


def list_strategies(tx: Tx, project_id: str, instance_id: str | None) -> list[Strategy]:
    """A project's strategies, its own first; ``instance_id`` narrows it down to one instance's."""
    query = sa.select(backup_strategies).where(backup_strategies.c.project_id == project_id)
    if instance_id is not None:
        query = query.where(backup_strategies.c.instance_id == instance_id)
    rows = tx.execute(query.order_by(backup_strategies.c.instance_id))
    return [Strategy(row.project_id, row.instance_id or None, row.container) for row in rows]


def drop_strategy(tx: Tx, project_id: str, instance_id: str | None) -> None:
    """Raises :class:`NotFound` where there is none."""
    if tx.execute(sa.delete(backup_strategies).where(*_of(project_id, instance_id))).rowcount == 0:
        whose = f"instance {instance_id}" if instance_id else f"project {project_id}"
        raise NotFound(f"Backup strategy of {whose} cannot be found.")


def _of(project_id: str, instance_id: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        backup_strategies.c.project_id == project_id,
        backup_strategies.c.instance_id == (instance_id or _EVERY),
    )
