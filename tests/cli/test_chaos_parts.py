"""What draws the account of a chaos run: it must see a lost row, a changed one, and one that never was."""

from __future__ import annotations

import itertools
import math
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unstuck.cli.chaos.checks import Checks, _compare
from unstuck.cli.chaos.clients import CLIENTS, PostgreSQL, Session
from unstuck.cli.chaos.faults import Done, Skipped, _anew, fill, kill_guest
from unstuck.cli.chaos.lanes import GUESTS, Book, Lane, Record
from unstuck.cli.chaos.load import Writer
from unstuck.cli.chaos.report import Result, page
from unstuck.cli.demo_world import Failed
from unstuck.core.server.host import START_BUDGET
from unstuck.host.dbkinds import KINDS


class Rows:
    """A database that is a list. It ``loses`` some rows, and ``breaks`` before it acknowledges others."""

    def __init__(self) -> None:
        self.found: list[tuple[int, bool]] = []
        self.loses: set[int] = set()
        self.breaks: set[int] = set()

    def connect(self, address: str, seconds: int = 5) -> Session:
        return self

    def create(self) -> None: ...

    def insert(self, row: int) -> None:
        if row not in self.loses:
            self.found.append((row, True))
        if row in self.breaks:
            raise OSError("the connection broke")

    def rows(self) -> list[tuple[int, bool]]:
        return list(self.found)

    def close(self) -> None: ...

    def is_server(self, words: Sequence[bytes]) -> bool:
        return False

    def is_helper(self, name: str) -> bool:
        return False


class Base:
    def __init__(self, client: Rows) -> None:
        self.client = client
        self.name = "shop"
        self.address = "10.0.0.1"


def written(client: Rows, count: int) -> Writer:
    writer = Writer(Base(client))  # type: ignore[arg-type]
    writer.start()
    over = time.monotonic() + 20.0
    while writer.sent < count:
        assert time.monotonic() < over
        time.sleep(0.01)
    writer.end()
    return writer


def compared(writer: Writer, **more: Any) -> str:
    return _compare(writer, writer.database, more.pop("acknowledged", writer.acknowledged), **more)


def test_rows_that_were_acknowledged_are_there() -> None:
    writer = written(Rows(), 20)
    assert compared(writer) == f"{len(writer.acknowledged)} acknowledged rows"


def test_a_row_that_was_acknowledged_and_is_gone_is_seen() -> None:
    client = Rows()
    client.loses = {7}
    with pytest.raises(Failed, match=r"1 are lost \(\[7\]\)"):
        compared(written(client, 20))


def test_a_row_whose_answer_was_lost_may_be_there_or_not() -> None:
    client = Rows()
    client.breaks, client.loses = {5, 9}, {9}
    writer = written(client, 20)
    assert {5, 9} & set(writer.acknowledged) == set()
    compared(writer)


def test_a_changed_row_and_one_that_was_never_sent_are_seen() -> None:
    client = Rows()
    writer = written(client, 10)
    client.found[3] = (client.found[3][0], False)
    client.found.append((writer.sent + 1000, True))
    with pytest.raises(Failed, match="1 are changed, 1 were never sent"):
        compared(writer)


def test_a_backup_may_end_early_and_has_no_gap() -> None:
    client = Rows()
    writer = written(client, 20)
    client.found = [row for row in client.found if row[0] <= 15]
    compared(writer, acknowledged=[1, 2, 3], whole=False)
    client.found = [row for row in client.found if row[0] != 10]
    with pytest.raises(Failed, match=r"lost \(\[10\]\)"):
        compared(writer, acknowledged=[1, 2, 3], whole=False)


def test_a_claim_that_does_not_hold_is_written_down_and_the_next_is_tried() -> None:
    said: list[str] = []
    checks = Checks(None, said.append)  # type: ignore[arg-type]

    def fails() -> str:
        raise Failed("a row is lost")

    checks.claim("all rows", fails)
    checks.claim("nothing left", lambda: "0 files")
    assert checks.violations == ["all rows: a row is lost"]
    assert checks.held == ["nothing left (0 files)"]
    assert [line.partition(":")[0] for line in said] == ["VIOLATED", "ok"]


def lane(book: Book, choices: list[Any], over: threading.Event) -> Lane:
    return Lane("lane", book, random.Random(1), choices, (0.0, 0.01), over, lambda _: None)


def test_a_fault_that_does_not_settle_is_recorded_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Lane.__module__], "SETTLED", 0.3)
    book, over = Book(time.monotonic()), threading.Event()

    def never() -> Done:
        over.set()
        return Done("kill -9 of it", lambda: False, "it comes back", 1)

    made = lane(book, [never], over)
    made.start()
    made.finish()
    [record] = book.records
    assert (record.settled, record.kills, book.kills) == (None, 1, 1)


