"""Two control planes on one store: on SQLite one serves, on PostgreSQL they are equals."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.postgres import copy, drop, url
from tests.processes.many import Many, Process, create, free_port
from tests.tiny_image import fake_tiny
from unstuck.cli import tiny
from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.cli.errors import CliError
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import stopped
from unstuck.runtime.state import State, prepare
from unstuck.store.engine import Store, Tx
from unstuck.store.migrate import HEAD, schema_version
from unstuck.store.schema.compute import placements, servers
from unstuck.store.schema.identity import users


def test_a_second_one_on_sqlite_is_refused_with_the_first_ones_name_and_the_remedy(many: Many) -> None:
    first = many.control()
    second = many.start("control", "--port", str(free_port()))
    assert second.code(30.0) == 78
    assert f"process {first.pid} holds" in second.said
    assert "--take-over ends that one" in second.said
    assert many.answers(first, many.state.read().port)


def test_another_state_folder_with_the_same_file_is_refused_too(many: Many, tmp_path: Path) -> None:
    first = many.control()
    shutil.copytree(many.state.root, tmp_path / "other", ignore=shutil.ignore_patterns("run", "store.db*"))
    other = prepare(tmp_path / "other", port=free_port())
    second = many.start("control", "--store", many.state.store_url, state=other)
    assert second.code(30.0) == 78
    assert f"process {first.pid} holds {many.state.store}.lock" in second.said
    assert many.answers(first, many.state.read().port)


@pytest.mark.parametrize("first_is", ["frozen", pytest.param("running", marks=pytest.mark.slow)])
def test_a_take_over_on_sqlite_ends_the_first_and_loses_nothing(many: Many, first_is: str) -> None:
    first = many.control()
    many.agent()
    many.create()
    many.until_active("web")
    if first_is == "frozen":
        first.signal(signal.SIGSTOP)
    second = many.control("--take-over")
    assert first.code(10.0) == -signal.SIGKILL
    assert holder(many.state.control_lock) == second.identity
    assert many.statuses() == {"web": "ACTIVE"}
    many.create("next")
    many.until_active("web", "next")


def test_of_two_take_overs_in_the_same_instant_one_serves(many: Many) -> None:
    port = many.state.read().port
    both = [many.start("control", "--take-over", "--port", str(port)) for _ in range(2)]

    def one_left() -> Process | None:
        left = [one for one in both if one.lives]
        return left[0] if len(left) == 1 and many.answers(left[0], port) else None

    left = many.until("one serves", one_left)
    assert holder(many.state.control_lock) == left.identity


class Replica(State):
    """The state folder, as seen through one replica's port."""

    def __init__(self, root: Path, port: int) -> None:
        super().__init__(root)
        self.port = port

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Replicas:
    """Two replicas on one PostgreSQL, one agent that knows both."""

    def __init__(self, many: Many, url: str) -> None:
        self.many = many
        self.url = url
        self.sides = [Replica(many.state.root, free_port()) for _ in range(2)]
        self.processes: list[Process] = []

    def start(self, side: int, **environment: str) -> Process:
        words = ("control", "--port", str(self.sides[side].port))
        return self.many.start(*words, UNSTUCK_STORE=self.url, **environment)

    def both(self) -> None:
        """In the same instant, on a store that may be empty."""
        self.processes = [self.start(side) for side in range(2)]
        for side in range(2):
            self.up(side)

    def up(self, side: int) -> None:
        self.many.until("it answers", lambda: self.many.answers(self.processes[side], self.sides[side].port))

    def again(self, side: int) -> None:
        self.processes[side] = self.start(side)
        self.up(side)

    def agent(self) -> Process:
        return self.many.agent("--url", ",".join(side.url() for side in self.sides))

    @contextlib.contextmanager
    def admin(self, side: int) -> Iterator[Cloud]:
        with connect(self.sides[side]) as cloud:
            yield cloud

    def active(self, side: int, names: set[str]) -> bool:
        with contextlib.suppress(CliError), self.admin(side) as cloud:
            found = cloud.get("/compute/v2.1/servers/detail", headers=COMPUTE)["servers"]
            return {item["name"] for item in found if item["status"] == "ACTIVE"} == names
        return False

    def until_active(self, side: int, names: set[str]) -> None:
        self.many.until(f"{len(names)} servers are ACTIVE", lambda: self.active(side, names))


