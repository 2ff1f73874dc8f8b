"""The real clients against a real socket, with a host that obeys at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
import uvicorn
from tests.compute_fakes import settle
from tests.compute_site import KEY, Site

from unstuck.api.app import create_app
from unstuck.api.context import Settings
from unstuck.api.identity.passwords import hash_password
from unstuck.store import clock, identity
from unstuck.store.engine import Store

OPENSTACK = Path(sys.executable).with_name("openstack")


class Running:
    """A cloud on a loopback port."""

    def __init__(self, store: Store, folder: Path) -> None:
        store.transact(
            identity.bootstrap, admin_password_hash=hash_password("secret"), token_key=b"k" * 32,
            ids=lambda: uuid.uuid4().hex,
        )  # fmt: skip
        self.store = store
        self.site = Site(store)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        app = create_app(store, Settings(state_dir=folder))
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error")
        self.server = uvicorn.Server(config)
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.serve), threading.Thread(target=self.work)]

    def serve(self) -> None:
        asyncio.run(self.server.serve())

    def work(self) -> None:
        """The control loop and the host, ten times a second."""
        while not self.stopping.wait(0.1):
            self.store.transact(clock.tick, lease_seconds=30.0)
            settle(self.store, self.site.host)

    def start(self) -> None:
        for thread in self.threads:
            thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        self.stopping.set()
        self.server.should_exit = True
        for thread in self.threads:
            thread.join(20)

    def auth(self) -> dict[str, str]:
        return {
            "auth_url": f"http://127.0.0.1:{self.port}/identity/v3", "username": "admin",
            "password": "secret", "project_name": "admin", "user_domain_id": "default",
            "project_domain_id": "default",
        }  # fmt: skip

    def cli(self, *words: str) -> Any:
        """The answer of one command, as JSON where it prints some."""
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "OS_REGION_NAME": "RegionOne"}
        env |= {f"OS_{key.upper()}": value for key, value in self.auth().items()}
        done = subprocess.run([OPENSTACK, *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        with contextlib.suppress(ValueError):
            return json.loads(done.stdout)
        return done.stdout


@pytest.fixture
def cloud(store: Store, tmp_path: Path) -> Iterator[Running]:
    running = Running(store, tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def sdk(cloud: Running) -> Iterator[openstack.connection.Connection]:
    with openstack.connect(
        **cloud.auth(), region_name="RegionOne", load_yaml_config=False, load_envvars=False
    ) as made:
        yield made


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["Name"] for row in rows}


@pytest.mark.filterwarnings("default")
def test_the_openstack_command(cloud: Running) -> None:
    cli = cloud.cli
    key_file = Path(cloud.store.engine.url.database or "").with_name("key.pub")
    key_file.write_text(KEY)
    cli("keypair", "create", "--public-key", str(key_file), "k")
    cli("flavor", "create", "--ram", "64", "--vcpus", "1", "--disk", "0", "small")
    assert {"small", "t.nano"} <= names(cli("flavor", "list", "-f", "json"))
    made = cli(
        "server", "create", "--image", cloud.site.image, "--flavor", "small", "--key-name", "k",
        "--network", "private", "--property", "a=b", "--wait", "web", "-f", "json",
    )  # fmt: skip
    assert made["status"] == "ACTIVE"
    [row] = cli("server", "list", "--long", "-f", "json")
    assert (row["Name"], row["Status"], row["Power State"]) == ("web", "ACTIVE", 1)
    cli("server", "stop", "web")
    wait(lambda: cli("server", "show", "web", "-f", "json")["status"] == "SHUTOFF")
    cli("server", "start", "web")
    wait(lambda: cli("server", "show", "web", "-f", "json")["status"] == "ACTIVE")
    cli("server", "reboot", "--hard", "--wait", "web")
    assert "line 3" in cli("console", "log", "show", "web")
    actions = cli("server", "event", "list", "web", "-f", "json")
    assert [row["Action"] for row in actions] == ["reboot", "start", "stop", "create"]
    [port] = cli("port", "list", "--server", "web", "-f", "json")
    assert port["Status"] == "ACTIVE"
    cli("server", "delete", "--wait", "web")
    assert cli("server", "list", "-f", "json") == []


@pytest.mark.filterwarnings("default")
def test_pause_lock_and_mark_of_the_openstack_command(
    cloud: Running, sdk: openstack.connection.Connection
) -> None:
    cli = cloud.cli
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)

    def shows(wanted: str) -> bool:
        return bool(sdk.compute.get_server(server.id).status == wanted)

    cli("server", "pause", "web")
    wait(lambda: shows("PAUSED"))
    cli("server", "unpause", "web")
    wait(lambda: shows("ACTIVE"))
    cli("--os-compute-api-version", "2.73", "server", "lock", "--reason", "audit", "web")
    locked = cli("--os-compute-api-version", "2.73", "server", "show", "web", "-f", "json")
    assert (locked["locked"], locked["locked_reason"]) == (True, "audit")
    cli("server", "unlock", "web")
    cli("server", "set", "--state", "error", "--auto-approve", "web")
    assert shows("ERROR")
    cli("server", "set", "--state", "active", "--auto-approve", "web")
    assert shows("ACTIVE")
    cli("server", "rebuild", "--wait", "--image", cloud.site.image, "--name", "again", "web")
    assert sdk.compute.get_server(server.id).name == "again"
    actions = [action.action for action in sdk.compute.server_actions(server)]
    assert actions == ["rebuild", "resetState", "resetState", "unlock", "lock", "unpause", "pause", "create"]


@pytest.mark.filterwarnings("default")
def test_pause_lock_and_mark_of_the_sdk(cloud: Running, sdk: openstack.connection.Connection) -> None:
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)
    compute = sdk.compute

    def becomes(status: str) -> None:
        # A fresh copy: the one that was shown before would count as there already.
        compute.wait_for_server(compute.get_server(server.id), status, failures=[], interval=0.2, wait=20)

    compute.pause_server(server)
    becomes("PAUSED")
    compute.unpause_server(server)
    becomes("ACTIVE")
    compute.lock_server(server, locked_reason="audit")
    assert compute.get_server(server.id).is_locked
    compute.unlock_server(server)
    compute.reset_server_state(server, "error")
    becomes("ERROR")
    compute.reset_server_state(server, "active")
    becomes("ACTIVE")
    rebuilt = sdk.rebuild_server(server.id, cloud.site.image, wait=True, timeout=20)
    assert (rebuilt.id, rebuilt.status) == (server.id, "ACTIVE")


@pytest.mark.filterwarnings("default")
def test_lists_of_the_openstack_command(cloud: Running) -> None:
    cli = cloud.cli
    [host] = cli("hypervisor", "list", "-f", "json")
    assert host["State"] == "up"
    [service] = cli("compute", "service", "list", "-f", "json")
    assert (service["Binary"], service["State"]) == ("nova-compute", "up")
    [zone] = cli("availability", "zone", "list", "-f", "json")
    assert (zone["Zone Name"], zone["Zone Status"]) == ("nova", "available")
    assert names(cli("network", "list", "-f", "json")) == {"private"}
    assert names(cli("subnet", "list", "-f", "json")) == {"private-v4"}


def wait(ready: Any) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline


@pytest.mark.filterwarnings("default")
def test_the_sdk(cloud: Running, sdk: openstack.connection.Connection) -> None:
    made = sdk.create_keypair("k2", KEY)
    assert made.name == "k2"
    server = sdk.create_server(
        "sdk", image=cloud.site.image, flavor="t.nano", key_name="k2", wait=True, timeout=30
    )
    assert server.status == "ACTIVE"
    assert server.private_v4 or server.addresses["private"]
    compute = sdk.compute
    compute.stop_server(server)
    compute.wait_for_server(server, "SHUTOFF", interval=0.2, wait=20)
    compute.start_server(server)
    compute.wait_for_server(server, "ACTIVE", interval=0.2, wait=20)
    compute.reboot_server(server, "SOFT")
    compute.wait_for_server(server, "ACTIVE", interval=0.2, wait=20)
    assert "line 1" in compute.get_server_console_output(server)["output"]
    assert {action.action for action in compute.server_actions(server)} >= {"create", "stop"}
    assert [item.name for item in compute.servers()] == ["sdk"]
    assert [item.name for item in compute.servers(details=False, limit=1)] == ["sdk"]
    compute.set_server_metadata(server, a="b")
    assert compute.get_server_metadata(server).metadata == {"a": "b"}
    compute.update_server(server, name="renamed")
    assert compute.find_server("renamed").id == server.id
    assert sdk.get_compute_limits().total_instances_used == 1
    assert sdk.get_compute_quotas("admin").instances == 100
    assert [item.name for item in compute.hypervisors(details=True)] == ["host-1"]
    assert sdk.list_availability_zone_names() == ["nova"]
    [port] = sdk.network.ports(device_id=server.id)
    assert port.mac_address.startswith("52:54")
    assert sdk.network.find_security_group("default") is not None
    assert sdk.network.get_network(port.network_id).name == "private"
    assert sdk.delete_server("renamed", wait=True, timeout=20)
    assert sdk.delete_keypair("k2")
