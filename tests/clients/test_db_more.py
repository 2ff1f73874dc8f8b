"""``unstuck db logs``, ``extension``, ``export``, ``import`` and ``upgrade``, on a real PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from database_running import Databases
from test_db_command import cloud, db, folder, server
from tests import postgres as own

from unstuck.cli import dbmove
from unstuck.store import datastores

__all__ = ["cloud", "folder", "server"]

DEMO = "demo_of_exports"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def shop(cloud: Databases, folder: Path, server: own.Postgres, capsys: Capture) -> Iterator[own.Postgres]:
    """An instance whose database is the server's, with a table in it."""
    db(capsys, "create", "shop", "--database", DEMO)
    run(server, "postgres", f"DROP DATABASE IF EXISTS {DEMO} WITH (FORCE)", f"CREATE DATABASE {DEMO}")
    run(server, DEMO, "CREATE TABLE goods AS SELECT n, repeat('x', 100) FROM generate_series(1, 500) n")
    yield server
    for name in (DEMO, "copied"):
        run(server, "postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def run(server: own.Postgres, database: str, *statements: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    with psycopg.connect(f"postgresql://unstuck@{server.address}/{database}", autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            found = cursor.fetchall() if cursor.description else []
    return found


def loans(server: own.Postgres) -> int:
    [(count,)] = run(server, "postgres", "SELECT count(*) FROM pg_roles WHERE rolname ~ '^unstuck_loan_'")
    assert isinstance(count, int)
    return count


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch, server: own.Postgres) -> None:
    """An instance's address is its own network's; what stands for it listens elsewhere."""
    monkeypatch.setattr(
        dbmove, "connection",
        lambda _item, user, database: f"postgresql://{user}@{server.address}/{database}",
    )  # fmt: skip


def test_a_log_is_printed_and_its_lines_drive_no_terminal(
    cloud: Databases, shop: own.Postgres, capsys: Capture
) -> None:
    cloud.log.write_text("one\ntwo \x1b[2Jcleared\n")
    out, _ = db(capsys, "logs", "shop")
    assert out.splitlines()[0] == "one"
    assert "\x1b" not in out
    assert db(capsys, "logs", "shop", "--size", "7")[0] == ""


def test_extensions_are_listed_enabled_and_disabled(shop: own.Postgres, capsys: Capture) -> None:
    assert "hstore  -" in db(capsys, "extension", "list", "shop", "--database", DEMO)[0]
    db(capsys, "extension", "enable", "shop", "hstore", "--database", DEMO)
    assert "hstore  1." in db(capsys, "extension", "list", "shop", "--database", DEMO)[0]
    db(capsys, "extension", "disable", "shop", "hstore", "--database", DEMO)
    _, errors = db(capsys, "extension", "enable", "shop", "file_fdw", "--database", DEMO, code=1)
    assert "file_fdw" in errors
    _, errors = db(capsys, "extension", "list", "shop", "--database", "nowhere", code=1)
    assert "nowhere" in errors


@pytest.mark.parametrize("form", [(), pytest.param(("--sql",), marks=pytest.mark.slow)])
def test_an_exported_database_is_imported_again(
    shop: own.Postgres, tmp_path: Path, capsys: Capture, form: tuple[str, ...]
) -> None:
    dump = tmp_path / "dump"
    exported(shop, dump, *form)
    assert dump.stat().st_size > 1000
    assert loans(shop) == 0
    db(capsys, "import", "shop", str(dump), "--database", "copied")
    assert run(shop, "copied", "SELECT count(*) FROM goods") == [(500,)]
    [(owner,)] = run(shop, "copied", "SELECT tableowner FROM pg_tables WHERE tablename = 'goods'")
    assert str(owner).startswith("unstuck_owner_")
    assert loans(shop) == 0
    # A second time it is refused as a whole.
    _, errors = db(capsys, "import", "shop", str(dump), "--database", "copied", code=1)
    assert "nothing of it was kept" in errors
    assert run(shop, "copied", "SELECT count(*) FROM goods") == [(500,)]


SCRIPT = """
import sys
from unstuck.cli import dbmove
from unstuck.store import datastores
from unstuck.cli.main import run
server = sys.argv.pop(1)
dbmove.connection = lambda _item, user, database: f"postgresql://{user}@{server}/{database}"
sys.exit(run(sys.argv[1:]))
"""


def exported(server: own.Postgres, dump: Path, *form: str) -> None:
    """As a process of its own: it writes to its standard output."""
    words = ["db", "export", "shop", "--database", DEMO, *form]
    with dump.open("wb") as out:
        subprocess.run([sys.executable, "-c", SCRIPT, server.address, *words], stdout=out, check=True)


@pytest.mark.slow
def test_a_running_database_is_imported_by_its_address(shop: own.Postgres, capsys: Capture) -> None:
    address = f"postgresql://unstuck:secret@{shop.address}/{DEMO}"
    db(capsys, "import", "shop", "--from", address, "--database", "copied")
    assert run(shop, "copied", "SELECT count(*) FROM goods") == [(500,)]
    for words in (("--from", "mysql://x/y"), (), ("--from", address, "/no/such/file"), ("/no/such/file",)):
        db(capsys, "import", "shop", *words, code=1)
    assert loans(shop) == 0


def test_passwords_stay_out_of_command_lines() -> None:
    assert dbmove._without_password("postgresql://ann:s%40c@db.example:5433/shop?sslmode=require") == (
        "postgresql://ann@db.example:5433/shop?sslmode=require", "s@c",
    )  # fmt: skip


def test_an_upgrade_is_rehearsed_on_a_copy_and_then_made(
    cloud: Databases, shop: own.Postgres, capsys: Capture
) -> None:
    cloud.store.transact(
        datastores.register_version, version_id="5b1f4ad1-46a5-4d75-8a3f-6b8f0f3d4d18",
        datastore_id=datastores.POSTGRESQL, datastore="postgresql", name="17.9", manager="postgresql",
        version="17.9", image_id=cloud.site.image, active=True, default=False,
    )  # fmt: skip
    _, errors = db(capsys, "upgrade", "shop", "17.9", "--rehearse", code=1)
    assert "no complete backup" in errors
    cloud.backing_up = True
    db(capsys, "backup", "shop")
    out, _ = db(capsys, "upgrade", "shop", "17.9", "--rehearse")
    assert "came up with version 17.9" in out
    assert db(capsys, "list")[0].count("shop") == 2  # the instance and its backup: nothing else is left
    _, told = db(capsys, "upgrade", "shop", "17.9")
    assert "has version 17.9" in told
    _, errors = db(capsys, "upgrade", "shop", "18", code=1)
    assert "18" in errors
