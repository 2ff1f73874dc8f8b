"""A PostgreSQL of our own, for tests and benchmarks: started, used and gone again."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg


def programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server, if one is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else None


def url(address: str, name: str) -> str:
    return f"postgresql+psycopg://unstuck@{address}/{name}"


@contextlib.contextmanager
def server(*, durable: bool) -> Iterator[str]:
    """Runs a server; its address. ``durable`` waits for the disk at each commit, as a real one has to."""
    found = programs()
    assert found is not None, "PostgreSQL's server is not installed (`make setup` installs Debian's package)"
    # Not in pytest's own folder: that is closed to other users, again at each start of another pytest.
    folder = Path(tempfile.mkdtemp(prefix="unstuck-postgres-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data, port = folder / "data", _free_port()
    prefix = _as_user()
    subprocess.run(
        [*prefix, found / "initdb", "-D", data, "-A", "trust", "-U", "unstuck", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )
    fsync = "on" if durable else "off"
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync={fsync} -c max_connections=100"
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [*prefix, found / "postgres", "-D", data, *options.split()], stdout=log, stderr=log, cwd="/"
        )
    try:
        address = f"127.0.0.1:{port}"
        _wait_until_ready(address, running, folder / "log")
        yield address
    finally:
        running.terminate()
        running.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


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
