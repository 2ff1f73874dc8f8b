"""A database in a whole cloud on the real thing: control plane, host agent, a container of the datastore's
image, PostgreSQL in it, and a client that connects from the host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.real.container_stage import why_not
from tests.real.fault_cloud import FaultCloud, cloud_in
from unstuck.cli import boxes
from unstuck.cli.cloud import connect
from unstuck.cli.dbcalls import Databases
from unstuck.cli.dbimage import register
from unstuck.host import dbimage
from unstuck.host.debian import BuildError

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers")
HERE = "10.77.0.1/32"


@pytest.fixture(scope="module")
def image() -> Path:
    """Of the code as it is now; what comes from Debian was fetched by set-up."""
    folder = dbimage.default_folder()
    try:
        dbimage.build(folder)
    except BuildError as error:
        pytest.skip(f"the database image cannot be built here: {error}")
    return folder


@pytest.fixture
def cloud(image: Path) -> Iterator[FaultCloud]:
    with tempfile.TemporaryDirectory(prefix="unstuck-db-") as root, cloud_in(Path(root)) as made:
        try:
            made.start("control")
            with connect(made.state) as admin:
                register(admin, image)
            made.start("host")
            yield made
        finally:
            with contextlib.suppress(BaseException):
                made.kill_anyhow("host")
            for guest in boxes.running(made.state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(guest.pid, signal.SIGKILL)
            asyncio.run(boxes.end_all(made.state, 5.0))


def create(api: Databases, cidr: str) -> str:
    wanted = {
        "name": "shop",
        "flavorRef": api.flavor(None, 256),
        "volume": {"size": 1},
        "databases": [{"name": "shop"}],
        "users": [{"name": "anna", "password": "secret-1", "databases": [{"name": "shop"}]}],
        "access": {"allowed_cidrs": [cidr]},
    }
    return str(api.ask("POST", "/instances", json={"instance": wanted})["instance"]["id"])


def healthy(cloud: FaultCloud, api: Databases, instance: str) -> dict[str, Any]:
    def seen() -> dict[str, Any] | None:
        found: dict[str, Any] = api.get(f"/instances/{instance}")["instance"]
        return found if found["operating_status"] == "HEALTHY" else None

    cloud.until("the database is healthy", lambda: seen() is not None)
    shown = seen()
    assert shown is not None
    return shown


def ask(address: str, query: str, seconds: int = 5) -> Any:
    """Also where its packets are dropped in the middle of the question, it ends."""
    words = f"host={address} user=anna password=secret-1 dbname=shop connect_timeout={seconds}"
    words += " keepalives_idle=1 keepalives_interval=1 keepalives_count=2 tcp_user_timeout=3000"
    with psycopg.connect(words, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchone() if cursor.description else None


@pytest.mark.slow
def test_a_database_serves_outlives_its_agent_and_keeps_out_who_is_not_let_in(cloud: FaultCloud) -> None:
    api = Databases(cloud.cloud)
    instance = create(api, HERE)
    shown = healthy(cloud, api, instance)
    address = next(item["address"] for item in shown["addresses"])
    ask(address, "create table orders (id int)")
    ask(address, "insert into orders values (42)")
    assert ask(address, "select id from orders") == (42,)
    (before,) = boxes.running(cloud.state)

    cloud.kill("host")
    assert ask(address, "select id from orders") == (42,)
    cloud.start("host")
    healthy(cloud, api, instance)
    assert boxes.running(cloud.state) == [before]
    cloud.agree()

    let_in(api, instance, "192.0.2.0/24")
    cloud.until("the host is kept out", lambda: not reaches(address))
    let_in(api, instance, HERE)
    cloud.until("the host is let in again", lambda: reaches(address))
    assert boxes.running(cloud.state) == [before]

    os.kill(before.pid, signal.SIGKILL)  # the whole guest at once, as when the host's memory is short
    cloud.until("another guest runs", lambda: boxes.running(cloud.state) not in ([], [before]))
    healthy(cloud, api, instance)
    cloud.until("it answers", lambda: reaches(address))
    assert ask(address, "select id from orders") == (42,)

    api.ask("DELETE", f"/instances/{instance}")
    cloud.until("no guest is left", lambda: boxes.running(cloud.state) == [])
    cloud.until("nothing is mounted", lambda: not boxes.left(cloud.state))
    cloud.agree()


def let_in(api: Databases, instance: str, cidr: str) -> None:
    body = {"instance": {"access": {"allowed_cidrs": [cidr]}}}
    api.ask("PATCH", f"/instances/{instance}", json=body)


def reaches(address: str) -> bool:
    began = time.monotonic()
    try:
        return bool(ask(address, "select 1", seconds=2) == (1,))
    except psycopg.OperationalError:
        assert time.monotonic() - began < 30
        return False
