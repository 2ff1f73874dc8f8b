"""Who was given root of an instance: written down before the instance is asked to enable it."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.store.engine import Tx
from unstuck.store.instance_create import note_operation
from unstuck.store.schema.compute import operations
from unstuck.store.servers import Caller

KIND = "root"


class RootAsked(msgspec.Struct, frozen=True):
    wall: float
    user_id: str


def note_root(tx: Tx, instance_id: str, caller: Caller) -> None:
    """It is asked for now."""
    note_operation(tx, instance_id, KIND, caller)


def last_root(tx: Tx, instance_id: str) -> RootAsked | None:
    """When it was asked for last, and by whom; None: never."""
    query = (
        sa.select(operations.c.started_wall, operations.c.user_id)
        .where(operations.c.resource_id == instance_id, operations.c.kind == KIND)
        .order_by(operations.c.started_wall.desc())
        .limit(1)
    )
    row = tx.execute(query).first()
    return None if row is None else RootAsked(row.started_wall, row.user_id)
