"""The store's tests run on both databases: SQLite, and a PostgreSQL that the tests start themselves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from unstuck.store.clock import init_clock
from unstuck.store.engine import Store


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else None


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL of our own, without a database's name at its end."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    # Not in pytest's own folder: that is closed to other users, again at each start of another pytest.
    folder = Path(tempfile.mkdtemp(prefix="unstuck-postgres-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data, port = folder / "data", _free_port()
    prefix = _as_user()
    subprocess.run(
        [*prefix, programs / "initdb", "-D", data, "-A", "trust", "-U", "unstuck", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=100"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*prefix, programs / "postgres", "-D", data, *options.split()], stdout=log, stderr=log, cwd="/"
        )
    try:
        address = f"127.0.0.1:{port}"
        _wait_until_ready(address, server, folder / "log")
        made = Store(f"postgresql+psycopg://unstuck@{address}/postgres")
        made.create_all()
        made.transact(init_clock, generation_id="0" * 32)
        made.close()
        _copy(address, "template", "postgres")
        yield address
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _copy(address: str, name: str, template: str) -> None:
    """A session that was closed lingers for a moment on a loaded machine, and then a copy is refused."""
    end = time.monotonic() + 60
    with psycopg.connect(f"postgresql://unstuck@{address}/template1", autocommit=True) as conn:
        while True:
            try:
                conn.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
                return
            except psycopg.errors.ObjectInUse:
                assert time.monotonic() < end


def _wait_until_ready(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while True:
        try:
            psycopg.connect(f"postgresql://unstuck@{address}/postgres").close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)


@pytest.fixture
def postgres_store(postgres: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store on PostgreSQL with its clock."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    _copy(postgres, name, "template")
    made = Store(f"postgresql+psycopg://unstuck@{postgres}/{name}")
    yield made
    made.close()
    with psycopg.connect(f"postgresql://unstuck@{postgres}/template1", autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """The same test on both databases."""
    name = "store" if request.param == "sqlite" else "postgres_store"
    found: Store = request.getfixturevalue(name)
    return found
