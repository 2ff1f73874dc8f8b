"""``unstuck db``: the whole way from create to restore, over the API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from database_running import Databases
from running import PASSWORD
from tests import postgres as own

from unstuck.cli.main import run
from unstuck.core.instance.view import ServerState
from unstuck.core.server.data import Thing, Trouble
from unstuck.runtime.state import StateFile
from unstuck.store.engine import Store

pytestmark = pytest.mark.xdist_group("client-db")  # one process has the server of all of them

PSQL = """#!/bin/sh
printf '%s\\n' "$@"
printf 'password %s\\n' "$PGPASSWORD"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[own.Postgres]:
    if own.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    with own.controlled(durable=False) as made:
        yield made


@pytest.fixture
def cloud(store: Store, tmp_path: Path, server: own.Postgres) -> Iterator[Databases]:
    running = Databases(store, tmp_path, server.address)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def folder(cloud: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cloud's state folder, as `up` leaves it."""
    made = tmp_path / "state"
    (made / "secrets").mkdir(parents=True)
    (made / "secrets" / "admin-password").write_text(PASSWORD)
    state = StateFile(format=1, port=cloud.port)
    (made / "state.json").write_bytes(msgspec.json.encode(state))
    monkeypatch.setenv("UNSTUCK_STATE", str(made))
    monkeypatch.setenv("OS_CLOUD", "unstuck-admin")
    return made


def db(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """Run one command; what it printed."""
    capsys.readouterr()
    ended = run(["db", *words])
    out, errors = capsys.readouterr()
    assert ended == code, errors
    return out.strip(), errors


def test_from_create_to_restore(cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address, told = db(capsys, "create", "shop", "--allow", "10.0.0.0/8")
    parts = urlsplit(address)
    assert (parts.scheme, parts.username, parts.port) == ("postgresql", "app", 5432)
    assert (parts.path, parts.query) == ("/app", "sslmode=require")
    assert len(parts.password or "") >= 20
    assert (parts.password or "") not in told
    assert "HEALTHY" in told
    without, _ = db(capsys, "url", "shop")
    assert without == address.replace(f":{parts.password}", "")
    listed, _ = db(capsys, "list")
    assert "shop  ACTIVE  HEALTHY" in listed
    cloud.backing_up = True
    key, told = db(capsys, "backup", "shop", "--call", "monday")
    assert "COMPLETED" in told
    listed, _ = db(capsys, "list")
    assert f"{key}  backup monday  COMPLETED" in listed
    for kind, name, word in (
        ("instance", "shop", "the database answers"),
        ("backup", "monday", "complete"),
        ("backup", key, "complete"),
    ):
        assert run(["explain", kind, name]) == 0
        assert word in capsys.readouterr().out
    assert run(["explain", "instance", "nobody"]) == 1
    restored, _ = db(capsys, "restore", "monday", "again")
    assert urlsplit(restored).hostname != parts.hostname
    for name in ("shop", "again"):
        _, told = db(capsys, "delete", name)
        assert f"{name} is deleted" in told
    listed, _ = db(capsys, "list", "--output", "json")
    assert msgspec.json.decode(listed)["instances"] == []


def test_what_is_deleted_comes_back_unless_it_was_protected(
    cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, _ = db(capsys, "create", "shop")
    db(capsys, "protect", "shop")
    _, errors = db(capsys, "delete", "shop", code=1)
    assert "unstuck db protect --off" in errors
    db(capsys, "protect", "shop", "--off")
    _, told = db(capsys, "list", "--deleted")
    assert "The trash is empty." in told
    _, told = db(capsys, "delete", "shop")
    key = told.partition("unstuck db undelete ")[2].partition("`")[0]
    listed, _ = db(capsys, "list", "--deleted")
    assert listed.startswith(f"{key}  shop  until 2")
    assert run(["status"]) == 0
    assert "in the trash" in capsys.readouterr().out
    _, errors = db(capsys, "undelete", "nothing", code=1)
    assert "There is no instance nothing in the trash" in errors
    back, _ = db(capsys, "undelete", "shop")
    assert urlsplit(back).hostname == urlsplit(address).hostname
    listed, _ = db(capsys, "list")
    assert f"{key}  shop  ACTIVE  HEALTHY" in listed


def test_a_backup_is_cancelled_and_made_once_more(
    cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db(capsys, "create", "shop")
    _, errors = db(capsys, "backup", "shop", "--call", "monday", "--seconds", "0", code=1)
    assert "takes longer than" in errors
    db(capsys, "cancel", "monday")
    _, errors = db(capsys, "cancel", "monday", code=1)
    assert "has ended already" in errors
    cloud.backing_up = True
    key, _ = db(capsys, "retry", "monday")
    listed, _ = db(capsys, "list")
    assert f"{key}  backup monday  COMPLETED" in listed
    assert "backup monday  FAILED" in listed


def test_the_address_names_a_user_that_is_there(
    cloud: Databases, folder: Path, server: own.Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    db(capsys, "create", "shop")
    with psycopg.connect(f"postgresql://unstuck@{server.address}/postgres", autocommit=True) as connection:
        for name in ("anna", "bert"):
            connection.execute(f"CREATE ROLE {name} LOGIN")
        found, told = db(capsys, "url", "shop")
        assert urlsplit(found).username == "anna"
        assert "anna, bert" in told
        found, told = db(capsys, "url", "shop", "--user", "bert", "--database", "till")
        assert (urlsplit(found).username, urlsplit(found).path, told) == ("bert", "/till", "")
        connection.execute("CREATE ROLE app LOGIN")
        found, told = db(capsys, "url", "shop")
        assert (urlsplit(found).username, told) == ("app", "")
        for name in ("anna", "bert", "app"):
            connection.execute(f"DROP ROLE {name}")


def test_without_a_terminal_nobody_is_asked_for_a_password(
    cloud: Databases, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db(capsys, "create", "shop")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setattr("shutil.which", lambda _name: "/bin/false")
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        _, errors = db(capsys, "psql", "shop", code=1)
    assert "set PGPASSWORD, or say --new-password" in errors


def test_what_goes_wrong_is_one_sentence(
    cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, word in (
        (("url", "nothing"), "There is no instance nothing"),
        (("restore", "nothing", "x"), "There is no backup nothing"),
        (("create", "x", "--flavor", "huge"), "no flavor huge"),
        (("create", "x", "--size", "0"), "volume.size"),
        (("create", "x", "--datastore", "oracle"), "datastore.type"),
        (("create", "x", "--allow", "nowhere"), "allowed_cidrs"),
        (("create", "x", "--user", "root"), "users[0].name"),
    ):
        _, errors = db(capsys, *words, code=1)
        assert word in errors
        assert errors.count("\n") == 1
    db(capsys, "create", "two")
    db(capsys, "create", "two")
    _, errors = db(capsys, "url", "two", code=1)
    assert "say which by its id" in errors


def test_one_that_cannot_be_built_says_why(
    cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Trouble("disk-full", "its volume is full", "take a larger volume", final=True)
    cloud.site.host.sees = {
        "data": Thing.ABSENT, "server": ServerState.DOWN, "applied": False, "trouble": full
    }  # fmt: skip
    _, errors = db(capsys, "create", "small", code=1)
    assert "ERROR" in errors
    assert "its volume is full; take a larger volume" in errors


def test_one_that_takes_its_time_is_not_waited_for_for_ever(
    cloud: Databases, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.stopping.set()  # nobody works any more
    cloud.threads[1].join(20)
    _, errors = db(capsys, "create", "late", "--seconds", "1.5", code=1)
    assert "takes longer than" in errors


def test_psql_gets_the_password_in_its_environment_only(
    cloud: Databases, folder: Path, server: own.Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, _ = db(capsys, "create", "shop")
    program = tmp_path / "bin" / "psql"
    program.parent.mkdir()
    program.write_text(PSQL)
    program.chmod(0o755)
    with psycopg.connect(f"postgresql://unstuck@{server.address}/postgres", autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS app")
        connection.execute("CREATE ROLE app LOGIN")
        base = [sys.executable, "-m", "unstuck.cli.main", "db", "psql", "shop"]
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        given = subprocess.run(
            [*base, "--", "-c", "select 1"], env={**environment, "PGPASSWORD": "mine"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        password = urlsplit(address).password or ""
        assert given.stdout.splitlines() == [
            address.replace(f":{password}", ""), "-c", "select 1", "password mine"
        ]  # fmt: skip
        environment.pop("PGPASSWORD", None)
        fresh = subprocess.run(
            [*base, "--new-password"], env=environment, capture_output=True, text=True, check=True
        )
        new = fresh.stdout.splitlines()[-1].removeprefix("password ")
        assert f"The new password of app: {new}" in fresh.stderr
        [(stored,)] = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'")
        assert stored.startswith("SCRAM-SHA-256$")
        connection.execute("DROP ROLE app")
