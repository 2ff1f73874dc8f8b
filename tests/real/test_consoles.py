"""The console of a real guest: what the stock client prints opens it, and nothing that goes away holds it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.real.fault_cloud import FaultCloud, cloud_in
from tests.real.test_faults import copy, remove
from tests.real.test_faults import template as template
from unstuck.cli.cloud import COMPUTE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for taps"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[FaultCloud]:
    """One cloud with one guest for all tests here: a boot takes seconds."""
    root = tmp_path_factory.mktemp("consoles") / "state"
    shutil.copytree(template, root, copy_function=copy)
    with cloud_in(root) as made:
        made.start("control")
        made.start("host")
        made.create("web")
        yield made


@pytest.fixture
def cloud(site: FaultCloud) -> FaultCloud:
    if "host" not in site._children:
        site.start("host")
    return site


@pytest.fixture
def server(cloud: FaultCloud) -> str:
    found = cloud.cloud.get("/compute/v2.1/servers", headers=COMPUTE)["servers"]
    server_id = next(str(one["id"]) for one in found if one["name"] == "web")
    cloud.until_status(server_id, "ACTIVE")
    cloud.until("the guest has booted", lambda: cloud.say(server_id, "ping x") == "pong x")
    return server_id


def url_of(cloud: FaultCloud, server: str, kind: str = "serial") -> str:
    protocol = {"serial": "serial", "novnc": "vnc"}[kind]
    body = {"remote_console": {"protocol": protocol, "type": kind}}
    path = f"/compute/v2.1/servers/{server}/remote-consoles"
    return str(cloud.cloud.ask("POST", path, json=body, headers=COMPUTE).json()["remote_console"]["url"])


def opened(url: str, **more: Any) -> ClientConnection:
    return connect(url, subprotocols=["binary"], proxy=None, **more).__enter__()  # type: ignore[list-item]


class Console:
    """A client at a console, and what it has read so far."""

    def __init__(self, url: str) -> None:
        self.socket: ClientConnection = opened(url)
        self.seen = ""

    def until(self, what: str, seconds: float = 90.0) -> str:
        over = time.monotonic() + seconds
        while not re.search(what, self.seen):
            left = over - time.monotonic()
            assert left > 0, f"{what!r} was not seen: {self.seen!r}"
            try:
                message = self.socket.recv(timeout=left)
            except TimeoutError:
                continue
            assert isinstance(message, bytes)
            self.seen += message.decode(errors="replace")
        return self.seen

    def says(self, line: str) -> None:
        self.socket.send(line.encode())

    def closed(self, seconds: float = 90.0) -> str:
        """Why it was closed. A guest that is still booting is asked for a minute before it is stopped."""
        over = time.monotonic() + seconds

        def read_on() -> None:
            while True:
                self.socket.recv(timeout=max(over - time.monotonic(), 0.1))

        with pytest.raises(ConnectionClosed) as found:
            read_on()
        assert found.value.rcvd is not None, "it was cut off without a word"
        return found.value.rcvd.reason


def works(console: Console, word: str) -> None:
    """A shell that computes: what comes back was not just echoed."""
    console.says(f"\recho {word}-$((6 * 7))\r")
    console.until(f"{word}-42")


def at_work(cloud: FaultCloud, server: str) -> Console:
    """One whose host has come: one that is late is told that the guest does not run."""
    console = Console(url_of(cloud, server))
    cloud.until("the guest has booted", lambda: cloud.say(server, "ping x") == "pong x")
    works(console, "here")
    return console


def stock(cloud: FaultCloud, *words: str) -> str:
    """The ``openstack`` command, as a user has it."""
    password = (cloud.state.secrets / "demo-password").read_text().strip()
    given = {
        "OS_AUTH_URL": f"{cloud.state.url()}/identity/v3", "OS_USERNAME": "demo", "OS_PASSWORD": password,
        "OS_PROJECT_NAME": "demo", "OS_USER_DOMAIN_ID": "default", "OS_PROJECT_DOMAIN_ID": "default",
        "OS_IDENTITY_API_VERSION": "3", "HOME": str(cloud.state.root), "PATH": os.environ["PATH"],
    }  # fmt: skip
    program = Path(sys.executable).with_name("openstack")
    done = subprocess.run(
        [program, *words], env=given, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        cloud.fail(f"openstack {' '.join(words)}: {done.stderr}")
    return done.stdout.strip()


def test_what_the_stock_client_prints_opens_a_shell_in_the_guest(cloud: FaultCloud, server: str) -> None:
    url = stock(cloud, "console", "url", "show", "--serial", "web", "-f", "value", "-c", "url")
    assert url.startswith("ws://")
    console = Console(url)
    works(console, "serial")
    console.socket.close()
    # The default is a page, and the same address takes its WebSocket.
    url = stock(cloud, "console", "url", "show", "web", "-f", "value", "-c", "url")
    assert url.startswith("http://")
    page = httpx2.get(url, trust_env=False)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    console = Console(url.replace("http", "ws", 1))
    works(console, "page")
    console.socket.close()
    # All of it is in the log as well, as if nobody had looked.
    said = stock(cloud, "console", "log", "show", "web")
    assert "serial-42" in said
    assert "page-42" in said
    assert "unstuck-tiny: ready" in said


def test_an_address_works_once_and_a_wrong_one_never(cloud: FaultCloud, server: str) -> None:
    url = url_of(cloud, server)
    console = Console(url)
    works(console, "once")
    for bad in (url, f"{url}x", url.partition("?")[0], f"{url.partition('=')[0]}={'A' * 43}"):
        with pytest.raises(InvalidStatus) as found:
            opened(bad)
        assert found.value.response.status_code == 403
        assert b"opens no console" in found.value.response.body
    works(console, "still")
    console.socket.close()
    with pytest.raises(InvalidStatus) as found:
        opened(url_of(cloud, server), origin="http://elsewhere.example")
    assert found.value.response.status_code == 403


def test_several_look_at_one_guest_and_one_too_many_is_told(cloud: FaultCloud, server: str) -> None:
    consoles = [Console(url_of(cloud, server)) for _ in range(4)]
    for number, console in enumerate(consoles):
        works(console, f"alone{number}")  # what was said before its host had come is nobody's to hear
    works(consoles[0], "shared")
    for console in consoles[1:]:
        console.until("shared-42")
    assert "4 consoles of it are open" in Console(url_of(cloud, server)).closed()
    consoles.pop().socket.close()

    def room() -> Console | None:
        fifth = Console(url_of(cloud, server))
        try:
            works(fifth, "room")
        except ConnectionClosed:
            return None
        return fifth

    consoles.append(cloud.until("there is room again", room))
    for console in consoles:
        console.socket.close()


def test_a_killed_agent_closes_it_and_a_new_address_works_with_the_next(
    cloud: FaultCloud, server: str
) -> None:
    before = cloud.one(server)
    console = Console(url_of(cloud, server))
    works(console, "before")
    cloud.kill("host")
    assert "went away" in console.closed()
    cloud.start("host")
    console = Console(cloud.until("the next agent opens one", lambda: url_of(cloud, server)))
    works(console, "after")
    console.socket.close()
    assert cloud.one(server) == before
    log = cloud.act(server, **{"os-getConsoleOutput": {}})["output"]
    assert "before-42" in log
    assert "after-42" in log


def test_a_killed_control_plane_closes_it(cloud: FaultCloud, server: str) -> None:
    console = Console(url_of(cloud, server))
    unused = url_of(cloud, server)
    works(console, "before")
    cloud.kill("control")
    with pytest.raises(ConnectionClosed):
        console.until("no such text")
    cloud.start("control")
    again = Console(unused)  # the token is in the store
    works(again, "afterwards")
    again.socket.close()


def test_stop_and_delete_win(cloud: FaultCloud, server: str) -> None:
    made = cloud.create("short")
    cloud.until_status(made, "ACTIVE")
    console = at_work(cloud, made)
    unused = url_of(cloud, made)
    cloud.act(made, reboot={"type": "HARD"})
    assert "stopped, started anew or removed" in console.closed()
    cloud.until_status(made, "ACTIVE")
    console = at_work(cloud, made)
    cloud.act(made, **{"os-stop": None})
    assert "stopped, started anew or removed" in console.closed()
    cloud.until_status(made, "SHUTOFF")
    body = {"remote_console": {"protocol": "serial", "type": "serial"}}
    path = f"/compute/v2.1/servers/{made}/remote-consoles"
    answer = cloud.cloud.client.post(path, json=body, headers=COMPUTE)
    assert answer.status_code == 409
    assert "does not run" in answer.json()["conflictingRequest"]["message"]
    cloud.act(made, **{"os-start": None})
    cloud.until_status(made, "ACTIVE")
    console = at_work(cloud, made)
    remove(cloud, made)
    assert "stopped, started anew or removed" in console.closed()
    with pytest.raises(InvalidStatus):
        opened(unused)


def test_the_command_attaches_a_terminal(cloud: FaultCloud, server: str) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(
            sys.executable,
            [sys.executable, "-m", "unstuck.cli.main", "console", "web", "--state", str(cloud.state.root)],
        )
    seen = b""

    def until(what: bytes) -> None:
        nonlocal seen
        over = time.monotonic() + 30.0
        while what not in seen:
            assert time.monotonic() < over, seen
            seen += os.read(terminal, 4096)

    try:
        until(b"Ctrl-] leaves")
        time.sleep(0.2)
        os.write(terminal, b"\recho typed-$((40 + 2))\r")
        until(b"typed-42")
        os.write(terminal, b"\x1d")
        until(b"left by Ctrl-]")
        assert os.waitpid(child, 0)[1] == 0
    finally:
        os.close(terminal)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
