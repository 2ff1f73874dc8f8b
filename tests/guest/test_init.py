"""PID 1 of a guest: agent and datastore side by side, each under a user of its own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.guest import Guest, anna
from tests.guest.host_double import wait_for
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
AGENT_USER = "nobody"
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it starts processes of several users")


class Container:
    """The processes of a container, without its walls."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.init: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        guest = self.guest
        guest.socket.chmod(0o666)
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "UNSTUCK_LOG": "json"}
        agent: list[str | Path] = [
            sys.executable, "-m", "tests.guest.agent_process", guest.socket, "--volume", guest.volume,
            "--run", guest.run,
        ]  # fmt: skip
        with guest.log.open("ab") as log:
            self.init = subprocess.Popen(
                [sys.executable, "-I", ROOT / "src/unstuck/guest/init.py", "--volume", guest.volume,
                 "--run", guest.run, "--agent-user", AGENT_USER, "--user", "postgres", "--", *agent],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/",
            )  # fmt: skip

    def children(self, user: str) -> list[int]:
        assert self.init is not None
        uid, found = pwd.getpwnam(user).pw_uid, []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.init.pid and entry.stat().st_uid == uid:
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found

    def end(self) -> int:
        assert self.init is not None
        self.init.send_signal(signal.SIGTERM)
        return self.init.wait(60)


@pytest.fixture
def container(guest: Guest) -> Iterator[Container]:
    made = Container(guest)
    made.start()
    yield made
    if made.init is not None and made.init.poll() is None:
        made.end()
    shutil.rmtree(guest.volume, ignore_errors=True)


def test_the_agent_and_the_server_run_under_users_of_their_own(container: Container) -> None:
    guest = container.guest
    guest.host.wants(guest.want(origin=SHOP))
    guest.ready()
    assert len(container.children(AGENT_USER)) == 1
    assert container.children("postgres") == [guest.server_pid()]
    with guest.connect() as connection:
        connection.execute("CREATE TABLE t (n int)")
    assert guest.back_up("n1").size > 1 << 20


@pytest.mark.slow
def test_a_killed_agent_comes_back_and_finds_its_server(container: Container) -> None:
    guest = container.guest
    guest.host.wants(guest.want(origin=SHOP))
    guest.ready()
    server, (agent,) = guest.server_pid(), container.children(AGENT_USER)
    with guest.connect() as connection:
        os.kill(agent, signal.SIGKILL)
        first = guest.host.incarnation
        wait_for(lambda: guest.host.incarnation > first)
        guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
        guest.ready()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert guest.server_pid() == server


def test_the_end_of_the_container_is_an_orderly_one_for_the_server(container: Container) -> None:
    guest = container.guest
    guest.host.wants(guest.want(origin=SHOP))
    guest.ready()
    with guest.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    began = time.monotonic()
    assert container.end() == 0
    assert time.monotonic() - began < 20
    assert "database system is shut down" in guest.server_log()
    assert not (guest.volume / "database/pg/postmaster.pid").exists()
    container.start()
    guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
    guest.host.view = None
    guest.ready()
    with guest.connect() as connection:
        assert connection.execute("SELECT n FROM t").fetchone() == (1,)
    assert "was not properly shut down" not in guest.server_log()


def as_datastore(text: str) -> int:
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    command = [*user, sys.executable, "-I", "-c", text]
    return subprocess.run(command, check=False).returncode


def test_nobody_but_the_agent_may_ask(container: Container) -> None:
    path = container.guest.run / "init.sock"
    wait_for(path.exists)
    ask = f"""
import socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    line.connect({str(path)!r})
    line.send(b"{{}}")
    sys.exit(0 if line.recv(99) else 9)
except PermissionError:
    sys.exit(8)
except OSError:
    sys.exit(9)
"""
    assert as_datastore(ask) == 8
    path.chmod(0o666)  # even if it could connect
    path.parent.chmod(0o755)
    assert as_datastore(ask) == 9
    assert "may not ask" in container.guest.log.read_text()


def test_a_bad_request_does_not_end_it(container: Container) -> None:
    path = container.guest.run / "init.sock"
    wait_for(path.exists)
    assert container.init is not None
    for text in (
        b"{",
        b"[]",
        b'{"do": "start"}',
        b'{"do": "signal", "pid": "x"}',
        b'{"do": "start", "command": []}',
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(str(path))
            line.send(text)
            assert "error" in json.loads(line.recv(4096))
    assert container.init.poll() is None
