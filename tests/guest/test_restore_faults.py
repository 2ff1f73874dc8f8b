"""A restore that is cut off begins anew; one whose backup is damaged ends, never with an empty database."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.guest.guest import Guest, anna, folder, processes_with
from tests.guest.host_double import wait_for
from unstuck.blobs.age import new_identity, recipient_of
from unstuck.blobs.chunks import chunk_key, make_chunk, open_chunk
from unstuck.blobs.objects import FolderObjects
from unstuck.core.backup.content import Content
from unstuck.core.instance.view import GuestStep
from unstuck.core.instance.want import Origin, WantedDatabase
from unstuck.core.server.data import Thing

pytestmark = pytest.mark.xdist_group("guest-restores")  # one process has the server of all of them

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
Source = tuple[str, Content, str]


class Origins:
    """A guest with backups, and how to make others."""

    def __init__(self, root: Path, objects: FolderObjects) -> None:
        self.root = root
        self.objects = objects
        self.guest = self.make("origin")
        self.made: list[Guest] = []

    def make(self, name: str, volume: Path | None = None) -> Guest:
        (self.root / name).mkdir()
        return Guest(self.root / name, self.objects, volume)


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origins]:
    with folder() as root:
        made = Origins(root, FolderObjects(Path(tmp_path_factory.mktemp("objects"))))
        guest = made.guest
        guest.host.wants(guest.want(origin=SHOP))
        guest.start()
        guest.ready()
        with guest.connect() as connection:
            connection.execute(
                "CREATE TABLE t AS SELECT n, md5(n::text) AS x FROM generate_series(1, 300000) n"
            )
        guest.back_up("n1")
        guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
        yield made
        guest.end()


@pytest.fixture
def source(origins: Origins) -> Source:
    return origins.guest.source("n1")


@pytest.fixture
def target(origins: Origins) -> Iterator[Guest]:
    """An instance that is to be made from a backup."""
    name = f"t{len(list(origins.root.iterdir()))}"
    made = origins.make(name)
    made.host.source = origins.guest.source("n1")
    made.host.wants(made.want(generation=f"generation-{name}", origin=Origin(backup_id="backup-1")))
    yield made
    made.end()
    shutil.rmtree(made.folder, ignore_errors=True)


def is_whole(guest: Guest) -> None:
    with guest.connect() as connection:
        row = connection.execute("SELECT count(*), bool_and(x = md5(n::text)) FROM t").fetchone()
    assert row == (300000, True)
    assert {path.name for path in guest.volume.iterdir()} == {"database", "log"}


POINTS = ["ask-restore", "receive", "receive+", "fetch+", "unpack", "unpack+#3", "unpacked", "unpacked+",
          "prove", "prove+", "publish", "publish+"]  # fmt: skip


@pytest.mark.slow
def test_agents_killed_at_each_point_are_followed_by_one_that_begins_anew(target: Guest) -> None:
    for point in POINTS:
        target.host.fetched.clear()
        target.start(f"guest.{point}")
        target.stopped(120)
        if point == "publish+":
            assert (target.volume / "database").exists()
        else:
            assert target.host.view is None or target.view().data is not Thing.PRESENT
            assert not (target.volume / "database").exists()
        target.kill()
        wait_for(lambda: not processes_with(target.volume / "making/pg"), 10)
        if point.startswith(("unpack", "prove")):
            assert target.host.fetched[0] == 0
    target.start()
    target.ready()
    is_whole(target)


def damage(
    objects: FolderObjects, source: Source, index: int, change: Callable[[bytes], bytes]
) -> Callable[[], None]:
    """Change an object behind everybody's back; how to undo it."""
    path = objects.root / chunk_key(source[0], index)
    before = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(change(before))
    return lambda: path.write_bytes(before)


def fails_closed(target: Guest, code: str, words: str) -> None:
    view = target.trouble(code, 90)
    assert view.trouble is not None
    assert view.trouble.final
    assert words in view.trouble.reason
    assert view.data is Thing.ABSENT
    assert view.step is GuestStep.WAITING
    assert not (target.volume / "database").exists()
    time.sleep(1.0)  # what was asked for ahead of the piece that is wrong still comes
    fetched = len(target.host.fetched)
    # And that stays so: nothing is tried again, nothing is made instead.
    with pytest.raises(AssertionError):
        wait_for(lambda: target.view().trouble is None or len(target.host.fetched) > fetched, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:], "piece 3 is not the object"),
        (lambda data: data[:-1], "piece 3 is not the object"),
        (lambda data: b"", "piece 3 is not the object"),
    ],
    ids=["one bit", "truncated", "empty"],
)
def test_a_damaged_piece_ends_a_restore_and_is_named(
    target: Guest, origins: Origins, source: Source, change: Callable[[bytes], bytes], words: str
) -> None:
    undo = damage(origins.objects, source, 3, change)
    try:
        target.start()
        fails_closed(target, "backup-damaged", words)
    finally:
        undo()