def test_a_lane_that_breaks_says_so() -> None:
    book, over = Book(time.monotonic()), threading.Event()

    def skips() -> Done:
        raise Skipped("nothing there")

    def breaks() -> Done:
        raise KeyError("a bug")

    made = lane(book, [skips, breaks], over)
    made.start()
    made.finish()
    assert "KeyError" in made.broken
    assert book.records == []


def test_the_filling_of_a_disk_is_taken_away(small_disk: Any) -> None:
    place: Path = small_disk(4 << 20)
    (place / "precious").write_text("kept")
    full: list[bool] = []

    def write() -> None:
        time.sleep(0.3)
        try:
            (place / "more").write_bytes(bytes(1 << 16))
            full.append(False)
        except OSError:
            full.append(True)

    writing = threading.Thread(target=write)
    writing.start()
    done = fill(place, "the disk", lambda: True, "it answers", 1.0)
    writing.join()
    assert full == [True]
    assert done.what.startswith("the disk full for")
    assert {path.name for path in place.iterdir()} <= {"precious", "more"}


def test_every_datastore_that_there_is_can_be_driven() -> None:
    assert CLIENTS.keys() == KINDS.keys()


def test_which_process_is_the_server() -> None:
    client = PostgreSQL()
    assert client.is_server([b"/usr/lib/postgresql/15/bin/postgres", b"-D", b"/var/lib/data"])
    assert not client.is_server([b"postgres: checkpointer "])
    assert not client.is_server([])
    assert CLIENTS["mariadb"].is_server([b"/usr/sbin/mariadbd", b"--defaults-file=x"])
    assert not CLIENTS["mariadb"].is_server([b"mariadb-backup"])


class Guests:
    """Two servers; what runs of them is a child of ours."""

    def __init__(self) -> None:
        self.servers = {"one": "id-1", "two": "id-2"}
        self.pids: dict[str, list[int]] = {"id-1": [], "id-2": []}
        self.shown = "ACTIVE"

    def guest_pids(self, server_id: str) -> list[int]:
        return self.pids[server_id]

    def status(self, server_id: str) -> str:
        return self.shown


def test_guests_are_killed_in_turn_and_are_back_when_another_process_runs() -> None:
    world, turn = Guests(), itertools.cycle(["one", "two"])
    with pytest.raises(Skipped, match="off"):
        kill_guest(world, turn)  # type: ignore[arg-type]
    with subprocess.Popen(["sleep", "60"]) as child:
        world.pids["id-2"] = [child.pid]
        done = kill_guest(world, turn)  # type: ignore[arg-type]
        assert child.wait(10.0) == -signal.SIGKILL
    assert (done.what, done.kills) == (f"kill -9 of the guest of two, process {child.pid}", 1)
    assert not done.over()
    world.pids["id-2"] = []
    assert not done.over()
    world.pids["id-2"] = [child.pid + 1]
    assert done.over()
    world.pids["id-2"], world.shown = [], "SHUTOFF"
    assert done.over()


def test_no_guest_is_killed_as_often_as_may_make_its_host_give_it_up() -> None:
    in_ten_minutes = math.ceil(600.0 / (2 * GUESTS[0]))
    assert 1 + in_ten_minutes < START_BUDGET, "the first start counts as well"


def test_the_page_holds_all_and_obeys_nothing() -> None:
    result = Result(
        ok=False, seed=7, minutes=1.0, seconds=90.0, kills=3, faults=2, skipped=1, acknowledged={"shop": 12},
        backups={"COMPLETED": 1}, worst_settled=4.2, violations=["<script>alert(1)</script>"], held=["rows"],
        not_driven=[],
    )  # fmt: skip
    records = [
        Record(1.0, "host agent", "kill -9 of <b>it</b>", "the next one runs", 4.2, 1),
        Record(2.0, "host agent", "SIGSTOP", "it goes on", None),
    ]
    text = page(result, records)
    assert "<script>" not in text
    assert "kill -9 of &lt;b&gt;it&lt;/b&gt;" in text
    assert '<span class="bad">not</span>' in text
    assert "1 claims do not hold" in text
    for word in ("http://", "https://", "src=", "@import"):
        assert word not in text
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result


def test_a_killed_server_is_back_only_when_another_one_acknowledges_rows() -> None:
    client = Rows()
    writer = written(client, 5)
    servers: list[int | None] = [7]
    writer.database.server = lambda: servers[-1]  # type: ignore[method-assign]
    over = _anew(writer, 7)
    writer.acknowledged += [100, 101, 102]  # by the last sessions of the dead one
    assert not over()
    servers.append(None)
    assert not over()
    servers.append(8)
    assert not over()
    writer.acknowledged += [103, 104]
    assert over()
