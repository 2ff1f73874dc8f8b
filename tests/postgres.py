"""A PostgreSQL that the tests start themselves, and stop, kill and freeze."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
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


_INIT = ("-A", "trust", "-U", "unstuck", "--no-sync")


class Postgres:
    """A PostgreSQL server of our own, which tests may stop, kill and freeze."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._prefix = _as_user()
        self.folder = folder
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.server: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        subprocess.run(
            [*self._prefix, self._programs / "initdb", "-D", self.folder / "data", *_INIT],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        command = [*self._prefix, self._programs / "postgres", "-D", self.folder / "data", *options.split()]
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(
                [*command, "-c", "max_connections=100"],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        _wait_until_ready(self.address, self.server, self.folder / "log")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM waits for sessions to end, SIGINT ends them, SIGQUIT is a crash."""
        if self.server is not None:
            self.server.send_signal(number)
            self.server.wait(60)
            self.server = None

    def processes(self) -> list[int]:
        """The server and all its sessions, which are its children."""
        assert self.server is not None
        found = [self.server.pid]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.server.pid:
                    found.append(int(stat.parent.name))
        return found

    def signal_all(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server for all tests; whoever stops it starts it again."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    # Not in pytest's own folder: that is closed to other users, again at each start of another pytest.
    folder = Path(tempfile.mkdtemp(prefix="unstuck-postgres-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = Postgres(programs, folder)
    try:
        server.make()
        server.start()
        made = Store(f"postgresql+psycopg://unstuck@{server.address}/postgres")
        made.create_all()
        made.transact(init_clock, generation_id="0" * 32)
        made.close()
        _copy(server.address, "template", "postgres")
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: Postgres) -> str:
    """Its address, without a database's name at its end."""
    return postgres_server.address


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
