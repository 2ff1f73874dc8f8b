"""The cloud that chaos acts on: its own mounts, servers and databases, and its processes by what they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from unstuck.blobs.stores import StoresFile
from unstuck.cli import boxes, dbimage
from unstuck.cli.chaos.clients import CLIENTS, DATABASE, PASSWORD, USER, Client
from unstuck.cli.cloud import COMPUTE, connect
from unstuck.cli.dbcalls import Databases
from unstuck.cli.demo_world import Failed, World, wait_for
from unstuck.cli.errors import CliError
from unstuck.core.backup.limits import Wish
from unstuck.host.dbkinds import KINDS
from unstuck.host.drivers.podman import cgroups
from unstuck.runtime.files import write_whole
from unstuck.runtime.processes import start_time
from unstuck.runtime.state import State

HERE: Final = "10.77.0.1/32"
STATE_MB: Final = 2048
BACKUPS_MB: Final = 1024
LIMITS: Final = Wish(
    claim=60.0, starting=20.0, copying=20.0, finishing=20.0, uploading=20.0, verify=60.0, unknown=30.0,
    attempts=5,
)  # fmt: skip
"""Of a backup, in seconds: shorter than an operator's, so that faults are seen to be settled."""


class Database:
    """One instance, and its processes in the container."""

    def __init__(self, world: ChaosWorld, name: str, instance_id: str, client: Client) -> None:
        self.world = world
        self.name = name
        self.id = instance_id
        self.client = client
        self.address = ""
        self.server_id = ""

    def pids(self) -> list[int]:
        mine = boxes.places(self.world.state)
        if mine is None:
            return []
        with contextlib.suppress(OSError):
            return cgroups.living(mine.guest_group(self.server_id))
        return []

    def agent(self) -> int | None:
        found = [pid for pid in self.pids() if _words(pid)[1:3] == [b"-m", b"unstuck.guest"]]
        return found[0] if found else None

    def server(self) -> int | None:
        """The database server's first process."""
        found = [pid for pid in self.pids() if self.client.is_server(_words(pid))]
        return min(found) if found else None

    def helpers(self) -> list[int]:
        """Processes of the server beside the first one, and tools of a backup."""
        first = self.server()
        return [pid for pid in self.pids() if pid != first and self.client.is_helper(_comm(pid))]


