"""What the API asks of a database: databases, users, grants, root; asked of a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.guest.guest import PASSWORD, VERIFIER, Guest, anna, folder
from tests.guest.host_double import wait_for
from unstuck import __version__
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.requests import (
    ChangeUser,
    Check,
    Checked,
    CreateDatabases,
    CreateUsers,
    DatabaseInfo,
    DatabaseRequest,
    Describe,
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
from unstuck.core.instance.scram import verifier
from unstuck.core.instance.view import GuestStep, ServerState
from unstuck.core.instance.want import Origin, WantedDatabase, WantedUser

pytestmark = pytest.mark.xdist_group("guest-requests")  # one process has the server of all of them

ODD = "we\"ird \\ 'name; DROP %s $1"
OTHER = verifier("another", salt=b"fedcba9876543210")


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with folder() as root:
        made = Guest(root, FolderObjects(Path(tmp_path_factory.mktemp("objects"))))
        made.host.wants(made.want(origin=Origin()))
        made.start()
        made.ready()
        yield made
        made.end()


@pytest.fixture(autouse=True)
def shop(guest: Guest) -> Iterator[None]:
    """Each test begins with one database and its user, and leaves nothing."""
    assert guest.host.ask_database(CreateDatabases((WantedDatabase("shop"),))) == Ok()
    assert guest.host.ask_database(CreateUsers((anna("shop"),))) == Ok()
    yield
    guest.host.ask_database(DisableRoot())
    for user in answered(guest, ListUsers(100)).users:
        assert guest.host.ask_database(DropUser(user.name)) == Ok()
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
    assert answered(guest, ListUsers(10)).users == (UserInfo("anna", ("shop",)),)


def test_a_user_makes_tables_and_another_user_of_the_database_shares_them(guest: Guest) -> None:
    assert guest.host.ask_database(CreateUsers((WantedUser("bert", OTHER, ("shop",)),))) == Ok()
    with guest.connect() as anna_there:
        anna_there.execute("CREATE TABLE goods (name text)")
        with guest.connect("bert", password="another") as bert_there:
            bert_there.execute("INSERT INTO goods VALUES ('chair')")
            bert_there.execute("ALTER TABLE goods ADD COLUMN price int")
        assert anna_there.execute("SELECT name, price FROM goods").fetchall() == [("chair", None)]
    assert guest.host.ask_database(DropUser("anna")) == Ok()
    with guest.connect("bert", password="another") as bert_there:
        assert bert_there.execute("SELECT count(*) FROM goods").fetchone() == (1,)


def test_a_user_gets_into_no_other_database(guest: Guest) -> None:
    assert guest.host.ask_database(CreateDatabases((WantedDatabase("bank"),))) == Ok()
    for name in ("bank", "postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            guest.connect(database=name)
    assert guest.host.ask_database(Grant("anna", ("bank",))) == Ok()
    assert guest.host.ask_database(Grant("anna", ("bank",))) == Ok()
    assert answered(guest, GetUser("anna")).users == (UserInfo("anna", ("bank", "shop")),)
    with guest.connect(database="bank") as connection:
        connection.execute("CREATE TABLE t (n int)")
        assert guest.host.ask_database(Revoke("anna", "bank")) == Ok()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        guest.connect(database="bank")
    assert refused(guest, Revoke("anna", "bank")) == ("not-found", "database")


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (CreateDatabases((WantedDatabase("shop"),)), "exists", "name"),
        (CreateDatabases((WantedDatabase("new"), WantedDatabase("new"))), "invalid", "name"),
        (CreateDatabases((WantedDatabase("postgres"),)), "invalid", "name"),
        (CreateDatabases((WantedDatabase("pg_x"),)), "invalid", "name"),
        (CreateDatabases((WantedDatabase(""),)), "invalid", "name"),
        (CreateDatabases((WantedDatabase("ä" * 32),)), "invalid", "name"),
        (CreateDatabases((WantedDatabase("a\nb"),)), "invalid", "name"),
        (CreateDatabases((WantedDatabase("x", character_set="latin17"),)), "invalid", ""),
        (CreateDatabases((WantedDatabase("x", collate="nowhere"),)), "invalid", ""),
        (DropDatabase("nothing"), "not-found", "name"),
        (DropDatabase("template1"), "invalid", "name"),
        (GetUser("nobody"), "not-found", "name"),
        (GetUser("postgres"), "not-found", "name"),
        (DropUser("postgres"), "not-found", "name"),
        (DropUser("root"), "not-found", "name"),
        (ChangeUser("postgres", verifier=VERIFIER), "not-found", "name"),
        (ChangeUser("anna", new_name="root"), "invalid", "name"),
        (ChangeUser("anna", verifier="secret"), "invalid", "password"),
        (CreateUsers((anna(),)), "exists", "name"),
        (CreateUsers((WantedUser("bert", "secret"),)), "invalid", "password"),
        (CreateUsers((WantedUser("bert", VERIFIER, ("none",)),)), "not-found", "databases"),
        (CreateUsers((WantedUser("bert", VERIFIER, (), "10.0.0.1"),)), "invalid", "host"),
        (CreateUsers((WantedUser("bert", VERIFIER), WantedUser("bert", VERIFIER))), "invalid", "name"),
        (CreateUsers((WantedUser("unstuck_owner_1", VERIFIER),)), "invalid", "name"),
        (Grant("anna", ("nothing",)), "not-found", "databases"),
        (Grant("nobody", ("shop",)), "not-found", "name"),
        (Revoke("anna", "nothing"), "not-found", "database"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    guest: Guest, request_: DatabaseRequest, code: str, field: str
) -> None:
    assert refused(guest, request_) == (code, field)
    assert answered(guest, ListDatabases(10)).databases == (DatabaseInfo("shop"),)
    assert answered(guest, ListUsers(10)).users == (UserInfo("anna", ("shop",)),)


def test_databases_are_made_all_or_none(guest: Guest) -> None:
    several = CreateDatabases((WantedDatabase("one"), WantedDatabase("two", character_set="latin17")))
    assert refused(guest, several)[0] == "invalid"
    assert answered(guest, ListDatabases(10)).databases == (DatabaseInfo("shop"),)


def test_odd_names_are_names_and_nothing_else(guest: Guest) -> None:
    assert guest.host.ask_database(CreateDatabases((WantedDatabase(ODD),))) == Ok()
    assert guest.host.ask_database(CreateUsers((WantedUser(ODD, VERIFIER, (ODD, "shop")),))) == Ok()
    assert answered(guest, GetUser(ODD)).users == (UserInfo(ODD, ("shop", ODD)),)
    with guest.connect(ODD, ODD) as connection:
        connection.execute("CREATE TABLE t (n int)")
    assert guest.host.ask_database(ChangeUser(ODD, new_name=ODD + "2", verifier=OTHER)) == Ok()
    with guest.connect(ODD + "2", ODD, "another") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert guest.host.ask_database(Revoke(ODD + "2", ODD)) == Ok()
    assert guest.host.ask_database(DropUser(ODD + "2")) == Ok()
    assert guest.host.ask_database(DropDatabase(ODD)) == Ok()


def test_a_changed_password_is_the_only_one(guest: Guest) -> None:
    assert guest.host.ask_database(ChangeUser("anna", verifier=OTHER)) == Ok()
    guest.connect(password="another").close()
    with pytest.raises(psycopg.OperationalError):
        guest.connect(password=PASSWORD)


def test_what_a_dropped_user_owned_by_hand_stays_with_the_database(guest: Guest) -> None:
    with guest.connect() as connection:
        connection.execute("SET ROLE NONE; CREATE SCHEMA own; CREATE TABLE own.t AS SELECT 7 AS n")
    assert guest.host.ask_database(DropUser("anna")) == Ok()
    assert guest.host.ask_database(CreateUsers((anna("shop"),))) == Ok()
    with guest.connect() as connection:
        assert connection.execute("SELECT n FROM own.t").fetchone() == (7,)


def test_a_database_in_use_is_dropped(guest: Guest) -> None:
    with guest.connect() as connection:
        assert guest.host.ask_database(DropDatabase("shop")) == Ok()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert answered(guest, GetUser("anna")).users == (UserInfo("anna", ()),)


def test_root_makes_databases_and_roles_and_sees_every_database(guest: Guest) -> None:
    assert guest.host.ask_database(EnableRoot(VERIFIER)) == Ok()
    assert guest.host.ask_database(EnableRoot(VERIFIER)) == Ok()
    with guest.connect("root", "postgres") as root:
        root.execute("CREATE DATABASE by_root")
        root.execute("CREATE ROLE carl LOGIN")
    with guest.connect("root", "by_root") as root:
        root.execute("CREATE TABLE t AS SELECT 1 AS n")
    with guest.connect("root", "shop") as root:
        root.execute("CREATE TABLE by_root (n int)")
    assert answered(guest, ListUsers(10)).users == (UserInfo("anna", ("shop",)), UserInfo("carl", ()))
    assert guest.host.ask_database(Grant("anna", ("by_root",))) == Ok()
    with guest.connect(database="by_root") as connection:
        connection.execute("CREATE TABLE mine (n int)")
    with guest.connect("root", "by_root") as root:
        assert root.execute("SELECT n FROM t").fetchone() == (1,)
    assert guest.host.ask_database(DisableRoot()) == Ok()
    assert guest.host.ask_database(DisableRoot()) == Ok()
    with pytest.raises(psycopg.OperationalError):
        guest.connect("root", "postgres")


@pytest.mark.parametrize(
    "statement",
    [
        "GRANT pg_execute_server_program TO root",
        "GRANT pg_read_server_files TO root",
        "GRANT pg_write_server_files TO root",
        "ALTER ROLE root SUPERUSER",
        "ALTER ROLE root REPLICATION",
        "ALTER ROLE postgres PASSWORD 'x'",
        "GRANT postgres TO root",
        "CREATE ROLE boss SUPERUSER",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')",
        "ALTER SYSTEM SET work_mem = '1GB'",
        "SET ROLE pg_execute_server_program",
        "CREATE EXTENSION file_fdw",
        "LOAD '/tmp/x.so'",
        "UPDATE pg_authid SET rolsuper = true",
    ],
)
def test_root_is_bounded(guest: Guest, statement: str) -> None:
    assert guest.host.ask_database(EnableRoot(VERIFIER)) == Ok()
    with guest.connect("root", "postgres") as root, pytest.raises(psycopg.Error):
        root.execute(statement)


def test_root_is_a_superuser_where_the_operator_lets_it_and_bounded_again_when_he_does_not(
    guest: Guest,
) -> None:
    guest.host.wants(guest.want(origin=Origin(), data_recorded=True, superuser=True))
    wait_for(lambda: guest.host.view is not None and guest.host.view.step is GuestStep.READY)
    wait_for(lambda: guest.host.ask_database(EnableRoot(VERIFIER)) == Ok() and mighty(guest) == ["root"])
    with guest.connect("root", "postgres") as root:
        root.execute("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null'")
        root.execute("CREATE ROLE boss SUPERUSER LOGIN")
        root.execute("CREATE ROLE runner LOGIN")
        root.execute("GRANT pg_execute_server_program TO runner")
        root.execute("ALTER SYSTEM SET work_mem = '8MB'")

        guest.host.wants(guest.want(origin=Origin(), data_recorded=True))
        wait_for(lambda: mighty(guest) == [])
        with pytest.raises(psycopg.OperationalError):
            root.execute("SELECT 1")  # its session has ended
    with guest.connect("root", "postgres") as root:
        for statement in ("COPY (SELECT 1) TO PROGRAM 'true'", "GRANT pg_execute_server_program TO runner"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                root.execute(statement)
        assert root.execute("SHOW work_mem").fetchone() == ("4MB",)
        root.execute("CREATE ROLE clerk; DROP ROLE clerk; DROP ROLE boss; DROP ROLE runner")
    wait_for(lambda: guest.host.view is not None and guest.host.view.step is GuestStep.READY)


def mighty(guest: Guest) -> list[str]:
    """Who may more than a bounded root."""
    with guest.connect() as connection:
        found = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolname !~ '^(pg_|postgres$)' AND (rolsuper OR"
            " pg_has_role(oid, 'pg_execute_server_program', 'MEMBER'))"
        )
        return [str(row[0]) for row in found.fetchall()]


def test_a_user_in_the_middle_of_something_is_dropped(guest: Guest) -> None:
    with guest.connect() as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("BEGIN; LOCK TABLE t")
        assert guest.host.ask_database(DropUser("anna"), seconds=10) == Ok()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT")


@pytest.mark.slow
def test_an_open_transaction_holds_up_those_who_need_what_it_has_and_nobody_else(guest: Guest) -> None:
    secret = "a root's secret"
    assert guest.host.ask_database(EnableRoot(verifier(secret, salt=b"0123456789abcdef"))) == Ok()
    seen = []
    with guest.connect("root", database="postgres", password=secret) as root:
        root.autocommit = False
        root.execute("ALTER ROLE anna CONNECTION LIMIT 7")
        with ThreadPoolExecutor(12) as threads:
            waiting = [
                threads.submit(guest.host.ask_database, DropUser("anna"), seconds=10.0) for _ in range(12)
            ]
            while not all(one.done() for one in waiting):
                seen.append(guest.view().server)
                time.sleep(0.1)
        answers = [one.result() for one in waiting]
        root.rollback()
    assert set(seen) == {ServerState.UP}
    assert all(isinstance(answer, Failed) and answer.code == "unready" for answer in answers), answers
    assert any(isinstance(answer, Failed) and "another session" in answer.message for answer in answers)
    # Those that never had their turn are not made up for later.
    assert answered(guest, GetUser("anna")).users == (UserInfo("anna", ("shop",)),)


def test_of_several_who_ask_for_the_same_at_once_one_does_it_and_the_others_are_told_so(guest: Guest) -> None:
    def all_at_once(request: DatabaseRequest) -> list[Ok | Failed]:
        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(guest.host.ask_database, request) for _ in range(8)]
            return [one.result() for one in asked]

    for _ in range(5):
        for request, otherwise in (
            (CreateDatabases((WantedDatabase("same"),)), "exists"),
            (CreateUsers((WantedUser("same", VERIFIER, ("same",)),)), "exists"),
            (DropUser("same"), "not-found"),
            (DropDatabase("same"), "not-found"),
        ):
            answers = all_at_once(request)
            assert answers.count(Ok()) == 1, (request, answers)
            codes = {answer.code for answer in answers if isinstance(answer, Failed)}
            assert codes == {otherwise}, (request, answers)


def check(guest: Guest, query: str = "", database: str = "") -> Ok | Failed:
    answer = guest.host.ask_database(Check(20.0, database, query))
    assert isinstance(answer, Ok | Failed)
    return answer


def test_a_check_reads_every_row_and_the_owners_statement_says_whether_it_is_right(guest: Guest) -> None:
    with guest.connect() as there:
        there.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 500) n")
    said = check(guest)
    assert isinstance(said, Ok)
    assert said.checked == Checked(databases=1, tables=1, tables_read=1, rows=500)
    said = check(guest, "select count(*) = 500 from t", "shop")
    assert isinstance(said, Ok)
    assert said.checked is not None
    assert said.checked.value == "True"
    for query in (
        "select count(*) > 500 from t",
        "select 1 where false",
        "select n from gone",
        "select null",
    ):
        wrong = check(guest, query)
        assert isinstance(wrong, Failed)
        assert wrong.code == "wrong", query
    assert check(guest, "select 1", "nowhere") == Failed(
        "wrong", "there is no database 'nowhere' in it", "database"
    )


@pytest.mark.parametrize(
    "query",
    [
        "reset session authorization", "drop table t", "create table x (n int)", "select 1; select 2",
        "select pg_read_file('/etc/passwd')", "copy (select 1) to program 'true'", "sel ect",
        "set role unstuck_admin", "do $$ begin execute 'create table y (n int)'; end $$", "",
    ],
)  # fmt: skip
def test_a_check_may_read_and_nothing_else(guest: Guest, query: str) -> None:
    with guest.connect() as there:
        there.execute("CREATE TABLE t AS SELECT 1 AS n")
    said = check(guest, query or "select usesuper from pg_user where usename = session_user")
    assert isinstance(said, Failed)
    assert said.code in ("invalid", "wrong")
    with guest.connect() as there:
        assert there.execute("SELECT relname FROM pg_class WHERE relname IN ('t', 'x', 'y')").fetchall() == [
            ("t",)
        ]
    assert "unstuck_check" not in {user.name for user in answered(guest, ListUsers(100)).users}


def test_the_agent_says_what_it_is(guest: Guest) -> None:
    answer = guest.host.ask_database(Describe())
    assert isinstance(answer, Ok)
    assert answer.agent is not None
    assert answer.agent.threads >= 1
    assert 0 < answer.agent.vm_rss <= answer.agent.vm_hwm
    assert answer.agent.version == __version__
