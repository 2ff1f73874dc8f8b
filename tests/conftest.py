"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.pool import QueuePool

from tests import postgres as own
from tests.s3_server import S3Server, s3_is_built
from tests.stores import SharedTables, longer_than_their_columns, opened
from unstuck.store.clock import init_clock
from unstuck.store.engine import Store

LONGEST = ("database", "qemu", "guest-backups", "client-db")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a server which takes seconds to start run in one process, so that there is one. The
    longest rows of such tests begin first, or everybody else waits for them in the end."""
    for item in items:
        if "s3" in getattr(item, "fixturenames", ()) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("s3"))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return len(LONGEST) + 1
    return LONGEST.index(group.args[0]) if group.args[0] in LONGEST else len(LONGEST)


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """Commands that a test calls in its own process narrow it, and the next test would suffer from it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[own.Postgres]:
    """A PostgreSQL of our own, whose database ``template`` has the schema and a clock; whoever stops it
    starts it again."""
    if own.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    with own.controlled(durable=False) as server:
        made = opened(own.url(server.address, "postgres"))
        made.create_all()
        made.transact(init_clock, generation_id="0" * 32)
        made.close()
        own.copy(server.address, "template", "postgres")
        yield server


@pytest.fixture
def postgres(postgres_server: own.Postgres) -> str:
    """Its address."""
    return postgres_server.address


@pytest.fixture(scope="session")
def postgres_tables(postgres_server: own.Postgres) -> SharedTables:
    """A database that tests use one after the other."""
    return SharedTables(postgres_server.address)


@pytest.fixture
def postgres_store(postgres_tables: SharedTables) -> Iterator[Store]:
    """An empty store on PostgreSQL with its clock."""
    made = postgres_tables.emptied()
    pool = made.engine.pool
    yield made
    made.close()
    assert isinstance(pool, QueuePool)
    assert pool.checkedout() == 0, "a connection was not given back, and nobody closes it"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and its clock: made once, because making tables is slow."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    made = opened(f"sqlite:///{path}")
    made.create_all()
    made.transact(init_clock, generation_id="0" * 32)
    made.close()  # the last connection to close moves everything from the WAL into the one file
    return path


@pytest.fixture
def store(tmp_path: Path, sqlite_template: Path) -> Iterator[Store]:
    """An empty store with its clock."""
    shutil.copyfile(sqlite_template, tmp_path / "store.db")
    made = opened(f"sqlite:///{tmp_path}/store.db")
    yield made
    too_long = made.read(longer_than_their_columns)
    made.close()
    assert not too_long, "SQLite takes any length, PostgreSQL answers the same request with an error"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for all tests of this process; each takes a bucket of its own."""
    if not s3_is_built():
        pytest.skip("the S3 server for tests is not installed: scripts/s3-server build (make test does it)")
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a real file system of so many bytes, in this run's own mount namespace."""
    if os.environ.get("UNSTUCK_NETNS") != "1" or os.geteuid() != 0:
        pytest.skip("a file system can only be mounted as root in a namespace (scripts/in-netns)")
    made: list[Path] = []

    def make(size: int) -> Path:
        place = tmp_path / f"disk{len(made)}"
        place.mkdir()
        options = f"size={size},mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        made.append(place)
        return place

    yield make
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
