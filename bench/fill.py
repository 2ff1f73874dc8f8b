"""Many servers at rest, cloned in the database from one that was really made."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from unstuck.store.engine import Store, Tx
from unstuck.store.schema.compute import hosts, operations, placements, servers
from unstuck.store.schema.network import networks, ports, subnets

PER_HOST = 100
"""Servers on one host."""
_FIRST = 100_000_000


def clone(store_url: str, server_id: str, count: int, *, project: str | None = None) -> None:
    """``count`` copies of the server with its operation, placement and port, on silent hosts and a network of
    their own. ``project`` None: a hundred servers in each of many projects."""
    store = Store(store_url)
    try:
        store.transact(_clone, server_id, count, project)
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("ANALYZE")
    finally:
        store.close()


def _clone(tx: Tx, server_id: str, count: int, project: str | None) -> None:
    number = sa.select(sa.literal(1).label("i")).cte("numbers", recursive=True)
    number = number.union_all(sa.select(number.c.i + 1).where(number.c.i < count))
    i = number.c.i

    def text(offset: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
        return sa.cast(offset + _FIRST, sa.String)

    new = "00000000-0000-4000-8000-000" + text(i)
    whose = sa.literal(project) if project else "project-" + sa.cast(i // PER_HOST, sa.String)
    host = "host-" + sa.cast((i - 1) // PER_HOST, sa.String)
    own_host = {"id": host, "hostname": host, "version": sa.literal(1), "seen": sa.literal(0.0)}
    network = {"id": sa.literal("bench"), "name": sa.literal("bench"), "shared": sa.false()}
    port = "port-" + text(i)
    wanted: list[tuple[sa.Table, Any, dict[str, Any]]] = [
        (hosts, (i - 1) % PER_HOST == 0, own_host),
        (servers, sa.true(), {"id": new, "project_id": whose}),
        (operations, sa.true(), {"id": "op-" + text(i), "resource_id": new, "project_id": whose}),
        (placements, sa.true(), {"server_id": new, "host_id": host}),
        (networks, i == 1, network),
        (subnets, i == 1, {"id": sa.literal("bench"), "network_id": sa.literal("bench")}),
        (ports, sa.true(), {"id": port, "server_id": new, "network_id": sa.literal("bench"), "address": port,
                            "number": i, "subnet_id": sa.literal("bench"), "mac": port, "project_id": whose}),
    ]  # fmt: skip
    which = {
        servers: servers.c.id == server_id,
        operations: operations.c.resource_id == server_id,
        placements: placements.c.server_id == server_id,
        ports: ports.c.server_id == server_id,
        hosts: sa.true(), networks: sa.true(), subnets: sa.true(),
    }  # fmt: skip
    for table, part, changed in wanted:
        columns = [changed.get(column.name, column) for column in table.c]
        rows = sa.select(*columns).select_from(table.join(number, sa.true())).where(which[table], part)
        tx.execute(sa.insert(table).from_select([column.name for column in table.c], rows))
