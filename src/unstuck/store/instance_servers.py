"""The servers that instances live in, for operators: by name, as the compute API shows them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from unstuck.store.engine import Tx
from unstuck.store.instance_lists import InstancePage, list_instances, show_instance
from unstuck.store.schema.compute import servers

Names = dict[str, str]
"""Names of servers by their id."""


def _names(tx: Tx, server_ids: Sequence[str]) -> Names:
    query = sa.select(servers.c.id, servers.c.name).where(servers.c.id.in_(list(server_ids)))
    return {row.id: row.name for row in tx.execute(query)}


def list_managed(
    tx: Tx, project_id: str | None, *, limit: int, marker: str | None, deleted: bool
) -> tuple[InstancePage, Names]:
    """A page of instances, with the names of their servers."""
    found = list_instances(tx, project_id, limit=limit, marker=marker, deleted=deleted)
    return found, _names(tx, [item.server_id for item in found.items])


def show_managed(tx: Tx, instance_id: str) -> tuple[InstancePage, Names]:
    """One instance, also out of the trash, as a page of one."""
    shown = show_instance(tx, instance_id, None, deleted=None)
    return InstancePage((shown.item,), False, shown.now), _names(tx, [shown.item.server_id])