def test_a_missing_piece_is_named(target: Guest, origins: Origins, source: Source) -> None:
    path = origins.objects.root / chunk_key(source[0], 2)
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        target.start()
        fails_closed(target, "backup-refused", "piece 2")
    finally:
        aside.rename(path)


@pytest.mark.slow
def test_swapped_pieces_are_found(target: Guest, origins: Origins, source: Source) -> None:
    other = (origins.objects.root / chunk_key(source[0], 1)).read_bytes()
    undo = damage(origins.objects, source, 4, lambda _: other)
    try:
        target.start()
        fails_closed(target, "backup-damaged", "piece 4")
    finally:
        undo()


def test_a_wrong_key_opens_nothing(target: Guest, source: Source) -> None:
    target.host.source = (source[0], source[1], new_identity())
    target.start()
    fails_closed(target, "backup-damaged", "the key does not open it")


def lying(
    objects: FolderObjects, source: Source, prefix: str, change: Callable[[list[bytes]], list[bytes]]
) -> Source:
    """A backup whose pieces are sealed well, and hold something else than a base backup."""
    _, content, key = source
    plain = [
        open_chunk(chunk, (objects.root / chunk_key(source[0], chunk.index)).read_bytes(), key)
        for chunk in content.chunks
    ]
    chunks = []
    for index, data in enumerate(change(plain)):
        chunk, sealed = make_chunk(index, data, recipient_of(key))
        objects.put_new(chunk_key(prefix, index), sealed)
        chunks.append(chunk)
    size = sum(chunk.length for chunk in chunks)
    return prefix, msgspec.structs.replace(content, chunks=tuple(chunks), size=size), key


def flipped(pieces: list[bytes]) -> list[bytes]:
    """A bit of a table's file."""
    data = bytearray(pieces[2])
    data[1 << 20] ^= 1
    return [*pieces[:2], bytes(data), *pieces[3:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("short", lambda pieces: pieces[:-1], "unexpected end of data"),
        ("flipped", flipped, "is not its manifest's"),
        ("noise", lambda pieces: [b"nothing of a tar" * 1000], "damaged"),
    ],
)
def test_pieces_that_fit_and_hold_no_backup_are_found(
    target: Guest, origins: Origins, source: Source, name: str,
    change: Callable[[list[bytes]], list[bytes]], words: str,
) -> None:  # fmt: skip
    target.host.source = lying(origins.objects, source, f"lies/{name}", change)
    target.start()
    fails_closed(target, "backup-damaged", words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system_identifier": "1234567890123456789"}, "it is of system"),
        ({"stop": {"timeline": 1, "lsn": "FF/0"}}, "its log ends before"),
    ],
)
def test_data_of_another_system_or_position_is_not_taken(
    target: Guest, source: Source, change: dict[str, object], words: str
) -> None:
    content = msgspec.convert({**msgspec.to_builtins(source[1]), **change}, Content)
    target.host.source = (source[0], content, source[2])
    target.start()
    fails_closed(target, "backup-damaged", words)


@pytest.mark.slow
def test_another_datastores_backup_is_refused(target: Guest, source: Source) -> None:
    other = msgspec.structs.replace(source[1].datastore, version="9")
    target.host.source = (source[0], msgspec.structs.replace(source[1], datastore=other), source[2])
    target.start()
    fails_closed(target, "backup-unfit", "postgresql 9")


@pytest.mark.slow
def test_a_backup_that_is_gone_is_told(target: Guest) -> None:
    target.host.source = None
    target.start()
    fails_closed(target, "backup-refused", "there is no such backup")


@pytest.mark.slow
def test_a_store_that_is_away_delays_a_restore_and_is_told(target: Guest) -> None:
    target.host.full = "the bucket does not answer"
    target.start()
    view = target.trouble("backup-unread")
    assert view.trouble is not None
    assert "does not answer" in view.trouble.reason
    target.host.full = None
    target.ready()
    is_whole(target)


