"""What the API asks of a MariaDB: databases, users with hosts, grants, root; asked of a real one."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.guest.guest import PASSWORD, Guest, anna, folder
from tests.guest.host_double import wait_for
from tests.guest.test_mariadb import VERIFIER, refusal, rows
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.native import verifier
from unstuck.core.instance.requests import (
    ChangeUser,
    Check,
    Checked,
    CreateDatabases,
    CreateUsers,
    DatabaseInfo,
    DatabaseRequest,
    DisableRoot,
    DropDatabase,
    DropUser,
    EnableRoot,
    Failed,
    GetUser,
    Grant,
    ListDatabases,
    ListUsers,
    Ok,
    Revoke,
    UserInfo,
)
from unstuck.core.instance.want import Origin, WantedDatabase, WantedUser
from unstuck.guest.datastores.mariadb.server import PROGRAM
from unstuck.guest.datastores.mariadb.words import literal

pytestmark = [
    pytest.mark.xdist_group("guest-mariadb"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path(PROGRAM).exists(), reason="MariaDB is not installed here"),
]
ODD = "we\"ird \\ 'na_me`; DROP %s $1"
OTHER = verifier("another")


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with folder() as root:
        made = Guest(root, FolderObjects(Path(tmp_path_factory.mktemp("objects"))), datastore="mariadb")
        made.host.wants(made.want(origin=Origin()))
        made.start()
        made.ready()
        yield made
        made.end()


@pytest.fixture(autouse=True)
def shop(guest: Guest) -> Iterator[None]:
    """Each test begins with one database and its user, and leaves nothing."""
    assert guest.host.ask_database(CreateDatabases((WantedDatabase("shop"),))) == Ok()
    assert guest.host.ask_database(CreateUsers((anna("shop", verifier=VERIFIER),))) == Ok()
    yield
    guest.host.ask_database(DisableRoot())
    for user in answered(guest, ListUsers(100)).users:
        assert guest.host.ask_database(DropUser(user.name, user.host)) == Ok()
    for database in answered(guest, ListDatabases(100)).databases:
        assert guest.host.ask_database(DropDatabase(database.name)) == Ok()


def answered(guest: Guest, request: DatabaseRequest) -> Ok:
    answer = guest.host.ask_database(request)
    assert isinstance(answer, Ok), answer
    return answer


def refused(guest: Guest, request: DatabaseRequest) -> tuple[str, str]:
    answer = guest.host.ask_database(request)
    assert isinstance(answer, Failed), answer
    return answer.code, answer.field


def test_lists_come_in_pages_in_the_order_of_names_without_the_systems_own(guest: Guest) -> None:
    assert guest.host.ask_database(CreateDatabases(tuple(WantedDatabase(n) for n in ("b", "A", "ä")))) == Ok()
    first = answered(guest, ListDatabases(2))
    assert first.databases == (DatabaseInfo("A"), DatabaseInfo("b"))
    assert first.more
    rest = answered(guest, ListDatabases(2, after="b"))
    assert rest.databases == (DatabaseInfo("shop"), DatabaseInfo("ä"))
    assert not rest.more
    here = WantedUser("anna", OTHER, (), "10.0.%")
    assert guest.host.ask_database(CreateUsers((here, WantedUser("bert", OTHER)))) == Ok()
    page = answered(guest, ListUsers(2))
    assert page.users == (UserInfo("anna", ("shop",)), UserInfo("anna", (), "10.0.%"))
    assert page.more
    assert answered(guest, ListUsers(2, after="anna@10.0.%")).users == (UserInfo("bert", ()),)
    assert answered(guest, ListUsers(1, after="anna")).users == (UserInfo("anna", (), "10.0.%"),)


def test_a_users_host_is_where_it_may_come_from(guest: Guest) -> None:
    there = WantedUser("carla", VERIFIER, ("shop",), "10.9.%")
    here = WantedUser("dora", VERIFIER, ("shop",), "127.0.0.%")
    assert guest.host.ask_database(CreateUsers((there, here))) == Ok()
    guest.connect("dora").close()
    with pytest.raises(pymysql.Error, match=r"not allowed to connect|Access denied"):
        guest.connect("carla")
    assert refused(guest, GetUser("carla")) == ("not-found", "name")
    assert answered(guest, GetUser("carla", "10.9.%")).users == (UserInfo("carla", ("shop",), "10.9.%"),)
    moved = ChangeUser("carla", "carlotta", OTHER, "10.9.%", "127.0.0.1")
    assert guest.host.ask_database(moved) == Ok()
    guest.connect("carlotta", password="another").close()
    for host in ("localhost", "::1", "10.0.0.0/255.0.0.0", "example.org", "%.0"):
        assert refused(guest, CreateUsers((WantedUser("eve", VERIFIER, (), host),))) == ("invalid", "host")


def test_a_user_gets_into_no_other_database_and_a_name_stands_for_no_other(guest: Guest) -> None:
    made = CreateDatabases((WantedDatabase("a_b"), WantedDatabase("axb"), WantedDatabase("100%")))
    assert guest.host.ask_database(made) == Ok()
    for name in ("a_b", "axb", "mysql", "sys"):
        with pytest.raises(pymysql.Error, match="Access denied"):
            guest.connect(database=name)
    assert guest.host.ask_database(Grant("anna", ("a_b", "100%"))) == Ok()
    assert guest.host.ask_database(Grant("anna", ("a_b",))) == Ok()
    assert answered(guest, GetUser("anna")).users == (UserInfo("anna", ("100%", "a_b", "shop")),)
    with pytest.raises(pymysql.Error, match="Access denied"):
        guest.connect(database="axb")
    with guest.connect(database="a_b") as connection:
        rows(connection, "CREATE TABLE t (n int)")
        assert guest.host.ask_database(Revoke("anna", "a_b")) == Ok()
        with pytest.raises(pymysql.Error):
            rows(connection, "SELECT * FROM t")
    assert refused(guest, Revoke("anna", "a_b")) == ("not-found", "database")
    assert refused(guest, Grant("anna", ("shop", "lost"))) == ("not-found", "databases")


def test_a_database_that_is_made_anew_lets_nobody_in_that_the_old_one_did(guest: Guest) -> None:
    assert guest.host.ask_database(DropDatabase("shop")) == Ok()
    assert guest.host.ask_database(CreateDatabases((WantedDatabase("shop"),))) == Ok()
    assert answered(guest, GetUser("anna")).users == (UserInfo("anna", ()),)
    with pytest.raises(pymysql.Error, match="Access denied"):
        guest.connect()


def test_odd_names_are_names_and_nothing_else(guest: Guest) -> None:
    assert guest.host.ask_database(CreateDatabases((WantedDatabase(ODD),))) == Ok()
    assert guest.host.ask_database(CreateUsers((WantedUser(ODD, VERIFIER, (ODD,)),))) == Ok()
    assert answered(guest, GetUser(ODD)).users == (UserInfo(ODD, (ODD,)),)
    with guest.connect(ODD, ODD) as connection:
        rows(connection, "CREATE TABLE t (n int)")
    assert guest.host.ask_database(Revoke(ODD, ODD)) == Ok()
    assert guest.host.ask_database(DropUser(ODD)) == Ok()
    assert guest.host.ask_database(DropDatabase(ODD)) == Ok()


def test_what_cannot_be_is_refused_and_changes_nothing(guest: Guest) -> None:
    for name in ("mysql", "SYS", "information_schema", "unstuck_x", "x" * 65, "", " a", "a\tb", "\U0001fa91"):
        assert refused(guest, CreateDatabases((WantedDatabase(name),))) == ("invalid", "name")
    for name in ("root", "mariadb.sys", "Unstuck", "PUBLIC", "", "x" * 81):
        assert refused(guest, CreateUsers((WantedUser(name, VERIFIER),))) == ("invalid", "name")
    assert refused(guest, CreateUsers((WantedUser("eve", "secret"),))) == ("invalid", "password")
    assert refused(guest, CreateDatabases((WantedDatabase("new", "klingon"),))) == ("invalid", "")
    mixed = CreateDatabases((WantedDatabase("new"), WantedDatabase("newer", "utf8mb4", "latin1_bin")))
    assert refused(guest, mixed) == ("invalid", "")
    assert refused(guest, CreateDatabases((WantedDatabase("new"), WantedDatabase("shop")))) == (
        "exists",
        "name",
    )
    assert answered(guest, ListDatabases(10)).databases == (DatabaseInfo("shop"),)
    both = CreateUsers((WantedUser("eve", VERIFIER), WantedUser("adam", VERIFIER, ("lost",))))
    assert refused(guest, both) == ("not-found", "databases")
    assert refused(guest, CreateUsers((WantedUser("eve", VERIFIER), anna(verifier=VERIFIER)))) == (
        "exists",
        "name",
    )
    for missing in (GetUser("eve"), DropUser("root"), ChangeUser("mysql"), Grant("unstuck", ("shop",))):
        assert refused(guest, missing) == ("not-found", "name")
    assert answered(guest, ListUsers(10)).users == (UserInfo("anna", ("shop",)),)


def test_a_database_has_the_character_set_that_was_asked_for(guest: Guest) -> None:
    made = CreateDatabases((WantedDatabase("old", "latin1", "latin1_german1_ci"), WantedDatabase("new")))
    assert guest.host.ask_database(made) == Ok()
    assert guest.host.ask_database(Grant("anna", ("old", "new"))) == Ok()
    with guest.connect() as connection:
        found = {
            row[0]: row[1:]
            for row in rows(
                connection,
                "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME"
                " FROM information_schema.SCHEMATA",
            )
        }
    assert found["old"] == ("latin1", "latin1_german1_ci")
    assert found["new"][0] == "utf8mb4"


def test_a_dropped_user_is_gone_at_once(guest: Guest) -> None:
    with guest.connect() as connection:
        assert guest.host.ask_database(DropUser("anna")) == Ok()
        time.sleep(0.2)
        with pytest.raises(pymysql.Error):
            rows(connection, "SELECT 1")
    with pytest.raises(pymysql.Error, match="Access denied"):
        guest.connect(password=PASSWORD)


BEYOND_ROOT = (
    "SELECT * FROM mysql.global_priv", "UPDATE mysql.global_priv SET Priv = '{}'",
    "SELECT * FROM mysql.unstuck_data", "DELETE FROM mysql.unstuck_data", "CREATE TABLE mysql.x (a int)",
    "DROP DATABASE mysql", "DROP DATABASE sys", "DROP DATABASE performance_schema",
    "CREATE TABLE sys.x (a int)", "CREATE PROCEDURE mysql.p() SELECT 1", "CREATE USER eve",
    "ALTER USER anna IDENTIFIED BY 'x'", "SET PASSWORD FOR anna = PASSWORD('x')",
    "RENAME USER 'mysql'@'localhost' TO 'mysql'@'%'", "GRANT ALL ON `%`.* TO anna",
    "GRANT SELECT ON mysql.* TO root@'%'", "GRANT USAGE ON shop.* TO anna IDENTIFIED BY 'x'",
    "GRANT SELECT ON shop.* TO PUBLIC", "CREATE ROLE strong", "SET GLOBAL max_connections = 3",
    "SET GLOBAL event_scheduler = ON", "SET SESSION sql_log_bin = 0", "SELECT 1 INTO OUTFILE '/tmp/x'",
    "LOAD DATA INFILE '/etc/passwd' INTO TABLE shop.t", "SHUTDOWN", "FLUSH PRIVILEGES", "FLUSH TABLES",
    "FLUSH TABLES WITH READ LOCK", "RESET MASTER", "PURGE BINARY LOGS TO 'binlog.000002'",
    "SHOW BINARY LOGS", "BACKUP STAGE START", "INSTALL SONAME 'ha_x'",
    "CREATE FUNCTION f RETURNS INTEGER SONAME 'x.so'", "CHANGE MASTER TO MASTER_HOST = 'x'",
    "CREATE DEFINER = 'mysql'@'localhost' PROCEDURE shop.p() SELECT 1",
    "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'x')",
    "CREATE TABLE shop.g LIKE mysql.global_priv", "RENAME TABLE mysql.proc TO shop.proc",
    "LOCK TABLES mysql.global_priv WRITE",
)  # fmt: skip


def test_root_is_bounded_and_reaches_nothing_of_the_agents(guest: Guest) -> None:
    assert guest.host.ask_database(EnableRoot(OTHER)) == Ok()
    wait_for(lambda: guest.view().root_enabled, 20)
    with guest.connect("root", "shop", "another") as root:
        rows(root, "CREATE TABLE shop.t (a int)")
        rows(root, "CREATE DATABASE own")
        rows(root, "CREATE TABLE own.t (a int) DATA DIRECTORY = '/tmp'")
        rows(root, "CREATE VIEW own.v AS SELECT * FROM shop.t")
        got_through = [statement for statement in BEYOND_ROOT if _works(root, statement)]
        assert not got_through
        ours = pymysql.connect(
            unix_socket=str(guest.run / "pg" / "mariadb.sock"), user=pwd.getpwuid(os.geteuid()).pw_name,
            ssl_disabled=True,
        )  # fmt: skip
        with ours:
            assert refusal(root, f"KILL {ours.thread_id()}") == 1095
            assert refusal(root, f"KILL USER {literal(ours.user.decode())}@'localhost'") == 1095
            assert rows(ours, "SELECT 1") == [(1,)]
        assert refusal(root, "SELECT * FROM own.missing") == 1146
        assert rows(root, "SELECT LOAD_FILE('/etc/passwd')") == [(None,)]
    assert {item.name for item in answered(guest, ListDatabases(9)).databases} == {"own", "shop"}
    assert answered(guest, ListUsers(9)).users == (UserInfo("anna", ("shop",)),)
    with guest.connect("root", "shop", "another") as root:
        assert guest.host.ask_database(DisableRoot()) == Ok()
        wait_for(lambda: not guest.view().root_enabled, 20)
        with pytest.raises(pymysql.Error):
            rows(root, "SELECT 1")
    with pytest.raises(pymysql.Error, match=r"locked|Access denied"):
        guest.connect("root", "shop", "another")
    assert guest.host.ask_database(EnableRoot(VERIFIER)) == Ok()
    with guest.connect("root", "own") as root:
        assert rows(root, "SELECT * FROM own.v") == []


def _works(connection: Any, statement: str) -> bool:
    try:
        rows(connection, statement)
    except pymysql.Error as error:
        return error.args[0] in (2006, 2013)
    return True


def test_a_request_that_a_transaction_holds_up_is_told_so(guest: Guest) -> None:
    with guest.connect() as connection:
        rows(connection, "CREATE TABLE t (n int)")
        connection.begin()
        rows(connection, "INSERT INTO t VALUES (1)")
        assert refused(guest, DropDatabase("shop")) == ("unready", "")
        connection.rollback()
    assert guest.host.ask_database(DropDatabase("shop")) == Ok()
    assert guest.host.ask_database(CreateDatabases((WantedDatabase("shop"),))) == Ok()


def check(guest: Guest, query: str = "", database: str = "") -> Ok | Failed:
    answer = guest.host.ask_database(Check(20.0, database, query))
    assert isinstance(answer, Ok | Failed)
    return answer


def test_a_check_reads_every_row_may_do_nothing_else_and_the_owner_says_what_is_right(guest: Guest) -> None:
    with guest.connect() as there, there.cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT seq AS n FROM seq_1_to_500")
    said = check(guest)
    assert isinstance(said, Ok)
    assert said.checked == Checked(databases=1, tables=1, tables_read=1, rows=500)
    said = check(guest, "select count(*) = 500 from t", "shop")
    assert isinstance(said, Ok)
    assert said.checked is not None
    assert said.checked.value == "1"
    for query in (
        "select count(*) > 500 from t",
        "select 1 from t where n < 0",
        "select n from gone",
        "select null",
    ):
        wrong = check(guest, query)
        assert isinstance(wrong, Failed)
        assert wrong.code == "wrong", query
    for query in (
        "drop table t", "create table x (n int)", "select 1; select 2",
        "select load_file('/etc/passwd') is not null",
        "select 1 into outfile '/tmp/check'", "sel ect", "set global read_only = 0",
    ):  # fmt: skip
        refused_ = check(guest, query)
        assert isinstance(refused_, Failed), query
        assert refused_.code in ("invalid", "wrong"), query
    assert check(guest, "select 1", "nowhere").__class__ is Failed
    assert "unstuck_check" not in {user.name for user in answered(guest, ListUsers(100)).users}
