"""What runs often must cost the same however much is at rest: its queries go through small indexes."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from unstuck.store import figures, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.prepared import Prepared

OFTEN: dict[str, tuple[Prepared, str]] = {
    "due servers": (servers._DUE, "ix_servers_due"),
    "servers on their way": (figures._SERVERS, "ix_servers_due"),
    "open operations": (figures._OTHERS["operation"], "uq_operations_open"),
    "uploads": (figures._OTHERS["image_upload"], "ix_images_upload_until"),
    "tombstones": (figures._TOMBSTONES, "ix_placements_tombstone"),
    "servers that failed": (figures._FAILED, "ix_servers_failed"),
    "servers that are off": (figures._OFF, "ix_servers_off"),
}


def plan(tx: Tx, query: Prepared) -> str:
    """How the database means to answer; with hardly any rows PostgreSQL must be told to care."""
    if tx.postgresql:
        tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
    compiled: Any = query._statement.compile(dialect=tx.conn.dialect)
    values = {**compiled.params, **{name: 1 for name in compiled.params if name in ("now", "most")}}
    given: Any = values if tx.postgresql else tuple(values[name] for name in compiled.positiontup)
    prefix = "EXPLAIN " if tx.postgresql else "EXPLAIN QUERY PLAN "
    return "\n".join(str(row[-1]) for row in tx.conn.exec_driver_sql(prefix + compiled.string, given))


@pytest.mark.parametrize("name", OFTEN)
def test_a_query_that_runs_often_uses_its_index(any_store: Store, name: str) -> None:
    query, index = OFTEN[name]
    assert index in any_store.read(plan, query)
