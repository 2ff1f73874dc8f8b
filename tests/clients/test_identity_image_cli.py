"""The real ``openstack`` command against a real server on a loopback port: identity and image."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from unstuck.api.app import create_app
from unstuck.api.context import Settings
from unstuck.api.identity.passwords import hash_password
from unstuck.store import identity
from unstuck.store.engine import Store

Run = Callable[..., Any]


@pytest.fixture
def url(store: Store, tmp_path: Path) -> Iterator[str]:
    """A cloud that listens."""
    store.transact(
        identity.bootstrap,
        admin_password_hash=hash_password("secret"),
        token_key=b"k" * 32,
        ids=lambda: uuid.uuid4().hex,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(store, Settings(state_dir=tmp_path)), log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listening.close()


@pytest.fixture
def openstack(url: str, tmp_path: Path) -> Run:
    """Runs one command; gives the JSON it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OS_AUTH_URL": f"{url}/identity",
        "OS_USERNAME": "admin",
        "OS_PASSWORD": "secret",
        "OS_PROJECT_NAME": "admin",
        "OS_USER_DOMAIN_ID": "default",
        "OS_PROJECT_DOMAIN_ID": "default",
        "OS_IDENTITY_API_VERSION": "3",
    }
    command = str(Path(sys.executable).with_name("openstack"))

    def run(*words: str) -> Any:
        done = subprocess.run(
            [command, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout

    return run


@pytest.mark.slow
def test_log_in_and_keep_an_image(openstack: Run, tmp_path: Path) -> None:
    """A token, projects, and an image from its upload to its delete."""
    token = openstack("token", "issue", "-f", "json")
    assert token["expires"].endswith("+0000")
    projects = openstack("project", "list", "-f", "json")
    assert {project["Name"] for project in projects} == {"admin", "demo", "service"}

    disk, back = tmp_path / "disk", tmp_path / "back"
    disk.write_bytes(os.urandom(3_000_000))
    made = openstack(
        "image", "create", "disk", "--file", str(disk), "--disk-format", "raw", "--property", "hw_x=1",
        "-f", "json",
    )  # fmt: skip
    assert made["status"] == "active"
    assert [image["Name"] for image in openstack("image", "list", "-f", "json")] == ["disk"]
    shown = openstack("image", "show", "disk", "-f", "json")
    assert shown["size"] == 3_000_000
    assert shown["properties"]["hw_x"] == "1"
    openstack("image", "save", "disk", "--file", str(back))
    assert back.read_bytes() == disk.read_bytes()
    openstack("image", "set", "disk", "--property", "hw_y=2", "--name", "other")
    openstack("image", "delete", "other")
    assert list((tmp_path / "blobs" / "images").iterdir()) == []
