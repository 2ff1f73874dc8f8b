"""Real processes, as many of a kind as a test likes: control planes, host agents, guests that are files.

No supervisor: each process is started, frozen, thawed and ended by the test, by verified identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx2
import pytest

from unstuck.cli import tiny
from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.cli.errors import CliError
from unstuck.core.agents import Register, Registered
from unstuck.host.client import HttpControl
from unstuck.host.main import facts, read_identity
from unstuck.runtime.processes import ProcessId, boot_id, end, handle, lives, start_time, stopped
from unstuck.runtime.state import State, prepare

T = TypeVar("T")
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """One process of ours. ``name`` is its log's."""

    def __init__(self, name: str, log: Path, child: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.log = log
        self.child = child
        began = start_time(child.pid)
        self.identity = ProcessId(child.pid, began if began is not None else -1, boot_id())

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def lives(self) -> bool:
        return self.child.poll() is None and lives(self.identity)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, line by line."""
        found = []
        for line in self.said.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def signal(self, number: signal.Signals) -> None:
        with handle(self.identity) as descriptor:
            assert descriptor is not None, f"{self.name} has ended"
            signal.pidfd_send_signal(descriptor, number)
        if number is signal.SIGSTOP:
            over = time.monotonic() + 10.0
            while not stopped(self.pid):
                assert time.monotonic() < over

    def kill(self) -> None:
        assert end(self.identity, signal.SIGKILL, 10.0)
        self.child.wait(10.0)

    def code(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        return self.child.wait(seconds)


class Many:
    """A state folder and whatever processes run on it."""

    def __init__(self, root: Path, *, driver: str = "instant", prepared: State | None = None) -> None:
        self.state = prepared or prepare(root, driver=driver, port=free_port())
        self.driver = driver
        self._started: list[Process] = []

    # --- processes

    def start(self, role: str, *words: str, prelude: str = "", state: State | None = None,
              wrap: tuple[str, ...] = (), **environment: str) -> Process:  # fmt: skip
        """Start ``control`` or ``host``. ``prelude``: what another version would have in its source."""
        state = state or self.state
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("UNSTUCK_", "OS_"))}
        code = f"{prelude}\nimport sys\nfrom unstuck.{role}.main import main\nsys.exit(main())"
        command = [*wrap, sys.executable, "-c", code, "--state", str(state.root), *words]
        if role == "host":
            command += ["--driver", self.driver]
        log = state.logs / f"{role}-{len(self._started)}.log"
        with log.open("ab") as file:
            child = subprocess.Popen(
                command, env={**kept, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        made = Process(log.stem, log, child)
        self._started.append(made)
        return made

    def control(self, *words: str, port: int | None = None, **more: str) -> Process:
        """A control plane that answers."""
        port = port or self.state.read().port
        made = self.start("control", "--port", str(port), *words, **more)
        self.until("a control plane answers", lambda: self.answers(made, port))
        return made

    def answers(self, process: Process, port: int) -> bool:
        """Whether this very process answers on the port."""
        if not process.lives:
            self.fail(f"{process.name} ended with {process.child.returncode}")
        with contextlib.suppress(httpx2.TransportError):
            answer = httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0, trust_env=False)
            return bool(answer.status_code == 200 and answer.json()["pid"] == process.pid)
        return False

    def agent(self, *words: str, **more: Any) -> Process:
        """An agent that has registered."""
        made = self.start("host", *words, **more)
        self.until("an agent registers", lambda: self.registered(made))
        return made

    def registered(self, process: Process, state: State | None = None) -> bool:
        if not process.lives:
            self.fail(f"{process.name} ended with {process.child.returncode}")
        with contextlib.suppress(OSError, ValueError):
            ready = json.loads((state or self.state).host_ready.read_bytes())
            return bool(ready["pid"] == process.pid)
        return False

    # --- what the cloud says

    @contextlib.contextmanager
    def admin(self) -> Iterator[Cloud]:
        with connect(self.state) as cloud:
            yield cloud

    def upload(self, folder: Path) -> None:
        with self.admin() as cloud:
            tiny.upload(cloud, folder)

    def create(self, name: str = "web", networks: str = "none") -> str:
        with self.admin() as cloud:
            return create(cloud, name, networks)

    def statuses(self) -> dict[str, str]:
        """Status by name of all servers; nothing while no control plane answers."""
        with contextlib.suppress(CliError), self.admin() as cloud:
            found = cloud.get("/compute/v2.1/servers/detail", headers=COMPUTE)["servers"]
            return {item["name"]: item["status"] for item in found}
        return {}

    def until_active(self, *names: str) -> None:
        def active() -> bool:
            found = self.statuses()
            return all(found.get(name) == "ACTIVE" for name in names)

        self.until(f"{names} are ACTIVE", active, lambda: str(self.statuses()))

    def incarnation(self) -> int:
        """Of the agent that registered last, asked as any agent would."""
        return self._register("nobody", follow=False).incarnation

    def supersede(self) -> int:
        """Register as the next agent of this host would; returns the incarnation."""
        got = self._register("next", follow=True)
        assert got.granted
        return got.incarnation

    def _register(self, start: str, *, follow: bool) -> Registered:
        async def ask() -> Registered:
            who = read_identity(self.state.host)
            control = HttpControl(self.state.url(), who.host_id, who.secret)
            known = facts(self.state.host, who.machine_id, self.driver, "none", "1")
            try:
                asked = await control.register(Register(start, known))
                if not follow:
                    return asked
                return await control.register(Register(start, known, asked.incarnation))
            finally:
                await control.close()

        return asyncio.run(ask())

    def marker(self, server_id: str) -> Path:
        """The instant driver's guest."""
        return self.state.host / "servers" / server_id / "guest.json"

    # --- waiting and the end

    def until(
        self, what: str, condition: Callable[[], T | None], more: Callable[[], str] = str,
        seconds: float = PATIENCE,
    ) -> T:  # fmt: skip
        over = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > over:
                self.fail(f"{what}: not within {seconds:.0f} s\n{more()}")
            time.sleep(0.02)

    def fail(self, what: str) -> NoReturn:
        tails = [f"--- {process.name}\n{process.said[-2500:]}" for process in self._started]
        pytest.fail("\n".join([what, *tails]), pytrace=True)

    def close(self) -> None:
        """Only what we started, by verified identity."""
        for process in self._started:
            if process.child.poll() is None:
                end(process.identity, signal.SIGKILL, 10.0)
                process.child.wait(10.0)


def create(cloud: Cloud, name: str, networks: str = "none") -> str:
    images = {item["name"]: item for item in cloud.get("/image/v2/images")["images"]}
    flavors = cloud.get("/compute/v2.1/flavors/detail", headers=COMPUTE)["flavors"]
    flavor = next(item for item in flavors if item["name"] == "t.micro")
    body = {
        "name": name, "imageRef": images["tiny"]["id"], "flavorRef": flavor["id"], "networks": networks,
    }  # fmt: skip
    answer = cloud.ask("POST", "/compute/v2.1/servers", json={"server": body}, headers=COMPUTE)
    return str(answer.json()["server"]["id"])
