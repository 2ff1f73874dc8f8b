"""Any moment of a database, restored: a real cloud, an outside writer that looks at the store's clock."""

from __future__ import annotations

import datetime
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.real.database_cloud import BOTH, DatabaseCloud, Instance, database_cloud
from tests.real.datastore_kits import Kit
from unstuck.cli.recover import recover

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(1500),
    BOTH,
]
MOMENTS = {"postgresql": 20, "mariadb": 8}
BEAT = 15.0
"""Seconds by which what is known of a position may be old: an agent's look, its word, its host's."""


class Clocked:
    """Rows one after the other, each with the times before it was sent and after it was acknowledged, by the
    clock of the machine that the store is on."""

    def __init__(self, kit: Kit, address: str) -> None:
        self.kit = kit
        self.address = address
        self.sent: dict[int, float] = {}
        self.acknowledged: dict[int, float] = {}
        self.pause = 0.05
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        row = 0
        while not self._stop.is_set():
            try:
                with self.kit.login(self.address, "shop", 3) as connection:
                    while not self._stop.is_set():
                        if self._idle.is_set():
                            self._stop.wait(0.1)
                            continue
                        row += 1
                        self.sent[row] = time.time()
                        self.kit.insert(connection, row)
                        self.acknowledged[row] = time.time()
                        self._stop.wait(self.pause)
            except self.kit.error:
                self._stop.wait(0.2)

    def rest(self, *, idle: bool) -> None:
        if idle:
            self._idle.set()
        else:
            self._idle.clear()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30.0)


