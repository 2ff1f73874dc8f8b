"""Accepted requests of a server, as the compute API's instance actions."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Invalid, NotFound
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import operations
from unstuck.store.server_lists import ServerItem, find_server


class OperationRow(msgspec.Struct, frozen=True):
    id: str
    resource_id: str
    kind: str
    state: str
    reason: str
    request_id: str
    user_id: str
    project_id: str
    host: str | None
    started_wall: float
    finished_wall: float | None


_COLUMNS = sa.select(*(operations.c[name] for name in OperationRow.__struct_fields__))


class Operations(msgspec.Struct, frozen=True):
    """A page of a server's operations, the newest first."""

    server: ServerItem
    rows: tuple[OperationRow, ...]
    more: bool


def list_operations(
    tx: Tx,
    server_id: str,
    project_id: str | None,
    *,
    removed: bool,
    limit: int,
    marker: str | None = None,
    since: float | None = None,
    before: float | None = None,
) -> Operations:
    """What was asked of a server. ``marker`` is a request id; ``removed``: also of one that is gone."""
    server = find_server(tx, server_id, project_id, removed=removed)
    query = _COLUMNS.where(operations.c.resource_id == server_id)
    changed = sa.func.coalesce(operations.c.finished_wall, operations.c.started_wall)
    if since is not None:
        query = query.where(changed >= since)
    if before is not None:
        query = query.where(changed <= before)
    rows = [OperationRow(**row._mapping) for row in tx.execute(
        query.order_by(operations.c.started_wall.desc(), operations.c.id.desc())
    )]  # fmt: skip
    if marker is not None:
        places = [index for index, row in enumerate(rows) if row.request_id == marker]
        if not places:
            raise Invalid(f"marker [{marker}] not found")
        rows = rows[places[0] + 1 :]
    return Operations(server, tuple(rows[:limit]), len(rows) > limit > 0)


def get_operation(
    tx: Tx, server_id: str, project_id: str | None, request_id: str, *, removed: bool
) -> Operations:
    """One request's operation; raises :class:`NotFound`."""
    server = find_server(tx, server_id, project_id, removed=removed)
    query = _COLUMNS.where(operations.c.resource_id == server_id, operations.c.request_id == request_id)
    row = tx.execute(query).first()
    if row is None:
        raise NotFound(f"Action for request_id {request_id} on instance {server_id} not found")
    return Operations(server, (OperationRow(**row._mapping),), False)
