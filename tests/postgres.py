"""A PostgreSQL of our own, for tests and benchmarks: started, used and gone again."""

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

_INIT = ("-A", "trust", "-U", "unstuck", "--no-sync")


def programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server, if one is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else None


def url(address: str, name: str) -> str:
    return f"postgresql+psycopg://unstuck@{address}/{name}"


class Postgres:
    """A server that tests may stop, kill and freeze. ``durable`` waits for the disk at each commit."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        found = programs()
        assert found is not None, (
            "PostgreSQL's server is not installed (`make setup` installs Debian's package)"
        )
        self._programs = found
        self._fsync = "on" if durable else "off"
        self.folder = folder
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.running: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        subprocess.run(
            [*_as_user(), self._programs / "initdb", "-D", self.folder / "data", *_INIT],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync={self._fsync}"
        command = [*_as_user(), self._programs / "postgres", "-D", self.folder / "data", *options.split()]
        with (self.folder / "log").open("ab") as log:
            self.running = subprocess.Popen(
                [*command, "-c", "max_connections=100"], stdout=log, stderr=log, cwd="/"
            )
        _wait_until_ready(self.address, self.running, self.folder / "log")

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGTERM waits for sessions to end, SIGINT ends them, SIGQUIT is a crash."""
        if self.running is not None:
            self.running.send_signal(number)
            self.running.wait(60)
            self.running = None

    def signal_all(self, number: int) -> None:
        """The server and all its sessions, which are its children."""
        assert self.running is not None
        pids = [self.running.pid]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.running.pid:
                    pids.append(int(stat.parent.name))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def controlled(*, durable: bool) -> Iterator[Postgres]:
    """Runs a server that may be stopped and started meanwhile."""
    # Not in pytest's own folder: that is closed to other users, again at each start of another pytest.
    folder = Path(tempfile.mkdtemp(prefix="unstuck-postgres-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    made = Postgres(folder, durable=durable)
    try:
        made.make()
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def server(*, durable: bool) -> Iterator[str]:
    """Runs a server; its address."""
    with controlled(durable=durable) as made:
        yield made.address


def copy(address: str, name: str, template: str) -> None:
    """A session that was closed lingers for a moment on a loaded machine, and then a copy is refused."""
    end = time.monotonic() + 60
    with psycopg.connect(f"postgresql://unstuck@{address}/template1", autocommit=True) as conn:
        while True:
            try:
                conn.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
                return
            except psycopg.errors.ObjectInUse:
                assert time.monotonic() < end


def drop(address: str, name: str) -> None:
    with psycopg.connect(f"postgresql://unstuck@{address}/template1", autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(address: str, running: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while True:
        try:
            psycopg.connect(f"postgresql://unstuck@{address}/postgres").close()
            return
        except psycopg.OperationalError:
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