@pytest.fixture
def replicas(tmp_path: Path, postgres: str) -> Iterator[Replicas]:
    name = f"replicas{abs(hash(tmp_path)):x}"
    copy(postgres, name, "template0")
    many = Many(tmp_path / "state")
    yield Replicas(many, url(postgres, name))
    many.close()
    drop(postgres, name)


def counted(tx: Tx) -> tuple[int, int, int]:
    """Servers; places of them; the highest epoch of any grant."""
    count = sa.select(sa.func.count()).select_from
    highest = tx.execute(sa.select(sa.func.max(placements.c.epoch))).scalar_one()
    return tx.execute(count(servers)).scalar_one(), tx.execute(count(placements)).scalar_one(), highest


def test_two_replicas_on_an_empty_postgresql_set_it_up_once(replicas: Replicas) -> None:
    replicas.both()
    store = Store(replicas.url)
    try:
        assert schema_version(store) == HEAD
        names = store.read(lambda tx: sorted(tx.execute(sa.select(users.c.name)).scalars()))
        assert names == ["admin", "demo"]
    finally:
        store.close()
    for side in range(2):
        with replicas.admin(side) as cloud:
            assert cloud.get("/compute/v2.1/servers", headers=COMPUTE)["servers"] == []


@pytest.mark.slow
def test_replicas_killed_in_turn_while_servers_are_created_do_everything_once(
    replicas: Replicas, tmp_path: Path
) -> None:
    replicas.both()
    replicas.agent()
    with replicas.admin(0) as cloud:
        tiny.upload(cloud, fake_tiny(tmp_path / "tiny"))
    names: set[str] = set()
    ids: set[str] = set()

    def make(side: int, count: int) -> None:
        with replicas.admin(side) as cloud:
            for _ in range(count):
                name = f"s{len(names)}"
                ids.add(create(cloud, name))
                names.add(name)

    for down, up in ((0, 1), (1, 0)):
        make(down, 3)  # acknowledged by the one that is about to die
        replicas.processes[down].kill()
        make(up, 3)
        replicas.until_active(up, names)  # so either replica's loop alone does all the work
        replicas.again(down)
        make(down, 1)
    for side in range(2):
        replicas.until_active(side, names)
    store = Store(replicas.url)
    try:
        assert store.read(counted) == (len(ids), len(ids), 1)
    finally:
        store.close()
    for server in ids:
        console = replicas.many.state.host / "servers" / server / "console.log"
        assert console.read_text().count("start 1") == 1
    assert {path.name for path in (replicas.many.state.host / "servers").iterdir()} == ids


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["thaws", "is killed"])
def test_a_replica_frozen_within_a_transaction_holds_up_the_other_for_seconds_only(
    replicas: Replicas, tmp_path: Path, ends: str
) -> None:
    """It holds the row of the host, which every place and every delete needs."""
    replicas.both()
    replicas.agent()
    with replicas.admin(0) as cloud:
        tiny.upload(cloud, fake_tiny(tmp_path / "tiny"))
    replicas.processes[0].kill()
    replicas.processes[1].kill()
    replicas.processes[0] = replicas.start(0, UNSTUCK_STOP_AT="commit.place")
    replicas.up(0)
    with replicas.admin(0) as cloud:
        ids = {create(cloud, "first")}
    frozen = replicas.processes[0]
    replicas.many.until("it stands in its transaction", lambda: stopped(frozen.pid))
    replicas.again(1)
    with replicas.admin(1) as cloud:
        ids.add(create(cloud, "second"))
    replicas.until_active(1, {"first", "second"})
    if ends == "thaws":
        frozen.signal(signal.SIGCONT)
    else:
        frozen.kill()
        replicas.again(0)
    with replicas.admin(1) as cloud:
        ids.add(create(cloud, "third"))
    for side in range(2):
        replicas.until_active(side, {"first", "second", "third"})
    store = Store(replicas.url)
    try:
        assert store.read(counted) == (3, 3, 1)
    finally:
        store.close()
