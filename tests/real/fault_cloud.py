"""A real cloud for one test: control plane, host agent and QEMU, started and killed one by one.

No supervisor: each process can be given a barrier (``UNSTUCK_STOP_AT``), and dies only by SIGKILL to a
verified process. All of it lies in a network namespace of the test's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import msgspec
import pytest

from unstuck.cli import guests, tiny
from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.cli.doctor import differences
from unstuck.cli.errors import CliError
from unstuck.cli.reality import look
from unstuck.host.drivers import process
from unstuck.host.drivers.folder import ServerFolder
from unstuck.runtime.barriers import VARIABLE
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import ProcessId, boot_id, end, handle, start_time, stopped
from unstuck.runtime.state import State, prepare

T = TypeVar("T")
Role = Literal["control", "host"]
CLONE_NEWNET = 0x40000000
PATIENCE = 180.0
"""Seconds for anything: the bound within which everything is at rest (docs/design/laws.md). Under TCG a guest
boots in 4 alone, in 20 to 60 on a busy machine; who stops one that is booting waits for a minute first."""


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    """A network of this test's own: when its last process is gone, so is every tap in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.unshare(CLONE_NEWNET) != 0:
        os.close(before)
        pytest.skip("no network namespaces here")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)


class Guest(msgspec.Struct, frozen=True):
    """One QEMU process for certain."""

    pid: int
    start: int


