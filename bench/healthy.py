"""A database in a container from its POST to HEALTHY, against a bare initdb and start on the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from tests.postgres import programs
from tests.real.container_stage import why_not
from tests.real.fault_cloud import FaultCloud, cloud_in

from bench.figure import Figure, figure, spread, times
from unstuck.cli import boxes
from unstuck.cli.cloud import connect
from unstuck.cli.dbcalls import Databases
from unstuck.cli.dbimage import register
from unstuck.host import dbimage
from unstuck.host.debian import BuildError

ROUNDS = int(os.environ.get("UNSTUCK_BENCH_INSTANCES", "5"))
POLL = 0.02


def healthy() -> Iterator[Figure]:
    """Both turn about, so that they meet the same load."""
    name = "database: POST to HEALTHY in a container, less bare initdb and start"
    why = why_not() or ("no PostgreSQL here" if programs() is None else "")
    folder = dbimage.default_folder()
    if not why:
        try:
            dbimage.build(folder)
        except BuildError as error:
            why = f"no database image: {error}"
    if why:
        yield Figure(name, None, "skipped", note=why)
        return
    ours, bare, posts = [], [], []
    with _cloud(folder) as cloud:
        api = Databases(cloud.cloud)
        for turn in range(ROUNDS + 1):
            posted, took = _create(cloud, api, f"db{turn}")
            alone = _bare()
            if turn:  # the first one also unpacks the image
                posts.append(posted)
                ours.append(took)
                bare.append(alone)
    yield times("database: POST /instances", posts)
    yield times("database: POST to HEALTHY in a container", ours)
    yield times("database: bare initdb, and start to the first connection", bare)
    more = [one - other for one, other in zip(ours, bare, strict=True)]
    yield figure(name, median(more), "s", 1.0, spread(more, 1))


@contextlib.contextmanager
def _cloud(image: Path) -> Iterator[FaultCloud]:
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
            asyncio.run(boxes.end_all(made.state, 5.0))


def _create(cloud: FaultCloud, api: Databases, name: str) -> tuple[float, float]:
    """Seconds until it was accepted, and until it was HEALTHY; it is gone afterwards."""
    order: dict[str, Any] = {
        "name": name, "flavorRef": api.flavor(None, 256), "volume": {"size": 1},
        "databases": [{"name": "shop"}],
        "users": [{"name": "anna", "password": "secret-1", "databases": [{"name": "shop"}]}],
    }  # fmt: skip
    began = time.monotonic()
    made = api.ask("POST", "/instances", json={"instance": order})["instance"]["id"]
    posted = time.monotonic() - began
    over = began + 120
    while api.get(f"/instances/{made}")["instance"]["operating_status"] != "HEALTHY":
        assert time.monotonic() < over, "no HEALTHY within two minutes"
        time.sleep(POLL)
    took = time.monotonic() - began
    api.ask("POST", f"/instances/{made}/action", json={"reset_status": {"force_delete": True}})
    while boxes.running(cloud.state):
        assert time.monotonic() < over, "it does not end"
        time.sleep(POLL)
    return posted, took


def _bare() -> float:
    """As a person would: initdb as it comes, with the same options, and the server until it answers."""
    found = programs()
    assert found is not None
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="ub-"))
    try:
        if user:
            shutil.chown(folder, "postgres", "postgres")
        data = folder / "pg"
        began = time.monotonic()
        subprocess.run(
            [*user, found / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8",
             "--data-checksums", "-A", "trust"],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        server = subprocess.Popen(
            [*user, found / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            while not _answers(folder):
                assert server.poll() is None
                time.sleep(POLL)
            return time.monotonic() - began
        finally:
            server.send_signal(3)
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(folder: Path) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(host=str(folder), user="postgres", dbname="postgres").close()
        return True
    return False


if __name__ == "__main__":
    from bench.figure import row

    for item in healthy():
        print(row(item), flush=True)