@pytest.fixture(scope="module")
def made(images: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[DatabaseCloud]:
    kind = str(request.param)
    with (
        tempfile.TemporaryDirectory(prefix="unstuck-pt-") as root,
        database_cloud(Path(root), images(kind), kind, base_seconds=0, archive_seconds=5) as cloud,
    ):
        yield cloud


def moments(shop: Instance) -> tuple[float, float] | None:
    found = shop.shown()["unstuck"]
    ends = (found["earliest_restorable_time"], found["latest_restorable_time"])
    return None if ends[0] is None else (seconds(ends[0]), seconds(ends[1]))


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def iso(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()


def restored_to(made: DatabaseCloud, shop: Instance, at: float, name: str) -> Instance:
    wanted: dict[str, Any] = {
        "name": name, "flavorRef": made.api.flavor(None, 256), "volume": {"size": 1},
        "access": {"allowed_cidrs": ["10.77.0.1/32"]},
        "restorePoint": {"instance": shop.id, "time": iso(at)},
    }  # fmt: skip
    answer = made.api.ask("POST", "/instances", json={"instance": wanted})
    found = Instance(made, str(answer["instance"]["id"]))
    made.instances.append(found)
    found.until_healthy(180.0)
    found.address = next(item["address"] for item in found.shown()["addresses"])
    made.cloud.until("it lets its user in", found.reaches)
    return found


def rows_of(instance: Instance) -> list[int]:
    with instance.login() as connection:
        return [row[0] for row in instance.kit.rows(connection, "SELECT id FROM ledger ORDER BY id")]


def refused(made: DatabaseCloud, shop: Instance, at: float) -> str:
    wanted = {
        "name": "never", "flavorRef": made.api.flavor(None, 256), "volume": {"size": 1},
        "restorePoint": {"instance": shop.id, "time": iso(at)},
    }  # fmt: skip
    answer: httpx2.Response = made.api.cloud.client.post(
        f"{made.api.base}/instances", json={"instance": wanted}
    )
    assert answer.status_code == 400, answer.text
    return str(answer.json()["badRequest"]["message"])


def test_restores_to_many_moments_are_exact_also_of_a_database_at_rest(made: DatabaseCloud) -> None:
    shop = made.create("shop")
    shop.prepare(write=False)
    assert refused(made, shop, time.time() - 1)
    writer = Clocked(shop.kit, shop.address)
    first = made.cloud.until("a moment can be restored", lambda: moments(shop), lambda: _state(shop), 180)[0]
    backups = [one for one in made.api.all("backups") if one["instance_id"] == shop.id]
    assert [one["unstuck"]["made_by"] for one in backups] == ["base:first"]
    time.sleep(40)
    rests = time.time()
    writer.rest(idle=True)
    time.sleep(30)
    writer.rest(idle=False)
    goes_on = time.time()
    time.sleep(30)
    writer.end()
    made.cloud.until(
        "all of it can be restored", lambda: (found := moments(shop)) and found[1] >= goes_on + 25,
        lambda: _state(shop), 120,
    )  # fmt: skip
    last = (moments(shop) or (0.0, 0.0))[1]
    many = MOMENTS[made.kit.name]
    times = [first + (last - first) * number / (many - 1) for number in range(many)]
    times[many // 2] = rests + 25.0
    for number, at in enumerate(times):
        at = min(max(at, first), last)
        restored = restored_to(made, shop, at, f"at-{number}")
        rows = rows_of(restored)
        assert rows == list(range(1, len(rows) + 1))
        later = [row for row in rows if writer.sent[row] > at]
        assert not later, f"{len(later)} rows were sent after {iso(at)}"
        before = {row for row, when in writer.acknowledged.items() if when < at - BEAT}
        missing = before - set(rows)
        assert not missing, f"{len(missing)} rows were acknowledged {BEAT} s before {iso(at)}"
        if number == many // 2:
            assert set(rows) >= {row for row, when in writer.acknowledged.items() if when < rests}
        restored.delete()
    assert "lies ahead" in refused(made, shop, time.time() + 3600)
    assert "earliest" in refused(made, shop, first - 3600)
    shop.delete()


def test_a_restored_instance_has_an_archive_of_its_own(made: DatabaseCloud) -> None:
    shop = made.create("shop2")
    shop.prepare(write=False)
    writer = Clocked(shop.kit, shop.address)
    made.cloud.until("a moment can be restored", lambda: moments(shop), lambda: _state(shop), 180)
    time.sleep(10)
    writer.end()
    ended = time.time()
    at = (moments(shop) or (0.0, 0.0))[1]
    restored = restored_to(made, shop, at, "fork")
    prefix = f"archives/{shop.id}/"
    made.cloud.until(
        "the last of its own log is kept",
        lambda: (found := moments(shop)) and found[1] >= ended + 5,
        lambda: _state(shop),
        180,
    )
    before = {entry.key for entry in made.objects().list("archives") if entry.key.startswith(prefix)}
    with restored.login() as connection:
        for row in range(1_000_000, 1_001_000):
            restored.kit.insert(connection, row)
    made.cloud.until("it has moments of its own", lambda: moments(restored), lambda: _state(restored), 180)
    after = {entry.key for entry in made.objects().list("archives") if entry.key.startswith(prefix)}
    assert not after - before
    assert made.objects().list(f"archives/{restored.id}")
    restored.delete()
    shop.delete()
    made.cloud.until(
        "nothing of their archives is left", lambda: not made.objects().list("archives"),
        lambda: str([entry.key for entry in made.objects().list("archives")][:5]), 120,
    )  # fmt: skip


def test_a_moment_is_recovered_from_the_objects_and_the_recovery_file_alone(made: DatabaseCloud) -> None:
    if made.kit.name != "postgresql":
        pytest.skip("unstuck recover --at reads PostgreSQL's log only")
    shop = made.create("shop3")
    shop.prepare(write=False)
    writer = Clocked(shop.kit, shop.address)
    made.cloud.until("a moment can be restored", lambda: moments(shop), lambda: _state(shop), 180)
    time.sleep(25)
    at = float(int(time.time()))
    time.sleep(10)
    writer.end()
    made.cloud.until(
        "it can be restored",
        lambda: (found := moments(shop)) and found[1] >= at + 5,
        lambda: _state(shop),
        120,
    )
    with tempfile.TemporaryDirectory(prefix="unstuck-pt-") as root:
        Path(root).chmod(0o711)
        target = Path(root) / "data"
        state = made.cloud.state
        assert recover(
            from_=str(made.state_backups), key=state.recovery, restore=shop.id, at=iso(at), to=target
        ) == 0  # fmt: skip
        rows = _read_offline(target)
    assert rows == list(range(1, len(rows) + 1))
    later = [row for row in rows if writer.sent[row] > at]
    assert not later, f"{len(later)} rows were sent after {iso(at)}"
    missing = {row for row, when in writer.acknowledged.items() if when < at - BEAT} - set(rows)
    assert not missing, f"{len(missing)} rows were acknowledged {BEAT} s before {iso(at)}"
    shop.delete()


def _read_offline(data: Path) -> list[int]:
    """By a server of this machine, as docs/recovery.md says."""
    (programs,) = Path("/usr/lib/postgresql").glob("*/bin")
    as_postgres = ["runuser", "-u", "postgres", "--"]
    subprocess.run(["chown", "-R", "postgres", str(data)], check=True)
    server = [
        *as_postgres,
        str(programs / "pg_ctl"),
        "-w",
        "-t",
        "120",
        "-D",
        str(data),
        "-l",
        str(data / "log"),
    ]
    options = f"-p 5433 -c unix_socket_directories={data} -c listen_addresses="
    try:
        subprocess.run([*server, "-o", options, "start"], check=True)
        asked = [*as_postgres, "psql", "-h", str(data), "-p", "5433", "-At", "shop", "-c"]
        query, end = [*asked, "SELECT id FROM ledger ORDER BY id"], time.monotonic() + 180
        told = subprocess.run(query, check=False, capture_output=True, text=True)
        while told.returncode and time.monotonic() < end:  # it replays its log, and lets nobody in meanwhile
            time.sleep(0.5)
            told = subprocess.run(query, check=False, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        return [int(line) for line in told.stdout.split()]
    finally:
        print((data / "log").read_text()[-3000:])
        subprocess.run([*server, "stop", "-m", "immediate"], check=False)


def _state(shop: Instance) -> str:
    return json.dumps(shop.shown(), indent=1)
