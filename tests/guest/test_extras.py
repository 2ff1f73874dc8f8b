"""What a PostgreSQL offers beside databases and users: its log, extensions, users on loan; a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.guest.guest import VERIFIER, Guest, anna, folder
from tests.guest.host_double import wait_for
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.requests import (
    DisableExtension,
    EnableExtension,
    EndLoan,
    Failed,
    Lend,
    ListExtensions,
    ListUsers,
    LogPart,
    MoreRequest,
    Ok,
    ReadLog,
)
from unstuck.core.instance.want import Origin, WantedDatabase

pytestmark = pytest.mark.xdist_group("guest-extras")  # one process has the server of all of them

LOAN = "unstuck_loan_0123456789abcdef"


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with folder() as root:
        made = Guest(root, FolderObjects(Path(tmp_path_factory.mktemp("objects"))))
        made.host.wants(made.want(origin=Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))))
        made.start()
        made.ready()
        yield made
        made.end()


def said(guest: Guest, request: MoreRequest | ListUsers) -> Ok:
    answer = guest.host.ask_database(request)
    assert isinstance(answer, Ok), answer
    return answer


def refused(guest: Guest, request: MoreRequest | ListUsers) -> str:
    answer = guest.host.ask_database(request)
    assert isinstance(answer, Failed), answer
    return answer.code


def part(guest: Guest, most: int, after: int = -1) -> LogPart:
    found = said(guest, ReadLog(most, after)).log
    assert found is not None
    return found


def test_the_log_is_read_in_parts_of_whole_lines_and_followed(guest: Guest) -> None:
    whole = part(guest, 1 << 20)
    assert "database system is ready" in whole.text
    assert whole.after == whole.size
    first = part(guest, 400, 0)
    assert first.text
    assert first.text.endswith("\n")
    assert (first.text + part(guest, 1 << 20, first.after).text).startswith(first.text)
    assert part(guest, 1 << 20, whole.after).text == ""
    with guest.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute("SELECT nothing_like_that")
    wait_for(lambda: "nothing_like_that" in part(guest, 1 << 20, whole.after).text)
    assert part(guest, 50, 10**12).text  # it was begun anew


def test_extensions_are_enabled_used_and_disabled_by_name(guest: Guest) -> None:
    offered = {item.name: item for item in said(guest, ListExtensions("shop")).extensions}
    assert {"hstore", "pgcrypto", "pg_trgm", "pg_stat_statements"} <= set(offered)
    assert "file_fdw" not in offered
    assert offered["hstore"].version == ""
    for _ in range(2):
        said(guest, EnableExtension("shop", "hstore"))
    with guest.connect() as connection:
        assert connection.execute("SELECT 'a=>1'::hstore -> 'a'").fetchone() == ("1",)
        connection.execute("CREATE TABLE needs (h hstore)")
        assert refused(guest, DisableExtension("shop", "hstore")) == "refused"
        connection.execute("DROP TABLE needs")
    for _ in range(2):
        said(guest, DisableExtension("shop", "hstore"))
    said(guest, EnableExtension("shop", "earthdistance"))  # with cube, which it needs
    for name in ("file_fdw", "dblink", "plperlu", "no such", "../x", 'x"; DROP'):
        assert refused(guest, EnableExtension("shop", name)) == "not-found"
    for database in ("nowhere", "postgres", "template1"):
        assert refused(guest, ListExtensions(database)) == "not-found"
        assert refused(guest, EnableExtension(database, "hstore")) == "not-found"


def lend(guest: Guest, *, write: bool, seconds: float = 600.0, name: str = LOAN) -> None:
    said(guest, Lend(name, VERIFIER, "shop", seconds, write))


def test_a_user_on_loan_reads_all_writes_nothing_and_is_gone_in_the_end(guest: Guest) -> None:
    with guest.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS goods AS SELECT 7 AS n")
    lend(guest, write=False)
    with guest.connect(LOAN) as loan:
        assert loan.execute("SELECT n FROM goods").fetchone() == (7,)
        for statement in ("INSERT INTO goods VALUES (1)", "CREATE TABLE mine ()", "CREATE ROLE other"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                loan.execute(statement)
        assert LOAN not in {user.name for user in said(guest, ListUsers(100)).users}
        for _ in range(2):
            said(guest, EndLoan(LOAN))
        with pytest.raises(psycopg.OperationalError):
            loan.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        guest.connect(LOAN)


def test_what_a_user_on_loan_makes_stays_with_the_database(guest: Guest) -> None:
    lend(guest, write=True)
    with guest.connect(LOAN) as loan:
        loan.execute("CREATE TABLE brought AS SELECT 8 AS n")
    said(guest, EndLoan(LOAN))
    with guest.connect() as connection:
        assert connection.execute("SELECT n FROM brought").fetchone() == (8,)
        connection.execute("DROP TABLE brought")


def test_a_loan_ends_by_itself_and_is_removed_by_the_next(guest: Guest) -> None:
    lend(guest, write=False, seconds=1.0)
    wait_for(lambda: not gets_in(guest), 10)
    lend(guest, write=False, name="unstuck_loan_ffffffffffffffff")
    with guest.connect("unstuck_loan_ffffffffffffffff") as loan:
        found = loan.execute("SELECT count(*) FROM pg_roles WHERE rolname ~ '^unstuck_loan_'").fetchone()
        assert found == (1,)
    said(guest, EndLoan("unstuck_loan_ffffffffffffffff"))


def gets_in(guest: Guest) -> bool:
    try:
        guest.connect(LOAN).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("name", ["anna", "postgres", "root", "unstuck_loan_", "unstuck_loan_X'; --"])
def test_nobody_else_is_lent_or_ended(guest: Guest, name: str) -> None:
    assert refused(guest, Lend(name, VERIFIER, "shop", 10.0, write=True)) == "invalid"
    assert refused(guest, EndLoan(name)) == "invalid"
    assert refused(guest, Lend(LOAN, "plain", "shop", 10.0, write=False)) == "invalid"
    assert refused(guest, Lend(LOAN, VERIFIER, "nowhere", 10.0, write=False)) == "not-found"
