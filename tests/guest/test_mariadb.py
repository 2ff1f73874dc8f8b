"""MariaDB in a guest: made, served, found again, and what its users may do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pymysql
import pytest

from tests.guest.guest import PASSWORD, Guest, anna, processes_named
from tests.guest.host_double import wait_for
from unstuck.core.backup.content import Content, Datastore, Position
from unstuck.core.instance.native import verifier
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import Origin, WantedDatabase
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.place import Place, place_of
from unstuck.guest.datastores.mariadb.receive import _check
from unstuck.guest.datastores.mariadb.server import PROGRAM
from unstuck.guest.datastores.mariadb.tape import FORM

pytestmark = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="MariaDB is not installed here")
VERIFIER = verifier(PASSWORD)
SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop", verifier=VERIFIER),))


@pytest.fixture
def guest(guests: Callable[..., Guest]) -> Guest:
    return guests("mariadb")


def rows(connection: Any, statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def refusal(connection: Any, statement: str) -> int:
    with pytest.raises(pymysql.Error) as caught:
        rows(connection, statement)
    return int(caught.value.args[0])


def variable(connection: Any, name: str) -> str:
    return str(rows(connection, f"SHOW GLOBAL VARIABLES LIKE '{name}'")[0][1])


@pytest.mark.slow
def test_an_agent_makes_a_database_that_keeps_what_it_promises(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    view = guest.ready()
    assert view.server is ServerState.UP
    assert view.applied
    assert view.facts["server_version"].startswith(guest.want().version)
    assert view.facts["system_identifier"] == "generation-1"
    with guest.connect() as connection:
        rows(connection, "CREATE TABLE goods (name varchar(100) PRIMARY KEY)")
        rows(connection, "INSERT INTO goods VALUES ('chair 🪑')")
        kept = {
            "sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1", "binlog_format": "ROW",
            "gtid_strict_mode": "ON", "log_bin": "ON", "innodb_doublewrite": "ON",
            "require_secure_transport": "ON", "have_symlink": "DISABLED", "local_infile": "OFF",
        }  # fmt: skip
        assert {name: variable(connection, name) for name in kept} == kept
        assert rows(connection, "SHOW STATUS LIKE 'Ssl_version'")[0][1].startswith("TLSv1.")
    with pytest.raises(pymysql.Error, match=r"insecure transport|Access denied"):
        guest.connect(ssl_disabled=True)
    with pytest.raises(pymysql.Error, match="Access denied"):
        guest.connect(password="wrong")
    for stranger in ("root", "mysql", "unstuck", "nobody", ""):
        with pytest.raises(pymysql.Error, match="Access denied"):
            guest.connect(user=stranger, database="mysql", password="")


@pytest.mark.slow
def test_killing_the_agent_harms_no_session_and_the_next_one_adopts_the_server(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    pid = guest.server_pid()
    with guest.connect() as connection:
        guest.kill()
        guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
        guest.host.view = None
        guest.start()
        guest.ready()
        assert rows(connection, "SELECT 1") == [(1,)]
    assert guest.server_pid() == pid


@pytest.mark.slow
def test_a_killed_server_recovers_what_it_acknowledged(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        rows(connection, "CREATE TABLE t (n int PRIMARY KEY)")
        for number in range(20):
            rows(connection, f"INSERT INTO t VALUES ({number})")
    first = guest.server_pid()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: guest.server_pid() not in (0, first), 30)
    guest.host.view = None
    guest.ready()
    with guest.connect() as connection:
        assert rows(connection, "SELECT count(*) FROM t") == [(20,)]


@pytest.mark.slow
def test_a_frozen_server_is_told_and_a_restart_ends_it(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    pid = guest.server_pid()
    os.kill(pid, signal.SIGSTOP)
    assert guest.trouble("server-mute").server is ServerState.UNCLEAR
    guest.host.wants(guest.want(origin=SHOP, restart=1))
    guest.ready()
    assert guest.server_pid() not in (0, pid)


@pytest.mark.slow
def test_memory_and_parameters_are_taken_by_the_running_server(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    pid = guest.server_pid()
    with guest.connect() as connection:
        before = int(variable(connection, "innodb_buffer_pool_size"))
        guest.host.wants(guest.want(origin=SHOP, ram_mb=512))
        wait_for(lambda: int(variable(connection, "innodb_buffer_pool_size")) > before, 30)
        guest.ready()
    assert guest.server_pid() == pid


@pytest.mark.slow
def test_what_its_owner_sets_is_taken_or_waits_for_a_restart(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    pid = guest.server_pid()
    given = {"max_connections": "55", "sort_buffer_size": "1048576", "performance_schema": "on"}
    guest.host.wants(guest.want(origin=SHOP, parameters=given))
    wait_for(lambda: (told := guest.view().configured) and told.applied, 30)
    assert waiting(guest) == ("performance_schema",)
    with guest.connect() as connection:
        assert variable(connection, "max_connections") == "55"
        assert variable(connection, "sort_buffer_size") == "1048576"
    assert guest.server_pid() == pid
    guest.host.wants(guest.want(origin=SHOP, parameters=given, restart=1))
    wait_for(lambda: (told := guest.view().configured) and told.applied == given, 60)
    guest.host.wants(guest.want(origin=SHOP, parameters={"log_bin": "/tmp/x"}, restart=1))
    wait_for(lambda: (told := guest.view().configured) and told.refused, 30)
    guest.connect().close()


def waiting(guest: Guest) -> tuple[str, ...]:
    told = guest.view().configured
    return () if told is None else told.waiting


@pytest.mark.slow
def test_data_of_another_generation_is_left_alone(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    guest.host.wants(guest.want(origin=SHOP, generation="generation-2"))
    assert "generation-1" in str(guest.trouble("data-foreign").trouble)


@pytest.mark.slow
def test_a_making_that_was_cut_off_is_made_again(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start("guest.init")
    guest.stopped()
    guest.kill()
    guest.start()
    time.sleep(1.5)  # somewhere in it
    guest.kill()
    guest.start()
    guest.ready()
    guest.connect().close()


GOODS = "CREATE TABLE goods AS SELECT seq AS n, md5(seq) AS word FROM seq_1_to_50000"


def restored(guests: Callable[..., Guest], source: Guest, nonce: str = "n1", **changes: Any) -> Guest:
    other = guests("mariadb")
    other.host.source = source.source(nonce)
    values: dict[str, Any] = {"generation": "generation-2", "origin": Origin(backup_id="backup-1")}
    other.host.wants(other.want(**(values | changes)))
    other.start()
    return other


def test_a_backup_under_load_is_restored_into_another_instance(guests: Callable[..., Guest]) -> None:
    guest = guests("mariadb")
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        rows(connection, GOODS)
        rows(connection, "CREATE TABLE ledger (n int PRIMARY KEY)")
    acknowledged: list[int] = []
    over = threading.Event()

    def write() -> None:
        with guest.connect() as connection:
            while not over.is_set():
                rows(connection, f"INSERT INTO ledger VALUES ({len(acknowledged)})")
                acknowledged.append(len(acknowledged))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: len(acknowledged) > 5, 20)
        before = len(acknowledged)
        content = guest.back_up("n1")
    finally:
        over.set()
        writer.join()
    assert content.content == "mbstream"
    assert content.system_identifier == "generation-1"
    assert place_of(content.stop.lsn).gtid
    other = restored(guests, guest)
    view = other.ready()
    assert view.facts["system_identifier"] == "generation-2"
    with other.connect() as connection:
        assert rows(connection, "SELECT count(*), sum(word = md5(n)) FROM goods") == [(50000, 50000)]
        found = [row[0] for row in rows(connection, "SELECT n FROM ledger ORDER BY n")]
    assert found == list(range(len(found)))
    assert before <= len(found) <= len(acknowledged) + 1
    assert not (other.volume / "making").exists()


@pytest.mark.slow
def test_nothing_of_a_backup_is_left_when_its_agent_is_killed_in_it(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    guest.kill()
    guest.host.wants(guest.want(origin=SHOP, backup=guest.backup_want("n1")))
    guest.start("guest.read")
    guest.stopped()
    wait_for(lambda: bool(processes_named("mariadb-backup", guest.volume)), 20)
    guest.kill()
    wait_for(lambda: not processes_named("mariadb-backup", guest.volume), 20)
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    assert guest.back_up("n2").size > 1 << 20


@pytest.mark.slow
def test_a_damaged_backup_is_never_an_empty_database(guests: Callable[..., Guest]) -> None:
    guest = guests("mariadb")
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    guest.back_up("n1")
    prefix, content, key = guest.source("n1")
    place = place_of(content.stop.lsn)
    later = Position(content.stop.timeline, Place(place.checkpoint, place.lsn + 1, place.file, place.at).text)
    for changes in ({"system_identifier": "another"}, {"stop": later}, {"chunks": content.chunks[:-1]}):
        other = guests("mariadb")
        chunks = changes.get("chunks", content.chunks)
        size = sum(chunk.length for chunk in chunks)
        other.host.source = prefix, msgspec.structs.replace(content, **changes, size=size), key
        want = other.want(generation="generation-2", origin=Origin(backup_id="backup-1"))
        other.host.wants(want)
        other.start()
        view = other.trouble("backup-damaged")
        assert view.trouble is not None
        assert view.trouble.final
        assert not (other.volume / "database").exists()
        other.kill()


@pytest.mark.slow
def test_a_chain_of_backups_is_restored_to_its_end(guests: Callable[..., Guest]) -> None:
    guest = guests("mariadb")
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        rows(connection, GOODS)
        rows(connection, "CREATE TABLE old (n int)")
        full = guest.back_up("n1")
        rows(connection, "CREATE TABLE later (n int PRIMARY KEY)")
        rows(connection, "INSERT INTO later VALUES (1)")
        rows(connection, "DROP TABLE old")
        rows(connection, "UPDATE goods SET word = 'first' WHERE n = 7")
        first = guest.back_up("n2", since="n1")
        rows(connection, "INSERT INTO later VALUES (2)")
        rows(connection, "ALTER TABLE goods ADD COLUMN price int")
        second = guest.back_up("n3", since="n2")
        rows(connection, "INSERT INTO later VALUES (3)")
    assert first.content == second.content == "mbstream-incremental"
    assert first.size < full.size * 0.75
    assert first.start == full.stop
    other = guests("mariadb")
    other.host.source, *other.host.above = [guest.source(nonce) for nonce in ("n3", "n2", "n1")]
    other.host.wants(other.want(generation="generation-2", origin=Origin(backup_id="backup-1")))
    other.start()
    other.ready()
    with other.connect() as connection:
        assert rows(connection, "SHOW TABLES") == [("goods",), ("later",)]
        assert rows(connection, "SELECT n FROM later ORDER BY n") == [(1,), (2,)]
        assert rows(connection, "SELECT word, price FROM goods WHERE n = 7") == [("first", None)]
        assert rows(connection, "SELECT count(*), sum(word = md5(n)) FROM goods") == [(50000, 49999)]


def test_a_copy_fits_any_server_of_its_line_and_no_other(guest: Guest) -> None:
    place = Position(1, "0,0,binlog.000001:4,0-1-1")
    content = Content(
        datastore=Datastore("mariadb", "10.11", "10.11.1"), system_identifier="generation-1", start=place,
        stop=place, chunk_size=1, size=0, chunks=(), content=FORM,
    )  # fmt: skip
    for version in ("10.11.1", "10.11.19", "10.11"):
        _check(guest.want(version=version), content, FORM)
    for version in ("10.6.20", "11.4.2"):
        with pytest.raises(DatastoreError, match=r"the backup is of mariadb 10\.11, the instance"):
            _check(guest.want(version=version), content, FORM)


@pytest.mark.slow
def test_a_child_needs_a_parent_of_the_same_data(guests: Callable[..., Guest]) -> None:
    guest = guests("mariadb")
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    content = guest.back_up("n1")
    for changes in (
        {"system_identifier": "another"},
        {"datastore": Datastore("mariadb", "10.11", "10.11.1")},
        {"stop": Position(1, "0/16B3748")},
    ):
        guest.host.finished["n1"] = msgspec.structs.replace(content, **changes)
        nonce = f"n{len(guest.host.gave_up) + 2}"
        with pytest.raises(AssertionError, match="make a full backup"):
            guest.back_up(nonce, since="n1")
