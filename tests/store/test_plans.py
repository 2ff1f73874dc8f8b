"""What runs often must cost the same however much is at rest: its queries go through small indexes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests import postgres
from tests.stores import opened
from unstuck.store import (
    agents,
    asks,
    clock,
    database_quotas,
    figures,
    instance_backups,
    instance_guests,
    instance_rows,
    instance_want,
    instance_work,
    networks,
    quotas,
    rows,
    server_lists,
    servers,
)
from unstuck.store.engine import Store, Tx
from unstuck.store.prepared import Prepared

OFTEN: dict[str, tuple[Prepared, str]] = {
    "due servers": (servers._DUE, "ix_servers_due"),
    "servers on their way": (figures._SERVERS, "ix_servers_due"),
    "due instances": (instance_work._DUE, "ix_instances_due"),
    "instances on their way": (figures._OTHERS["instance"], "ix_instances_due"),
    "open operations": (figures._OTHERS["operation"], "uq_operations_open"),
    "uploads": (figures._OTHERS["image_upload"], "ix_images_upload_until"),
    "tombstones": (figures._TOMBSTONES, "ix_placements_tombstone"),
    "servers that failed": (figures._FAILED, "ix_servers_failed"),
    "servers that are off": (figures._OFF, "ix_servers_off"),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all of these, which change nothing; new, because PostgreSQL plans by what a table once held."""
    if request.param == "postgresql":
        server: postgres.Postgres = request.getfixturevalue("postgres_server")
        postgres.copy(server.address, "plans", "template")
        made = opened(postgres.url(server.address, "plans"))
    else:
        path = tmp_path_factory.mktemp("plans") / "store.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        made = opened(f"sqlite:///{path}")
    yield made
    made.close()
    if request.param == "postgresql":
        postgres.drop(server.address, "plans")


def plan(tx: Tx, query: Prepared) -> str:
    """How the database means to answer; with hardly any rows PostgreSQL must be told to care."""
    if tx.postgresql:
        tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
    compiled: Any = query._statement.compile(dialect=tx.conn.dialect)
    values = {**compiled.params, **{name: 1 for name in compiled.params if name in ("now", "most", "wall")}}
    given: Any = values if tx.postgresql else tuple(values[name] for name in compiled.positiontup)
    prefix = "EXPLAIN " if tx.postgresql else "EXPLAIN QUERY PLAN "
    return "\n".join(str(row[-1]) for row in tx.conn.exec_driver_sql(prefix + compiled.string, given))


@pytest.mark.parametrize("name", OFTEN)
def test_a_query_that_runs_often_uses_its_index(any_store: Store, name: str) -> None:
    query, index = OFTEN[name]
    assert index in any_store.transact(plan, query)


WHOLE = {
    "a server": rows._ONE,
    "a server as it is shown": server_lists._ONE,
    "a server's ports": server_lists._PORTS_OF_ONE,
    "a heartbeat": agents._BEAT,
    "a host's incarnation": agents._INCARNATION,
    "a host's news": agents._WANTS,
    "a host's servers": agents._IDS,
    "a host's questions": agents._ASKS,
    "a claim": agents._CLAIM,
    "a grant": agents._STATE,
    "an observation": agents._OBSERVE,
    "leases of the former incarnation": agents._END_LEASES,
    "questions that are over": asks._SWEEP,
    "whether an address is taken": networks._TAKEN,
    "the next free address": networks._GAP,
    "a project's servers": quotas._USED,
    "room on a host": servers._USED,
    "an instance": instance_rows._ONE,
    "an instance's server": instance_rows._HOST,
    "the instance in a server": instance_rows._OF_SERVER,
    "what is wanted of a database": instance_want._IN_SERVER,
    "a guest's report": instance_guests._OBSERVE,
    "a guest's hello": instance_guests._REGISTRATION,
    "an instance's live backup": instance_backups._LIVE_OF_ONE,
    "what databases a project has": database_quotas._USED,
    "due servers": servers._DUE,
    "the clock": clock._TICK,
}
"""What every heartbeat, report, sweep and create asks."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_query_that_runs_often_reads_no_table_as_a_whole(any_store: Store, name: str) -> None:
    lines = any_store.transact(plan, WHOLE[name]).splitlines()
    whole = [line for line in lines if "Seq Scan" in line or ("SCAN " in line and "USING" not in line)]
    assert [line for line in whole if "clock" not in line] == []  # which has one row


def test_room_is_summed_up_through_the_index_of_each_host_that_may_be_chosen(any_store: Store) -> None:
    """Not over all placements: those on silent or disabled hosts made every choice slower."""
    found = any_store.transact(plan, servers._HOSTS_BY_ROOM)
    assert "ix_placements_host" in found
    assert "Seq Scan on placements" not in found


@pytest.mark.parametrize("query", [database_quotas._OF_USERS, *database_quotas._OF_OTHERS])
def test_backups_are_counted_by_who_made_them(store: Store, query: Prepared) -> None:
    """Not among all of the project's: a thousand scheduled ones made each that somebody asked for slower.

    On SQLite: what PostgreSQL chooses depends on how many there are (measured by ``make bench``).
    """
    assert "ix_backups_quota (project_id=? AND made_by" in store.transact(plan, query)