class ChaosWorld(World):
    """Servers and databases of all registered versions, as the demonstration's cloud with room of its own."""

    def __init__(self) -> None:
        super().__init__("unstuck-chaos-")
        self.servers: dict[str, str] = {}
        self.databases: list[Database] = []
        self.not_driven: list[str] = []

    def furnish(self) -> None:
        """The store's disk and that of the backups are small ones of their own; guests lie beside them."""
        root = self.state.root
        root.mkdir(mode=0o700)
        self._mount(root, STATE_MB)
        (self.root / "host").mkdir(mode=0o700)
        for name in ("host", "backups"):
            (root / name).mkdir(mode=0o700)
        subprocess.run(["mount", "--bind", str(self.root / "host"), str(root / "host")], check=True)
        self._mount(root / "backups", BACKUPS_MB)

    def _mount(self, place: Path, megabytes: int) -> None:
        options = f"size={megabytes}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)

    def clean_up(self) -> None:
        subprocess.run(["nft", "delete", "table", "inet", "chaos"], check=False, capture_output=True)
        mine = boxes.places(self.state)
        if mine is not None:
            cgroups.thaw(mine.group)
        super().clean_up()
        for place in ("backups", "host", ""):
            path = str(self.state.root / place)
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
        super().clean_up()  # what was below the mounts

    def keep_logs(self, where: Path) -> None:
        """Copies of what its processes and guests have said, before they are gone."""
        with contextlib.suppress(OSError):
            shutil.copytree(self.state.logs, where, dirs_exist_ok=True)
            for path in (self.state.host / "servers").glob("*/console.log*"):
                shutil.copyfile(path, where / f"{path.parent.name}.{path.name}")

    # --- made once

    def build(self) -> None:
        """Two servers and two instances of each registered version, all of them in use."""
        self.unstuck("up", "--detach", "--driver", "qemu")
        write_whole(self.state.backup_stores, msgspec.json.encode(StoresFile(limits=LIMITS)))
        for name in KINDS:
            folder = dbimage.built(State(Path("/nonexistent")), name)
            if folder is not None:
                self.unstuck("image", "build", name, "--folder", str(folder), "--register")
        for number in (1, 2):
            self._server(f"server-{number}")
        with self.cloud() as cloud:
            api = Databases(cloud)
            for store in api.get("/datastores")["datastores"]:
                self._instances(api, store)
            for database in self.databases:
                self.ready(api, database)
        for name, server_id in self.servers.items():
            wait_for(f"{name} is ACTIVE", 240.0, partial(self.is_active, server_id))

    def _server(self, name: str) -> None:
        words = ("--image", "tiny", "--flavor", "t.micro", "--nic", "auto", "-f", "json", name)
        self.servers[name] = str(self.openstack("server", "create", *words)["id"])

    def _instances(self, api: Databases, store: dict[str, Any]) -> None:
        for version in store["versions"]:
            client = CLIENTS.get(str(store["name"]))
            if client is None:
                self.not_driven.append(f"{store['name']} {version['name']}")
                continue
            for number in (1, 2):
                name = f"{store['name']}-{version['name']}-{number}"
                chosen = {"type": store["name"], "version": version["name"]}
                self.databases.append(self.create(api, name, client, datastore=chosen))

    def create(
        self, api: Databases, name: str, client: Client, *, backup: str = "", datastore: Any = None
    ) -> Database:
        """An instance, empty or out of a backup."""
        wanted: dict[str, Any] = {
            "name": name, "flavorRef": api.flavor(None, 256), "volume": {"size": 1},
            "access": {"allowed_cidrs": [HERE]},
        }  # fmt: skip
        if datastore is not None:
            wanted["datastore"] = datastore
        if backup:
            wanted["restorePoint"] = {"backupRef": backup}
        else:
            wanted["databases"] = [{"name": DATABASE}]
            wanted["users"] = [{"name": USER, "password": PASSWORD, "databases": [{"name": DATABASE}]}]
        made = api.ask("POST", "/instances", json={"instance": wanted})
        return Database(self, name, str(made["instance"]["id"]), client)

    def ready(self, api: Databases, database: Database, seconds: float = 300.0) -> None:
        """Healthy, and its address and server known."""

        def healthy() -> bool:
            shown = api.get(f"/instances/{database.id}")["instance"]
            if shown["status"] == "ERROR":
                raise Failed(f"{database.name} is in ERROR: {shown.get('fault')}")
            return bool(shown["operating_status"] == "HEALTHY")

        wait_for(f"{database.name} is healthy", seconds, healthy)
        shown = api.get(f"/instances/{database.id}")["instance"]
        database.address = str(shown["addresses"][0]["address"])
        with connect(self.state) as admin:
            found = admin.get(f"/database/v1.0/{admin.project_id}/mgmt/instances/{database.id}")
        database.server_id = str(found["instance"]["server"]["id"])

    # --- looking

    def status(self, server_id: str) -> str:
        """A server's; empty where nobody answers, or it is on its way."""
        try:
            with self.cloud() as cloud:
                found = cloud.get(f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)["server"]
        except CliError:
            return ""
        return "" if found["OS-EXT-STS:task_state"] else str(found["status"])

    def is_active(self, server_id: str) -> bool:
        return self.status(server_id) == "ACTIVE"

    def answers(self) -> bool:
        """The control plane, in words of its own."""
        try:
            done = httpx2.get(f"{self.state.url()}/healthz", timeout=2.0, trust_env=False)
            return bool(done.status_code == 200)
        except httpx2.TransportError:
            return False

    def registered(self, pid: int) -> bool:
        """Whether an agent that is not this process has registered."""
        with contextlib.suppress(OSError, ValueError):
            known = msgspec.json.decode(self.state.host_ready.read_bytes(), type=dict[str, int])
            return known["pid"] != pid and start_time(known["pid"]) is not None
        return False


class Held:
    """A process that is stopped, told from a later one with its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._start = start_time(pid)
        os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self._start is not None and start_time(self.pid) == self._start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
