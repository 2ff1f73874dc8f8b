"""A cloud for the bench: its own state folder, port and processes, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

from bench.line import Line
from unstuck.cli import tiny
from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.host.drivers.process import identify, kill
from unstuck.runtime.barriers import VARIABLE
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import ProcessId, end_for_sure
from unstuck.runtime.state import prepare

HERE = Path(__file__).parent.parent
PATIENCE = 60.0
POLL = 0.003
LEAST_RAM = 96
"""What the tiny image needs, in MiB."""


def until(condition: Callable[[], Any], poll: float = 0.01) -> Any:
    """What the condition found; raises after a minute."""
    end_of_patience = time.monotonic() + PATIENCE
    while time.monotonic() < end_of_patience:
        found = condition()
        if found:
            return found
        time.sleep(poll)
    raise TimeoutError("it did not happen within a minute")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """One state folder and the processes that were started in it."""

    def __init__(self, folder: Path, driver: str, store: str = "") -> None:
        self.folder = folder
        self.driver = driver
        self.state = prepare(folder / "state", port=free_port(), driver=driver)
        self.store = store or self.state.store_url
        self.home = folder / "home"
        self.home.mkdir()
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, *words: str, stop_at: str = "") -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UNSTUCK", "OS_"))}
        # As the supervisor starts a control plane.
        arenas = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": str(256 * 1024)}
        extra = arenas if module.endswith("control.main") else {"PYTHONPATH": str(HERE)}
        if stop_at:
            extra = {**extra, VARIABLE: stop_at}
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**kept, "HOME": str(self.home), **extra}, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._children.append(child)
        return child

    def control(self) -> subprocess.Popen[bytes]:
        network = ["--network", "10.64.0.0/16"] if self.driver == "instant" else []
        where = ("--state", str(self.state.root), "--store", self.store)
        child = self.start("unstuck.control.main", *where, *network)
        until(lambda: self._lives(child) and self.answers())
        return child

    def _lives(self, child: subprocess.Popen[bytes]) -> bool:
        assert child.poll() is None, (self.folder / "log").read_text()[-3000:]
        return True

    def agent(self, stop_at: str = "", url: str = "") -> tuple[subprocess.Popen[bytes], float]:
        """A new agent, and the wall time at which its registration was answered."""
        self.state.host_ready.unlink(missing_ok=True)
        where = ["--state", str(self.state.root), "--driver", self.driver]
        where += ["--url", url] if url else []
        module = "bench.roomy" if self.driver == "instant" else "unstuck.host.main"
        child = self.start(module, *where, stop_at=stop_at)
        return child, until(self.registered, 0.001)

    def registered(self) -> float:
        with contextlib.suppress(FileNotFoundError):
            return self.state.host_ready.stat().st_mtime
        return 0.0

    def answers(self) -> bool:
        try:
            answer = httpx2.get(f"{self.state.url()}/identity/v3", timeout=5.0, trust_env=False)
        except httpx2.TransportError:
            return False
        return answer.status_code == 200

    def holders(self) -> dict[str, ProcessId]:
        locks = {
            "supervisor": self.state.supervisor_lock,
            "host": self.state.host_lock,
            "control": self.state.control_lock,
        }
        found = {name: holder(path) for name, path in locks.items()}
        return {name: process for name, process in found.items() if process is not None}

    def close(self) -> None:
        """End what runs here: processes by verified identity, and then the guests."""
        for name in ("supervisor", "host", "control"):
            process = self.holders().get(name)
            if process is not None:
                end_for_sure(process, 10.0)
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait(10.0)
        for path in self.state.host.glob("servers/*/pid"):
            with contextlib.suppress(OSError, ValueError):
                guest = identify(int(path.read_text()), path.parent.name, path.parent)
                if guest is not None:
                    kill(guest, path.parent.name, path.parent)


@contextlib.contextmanager
def new_site(driver: str, store: str = "") -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="unstuck-bench-"))
    site = Site(folder, driver, store)
    try:
        yield site
    finally:
        site.close()
        shutil.rmtree(folder, ignore_errors=True)


def kill_hard(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait(10.0)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class User:
    """A client that creates, watches and deletes servers over one connection that stays open."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        cloud.client.headers.update(COMPUTE)
        images = {item["name"]: item["id"] for item in cloud.get("/image/v2/images")["images"]}
        self._image = images[tiny.NAME]
        flavors = cloud.get("/compute/v2.1/flavors/detail")["flavors"]
        fitting = [item for item in flavors if item["ram"] >= LEAST_RAM]
        self.flavor = min(fitting, key=lambda item: (item["ram"], item["id"]))

    def request(self, name: str) -> dict[str, Any]:
        """The body of a request to create a server."""
        server = {"name": name, "imageRef": self._image, "flavorRef": self.flavor["id"], "networks": "auto"}
        return {"server": server}

    def lift_limits(self) -> None:
        """Let the project have as many servers as it likes."""
        unlimited = {"instances": -1, "cores": -1, "ram": -1}
        project = self.cloud.get("/identity/v3/auth/projects")["projects"][0]["id"]
        self.cloud.ask("PUT", f"/compute/v2.1/os-quota-sets/{project}", json={"quota_set": unlimited})

    def line(self) -> Line:
        """A connection of its own with the same token, which costs less."""
        headers = {"x-auth-token": self.cloud.client.headers["x-auth-token"], **COMPUTE}
        return Line(int(self.cloud.url.rpartition(":")[2]), headers)

    def create(self, name: str) -> str:
        answer = self.cloud.ask("POST", "/compute/v2.1/servers", json=self.request(name))
        return str(answer.json()["server"]["id"])

    def until_active(self, server_id: str) -> float:
        """The monotonic time at which the API said ACTIVE."""

        def active() -> bool:
            shown = self.cloud.get(f"/compute/v2.1/servers/{server_id}")["server"]["status"]
            if shown == "ERROR":
                raise RuntimeError(f"server {server_id} is in ERROR")
            return bool(shown == "ACTIVE")

        until(active, POLL)
        return time.monotonic()

    def status(self, server_id: str) -> str:
        return str(self.cloud.get(f"/compute/v2.1/servers/{server_id}")["server"]["status"])

    def delete(self, server_id: str) -> None:
        """Delete, and wait until it is gone."""
        self.cloud.ask("DELETE", f"/compute/v2.1/servers/{server_id}")
        path = f"/compute/v2.1/servers/{server_id}"
        until(lambda: self.cloud.client.get(path).status_code == 404)


@contextlib.contextmanager
def user(site: Site, image: Path) -> Iterator[User]:
    with connect(site.state) as cloud:
        tiny.upload(cloud, image)
        yield User(cloud)


def pss_mb(process: ProcessId) -> float:
    """Memory that is the process's own, with its share of what it shares (PSS), in MB."""
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no PSS")