@pytest.mark.slow
def test_the_trial_server_ends_with_its_agent(target: Guest) -> None:
    target.start()
    trial = wait_for(lambda: (target.volume / "making/pg/postmaster.pid").exists(), 90)
    assert trial
    target.kill()
    wait_for(lambda: not processes_with(target.volume / "making/pg"), 10)


@pytest.fixture
def small(origins: Origins) -> Iterator[Callable[[int], Guest]]:
    """Makes guests with a volume of so many MiB, a file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a file system")
    made: list[Guest] = []

    def make(size_mb: int) -> Guest:
        name = f"s{len(list(origins.root.iterdir()))}"
        place = origins.root / f"{name}-volume"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", place], check=True)
        made.append(origins.make(name, place))
        return made[-1]

    yield make
    for guest in made:
        guest.end()
        subprocess.run(["umount", "-l", guest.volume], check=True)


@pytest.mark.slow
def test_a_volume_that_is_too_small_is_told_before_anything_is_fetched(
    small: Callable[[int], Guest], source: Source
) -> None:
    guest = small(220)
    guest.host.source = source
    (guest.volume / "log").mkdir()
    (guest.volume / "log" / "ballast").write_bytes(bytes(120 << 20))
    guest.host.wants(guest.want(origin=Origin(backup_id="backup-1")))
    guest.start("", "--mounted")
    guest.trouble("volume-full")
    assert guest.host.fetched == []
    (guest.volume / "log" / "ballast").unlink()
    guest.ready()


@pytest.mark.slow
def test_a_volume_that_fills_up_in_a_restore_is_told_and_made_room_for(
    small: Callable[[int], Guest], source: Source
) -> None:
    guest = small(220)
    guest.host.source = source
    guest.host.wants(guest.want(origin=Origin(backup_id="backup-1")))
    guest.start("guest.unpack+#3", "--mounted")
    guest.stopped()
    (guest.volume / "log" / "ballast").write_bytes(bytes(195 << 20))
    assert guest.agent is not None
    guest.agent.send_signal(signal.SIGCONT)
    view = guest.trouble("volume-full")
    assert view.data is Thing.ABSENT
    (guest.volume / "log" / "ballast").unlink()
    guest.ready()
    is_whole(guest)


@pytest.mark.slow
def test_a_full_volume_stops_a_server_and_room_brings_it_back(small: Callable[[int], Guest]) -> None:
    guest = small(120)
    guest.host.wants(guest.want(origin=SHOP, parameters={"max_wal_size": "64MB"}))
    guest.start("", "--mounted")
    guest.ready()
    with guest.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    with guest.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute(
            "CREATE TABLE big AS SELECT repeat(md5(n::text), 60) FROM generate_series(1, 900000) n"
        )
    guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
    wait_for(lambda: has_kept(guest), 60)


def has_kept(guest: Guest) -> bool:
    try:
        with guest.connect() as connection:
            return connection.execute("SELECT n FROM kept").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_a_restore_has_every_row_acknowledged_before_the_backup_and_whole_transactions_only(
    origins: Origins, target: Guest
) -> None:
    """A writer goes on all the time; each transaction writes a pair."""
    guest = origins.guest
    with guest.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS pairs (n bigint, side int)")
    acknowledged = [0]
    over = threading.Event()

    def write() -> None:
        with guest.connect() as connection:
            while not over.is_set():
                number = acknowledged[0] + 1
                with connection.transaction():
                    connection.execute("INSERT INTO pairs VALUES (%s, 1)", [number])
                    connection.execute("INSERT INTO pairs VALUES (%s, 2)", [number])
                acknowledged[0] = number

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: acknowledged[0] > 50)
        before = acknowledged[0]
        guest.back_up("writing")
        after = acknowledged[0]
    finally:
        over.set()
        writer.join(30)
    target.host.source = guest.source("writing")
    target.start()
    target.ready()
    with target.connect() as connection:
        row = connection.execute("SELECT count(*), count(DISTINCT n), max(n) FROM pairs").fetchone()
        rows = connection.execute("SELECT n FROM pairs GROUP BY n HAVING count(*) <> 2").fetchall()
    assert row is not None
    rows_in_all, distinct, last = row
    assert rows == []
    assert rows_in_all == 2 * distinct
    assert distinct == last
    assert before <= last <= after + 1