class FaultCloud:
    """What a test does to the cloud, and what it sees of it. Times are in seconds since the start."""

    def __init__(self, root: Path, driver: str = "qemu") -> None:
        self.began = time.monotonic()
        self.state: State = prepare(root, driver=driver)
        self._children: dict[Role, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self._cloud: Cloud | None = None
        self._notes: list[str] = []
        self.environment: dict[str, str] = {}

    # --- processes

    def start(self, role: Role, barrier: str = "") -> int:
        """Start one process and wait until it is of use, or stopped at its barrier; returns its pid."""
        child = self.launch(role, barrier)
        self.until(f"{role} is ready", lambda: self._ready(role, child), seconds=3 * PATIENCE)
        if role == "control":
            self._log_in()
        return child.pid

    def wait_ready(self) -> None:
        """Both processes, started before, are of use."""
        for role in ("control", "host"):
            child = self._children[role]
            self.until(f"{role} is ready", functools.partial(self._ready, role, child))
        self._log_in()

    def launch(self, role: Role, barrier: str = "") -> subprocess.Popen[bytes]:
        """Start one process and wait for nothing."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("UNSTUCK_", "OS_"))}
        kept.update(self.environment)
        if barrier:
            kept[VARIABLE] = barrier
        with (self.state.logs / f"{role}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", f"unstuck.{role}.main", "--state", str(self.state.root)],
                env=kept, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._children[role] = child
        self.note(f"{role} started as {child.pid} {barrier}")
        return child

    def _ready(self, role: Role, child: subprocess.Popen[bytes]) -> bool:
        if child.poll() is not None:
            self.fail(f"{role} ended with {child.returncode}")
        if self._marker(child.pid).exists():
            return True
        ready = self.state.control_ready if role == "control" else self.state.host_ready
        with contextlib.suppress(OSError, ValueError, CliError):
            if json.loads(ready.read_bytes())["pid"] == child.pid:
                if role == "control":
                    with connect(self.state, "demo"):
                        return True
                return True
        return False

    def _log_in(self) -> None:
        self._stack.close()
        self._cloud = self._stack.enter_context(connect(self.state, "demo"))

    def _marker(self, pid: int) -> Path:
        return self.state.run / f"stopped-{pid}"

    def pid(self, role: Role) -> int:
        return self._children[role].pid

    def child(self, role: Role) -> subprocess.Popen[bytes]:
        """For a test that lets it be replaced: it waits for the end of the old one itself."""
        return self._children[role]

    def until_stopped(self, role: Role, point: str) -> None:
        """The process stands at its barrier."""
        child = self._children[role]

        def there() -> bool:
            if child.poll() is not None:
                self.fail(f"{role} ended with {child.returncode} on its way to {point}")
            return self._marker(child.pid).exists() and stopped(child.pid)

        self.until(f"{role} comes to {point}", there)
        assert self._marker(child.pid).read_text() == f"{point}\n"

    def kill(self, role: Role) -> None:
        """kill -9, verified to be ours by the lock that it holds."""
        child = self._children.pop(role)
        lock = self.state.control_lock if role == "control" else self.state.host_lock
        found = holder(lock)
        assert found is not None, f"{role} holds no lock"
        assert found.pid == child.pid
        assert end(found, signal.SIGKILL, 10.0), f"{role} does not die"
        child.wait(10.0)
        self.note(f"{role} {child.pid} killed")

    def kill_anyhow(self, role: Role) -> None:
        """kill -9 wherever it is, be it in its start; it is our child, so that its pid means no other."""
        child = self._children.pop(role)
        child.kill()
        child.wait(10.0)
        self.note(f"{role} {child.pid} killed")

    def go_on(self, pid: int) -> None:
        """SIGCONT to a process that stands at a barrier."""
        self.signal(pid, signal.SIGCONT)

    def signal(self, pid: int, number: signal.Signals) -> None:
        began = start_time(pid)
        assert began is not None, f"process {pid} has ended"
        with handle(ProcessId(pid, began, boot_id())) as descriptor:
            assert descriptor is not None
            signal.pidfd_send_signal(descriptor, number)
        self.note(f"{number.name} to {pid}")

    # --- guests

    def qemus(self, server_id: str) -> list[Guest]:
        """All QEMU processes of a server, or children on their way to become one."""
        found = [guest.pid for guest in guests.running(self.state) if guest.server_id == server_id]
        return [Guest(pid, began) for pid in found if (began := start_time(pid)) is not None]

    def one(self, server_id: str) -> Guest:
        """The one QEMU process."""
        found = self.qemus(server_id)
        if len(found) != 1:
            self.fail(f"there should be one QEMU of {server_id}, there are {found}")
        return found[0]

    def marker(self, server_id: str) -> tuple[int, int] | None:
        """The instant driver's guest, told from a later one: the inode and age of its file."""
        with contextlib.suppress(FileNotFoundError):
            found = (self.state.host / "servers" / server_id / "guest.json").stat()
            return found.st_ino, found.st_mtime_ns
        return None

    def starts(self, server_id: str) -> int:
        """How often its present edge was started: it is counted before each fork, whoever forks."""
        found = ServerFolder(self.state.host, server_id).starts()
        return len(found.times) if found is not None else 0

    def say(self, server: str, line: str) -> str:
        """One line to the guest's port 7, and its answer, as soon as it gives one."""
        address = self.address(server)
        return self.until(f"the guest at {address} answers `{line}`", lambda: _ask(address, line))

    # --- the API

    @property
    def cloud(self) -> Cloud:
        assert self._cloud is not None
        return self._cloud

    def create(self, name: str = "web") -> str:
        answer = self.cloud.ask("POST", "/compute/v2.1/servers", json=self.order(name), headers=COMPUTE)
        made = str(answer.json()["server"]["id"])
        self.note(f"created {made}")
        return made

    def create_within(self, seconds: float, order: dict[str, Any]) -> None:
        """Send this order and wait for its answer so long; raises what the HTTP client raises."""
        self.cloud.client.post("/compute/v2.1/servers", json=order, headers=COMPUTE, timeout=seconds)

    def order(self, name: str) -> dict[str, Any]:
        """The body of a request for a server."""
        images = {item["name"]: item for item in self.cloud.get("/image/v2/images")["images"]}
        flavors = self.cloud.get("/compute/v2.1/flavors", headers=COMPUTE)["flavors"]
        flavor = next(item for item in flavors if item["name"] == "t.micro")
        body = {
            "name": name, "imageRef": images["tiny"]["id"], "flavorRef": flavor["id"], "networks": "auto",
        }  # fmt: skip
        return {"server": body}

    def server(self, server_id: str) -> dict[str, Any] | None:
        """What the API shows; None once it is gone. ERROR is never right in these tests."""
        answer = self.cloud.client.get(f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["server"]
        if found["status"] == "ERROR":
            self.fail(f"the server is in ERROR: {found.get('fault')}; {self.explain(server_id)}")
        return found

    def status(self, server_id: str) -> str:
        found = self.server(server_id)
        return str(found["status"]) if found is not None else "GONE"

    def explain(self, server_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cloud.get(f"/unstuck/v1/explain/server/{server_id}")
        return found

    def address(self, server_id: str) -> str:
        found = self.server(server_id)
        assert found is not None
        return str(next(item["addr"] for items in found["addresses"].values() for item in items))

    def act(self, server_id: str, **body: Any) -> dict[str, Any]:
        """``POST action``; its answer."""
        path = f"/compute/v2.1/servers/{server_id}/action"
        answer = self.cloud.ask("POST", path, json=body, headers=COMPUTE)
        self.note(f"action {body}")
        return dict(answer.json()) if answer.content else {}

    def delete(self, server_id: str) -> None:
        self.cloud.ask("DELETE", f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)
        self.note(f"delete of {server_id} accepted")

    def until_status(self, server_id: str, wanted: str) -> None:
        """Only the end counts: BUILD with an action under way is not the end."""

        def there() -> bool:
            found = self.server(server_id)
            if found is None:
                return wanted == "GONE"
            return bool(found["status"] == wanted and found["OS-EXT-STS:task_state"] is None)

        self.until(
            f"the server becomes {wanted}", there, lambda: json.dumps(self.explain(server_id), indent=1)
        )
        self.note(f"{server_id} is {wanted}")

    # --- the whole

    def upload(self, image: Path) -> None:
        with connect(self.state) as admin:
            tiny.upload(admin, image)

    def differences(self) -> list[dict[str, Any]]:
        """What doctor sees: processes, files, sockets, taps, addresses that are not as the store says."""
        found = differences(self.state, self.state.read().driver)
        return [msgspec.to_builtins(item) for item in found]

    def agree(self) -> None:
        """The store and this machine agree in everything."""
        if found := self.differences():
            self.fail(f"the store and this machine differ: {json.dumps(found, indent=1)}")
        left = [str(path) for path in self.state.host.rglob("*.part*")]
        if left:
            self.fail(f"half made files are left: {left}")

    def agree_gone(self, server_id: str) -> None:
        """Gone for good: from the API, from this machine, and its address is free."""
        self.until_status(server_id, "GONE")
        self.until("nothing of it is left here", lambda: self._nothing_left(server_id), self._reality)
        ports = self.cloud.get("/networking/v2.0/ports", params={"device_id": server_id})["ports"]
        if ports:
            self.fail(f"its ports are still there: {ports}")
        self.agree()

    def _nothing_left(self, server_id: str) -> bool:
        real = look(self.state)
        taps = {tap.server_id for tap in real.taps or ()}
        return server_id not in {*real.folders, *taps, *(guest.server_id for guest in real.guests)}

    def _reality(self) -> str:
        return str(look(self.state))

    # --- waiting, and saying what happened

    def until(
        self, what: str, condition: Callable[[], T | None], more: Callable[[], str] = str,
        seconds: float = PATIENCE,
    ) -> T:  # fmt: skip
        """The first answer that is true. Fails with what is known, never just with a timeout."""
        over = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            found = condition()
            if found:
                return found
            if time.monotonic() > over:
                self.fail(f"{what}: not within {seconds:.0f} s\n{more()}")
            # Looking takes time from what is waited for: the rarer, the longer that takes.
            waited = began - (over - seconds)
            time.sleep(min(max(0.05, waited / 20, time.monotonic() - began), 0.5))

    def note(self, text: str) -> None:
        self._notes.append(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def fail(self, what: str) -> NoReturn:
        tails = [f"--- {path.name}\n{_tail(path)}" for path in sorted(self.state.logs.glob("*.log"))]
        tails += [
            f"--- {path.parent.name}/{path.name}\n{_tail(path, 1000)}"
            for name in ("console.log", "qemu.out")
            for path in sorted(self.state.host.glob(f"servers/*/{name}"))
        ]
        pytest.fail("\n".join([what, "--- what was done", *self._notes, *tails]), pytrace=True)

    def close(self) -> None:
        """End what we started, by verified identity; then nothing of it may be left."""
        self._stack.close()
        for child in self._children.values():
            began = start_time(child.pid)
            if began is not None:
                end(ProcessId(child.pid, began, boot_id()), signal.SIGKILL, 10.0)
            child.wait(10.0)
        self._children.clear()
        over = time.monotonic() + 20.0
        while found := guests.running(self.state):
            for guest in found:
                folder = ServerFolder(self.state.host, guest.server_id)
                seen = process.identify(guest.pid, guest.server_id, folder.path)
                if seen is not None:
                    process.kill(seen, guest.server_id, folder.path)
            assert time.monotonic() < over, f"guests do not end: {found}"
            time.sleep(0.05)
        for _, name in socket.if_nameindex():
            if name != "lo":
                subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        links = [name for _, name in socket.if_nameindex() if name != "lo"]
        assert not links, f"interfaces are left: {links}"


def uploaded(root: Path, driver: str = "qemu") -> Path:
    """Make ``root`` a state folder into which the tiny image was uploaded: once for many tests."""
    image = tiny.built(State(root))
    if image is None:
        pytest.skip("the tiny image is not built: make setup")
    with cloud_in(root, driver) as made:
        made.start("control")
        made.upload(image)
        made.kill("control")
    return root


@contextlib.contextmanager
def cloud_in(root: Path, driver: str = "qemu") -> Iterator[FaultCloud]:
    """A cloud in a network of its own; whatever still runs in the end is ended."""
    with namespace():
        made = FaultCloud(root, driver)
        try:
            yield made
        finally:
            made.close()


def _ask(address: str, line: str) -> str | None:
    try:
        with socket.create_connection((address, 7), timeout=2.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(line.encode() + b"\n")
            with connection.makefile("r", encoding="utf-8", errors="replace") as reader:
                return reader.readline().strip() or None
    except OSError:
        return None


def _tail(path: Path, size: int = 3000) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[-size:].decode(errors="replace")
    return ""
