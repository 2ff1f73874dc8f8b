"""The binary log of a real MariaDB server leaves the guest, and a restore applies it up to a point."""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.guest.guest import PASSWORD, Guest, anna
from tests.guest.host_double import wait_for
from tests.guest.kept import KeptLog
from unstuck.core.archive.data import Gap, Point
from unstuck.core.archive.positions import place_of
from unstuck.core.instance.native import verifier
from unstuck.core.instance.requests import CreateUsers, Ok
from unstuck.core.instance.want import Origin, WantedDatabase, WantedUser
from unstuck.guest.datastores.mariadb.config import server_id
from unstuck.guest.datastores.mariadb.server import PROGRAM

pytestmark = [
    pytest.mark.skipif(not Path(PROGRAM).exists(), reason="MariaDB is not installed here"),
    pytest.mark.timeout(400),
]
VERIFIER = verifier(PASSWORD)
SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop", verifier=VERIFIER),))
TIMELINE = server_id("generation-1")


def rows(connection: Any, statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


class Kept(KeptLog):
    """Its files end when they are full, or when the test says so."""

    timeout = 600

    def __init__(self, guest: Guest, **more: Any) -> None:
        super().__init__(guest, SHOP, **more)
        self.do("CREATE TABLE goods (n int PRIMARY KEY AUTO_INCREMENT, what varchar(40))")

    def do(self, statement: str) -> list[Any]:
        with self.guest.connect() as connection:
            return rows(connection, statement)

    def admin(self, statement: str) -> list[Any]:
        user = pwd.getpwuid(os.geteuid()).pw_name
        socket = str(self.guest.run / "pg/mariadb.sock")
        with pymysql.connect(unix_socket=socket, user=user, ssl_disabled=True, autocommit=True) as line:
            return rows(line, statement)

    def add(self, count: int = 1) -> None:
        self.do(f"INSERT INTO goods (what) SELECT md5(seq) FROM seq_1_to_{count}")

    def files(self) -> list[str]:
        return [str(row[0]) for row in self.admin("SHOW BINARY LOGS")]

    def switch(self) -> str:
        """End the file that is written to; the name of its first piece."""
        last = self.files()[-1]
        self.admin("FLUSH BINARY LOGS")
        return f"binlog.{int(last.rpartition('.')[2]):010d}.000000"

    def position(self) -> str:
        ((file, at, *_),) = self.admin("SHOW MASTER STATUS")
        return f"{int(file.rpartition('.')[2]):010d}:{int(at):012d}"

    def told(self) -> str:
        """What the agent says by now."""
        log = self.guest.view().log
        return "" if log is None else log.position

    def is_kept(self, name: str, seconds: float = 40.0) -> None:
        try:
            wait_for(lambda: name in self.guest.host.kept, seconds)
        except AssertionError:
            raise AssertionError(self.guest.log.read_text() + self.guest.server_log()) from None

    def restored(self, other: Guest, point: str, *nonces: str) -> Guest:
        other.host.source, *other.host.above = [self.guest.source(nonce) for nonce in reversed(nonces)]
        other.host.log, other.host.log_key = dict(self.guest.host.kept), self.identity
        origin = Origin(backup_id="backup-1", point=Point("a-1", TIMELINE, point, time.time()))
        version = f"{other.kind.version()}.19"  # as a cloud says it: with the server's own
        other.host.wants(other.want(generation="generation-2", origin=origin, version=version))
        other.start()
        return other


def count(guest: Guest) -> int:
    with guest.connect() as connection:
        return int(rows(connection, "SELECT count(*) FROM goods")[0][0])


@pytest.mark.slow
def test_a_log_is_kept_in_order_and_applied_up_to_a_point(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"))
    kept.add(10)
    base = kept.guest.back_up("n1")
    start = place_of("mariadb", base.stop)
    kept.add(5)
    user = WantedUser("bert", VERIFIER, ("shop",))
    assert isinstance(kept.guest.host.ask_database(CreateUsers((user,))), Ok)
    first = kept.switch()
    kept.add(7)
    kept.do("CREATE TABLE later (n int PRIMARY KEY, at timestamp DEFAULT CURRENT_TIMESTAMP) ENGINE=MyISAM")
    kept.do("INSERT INTO later (n) VALUES (1)")
    kept.do("CREATE EVENT hourly ON SCHEDULE EVERY 1 HOUR COMMENT 'DISABLE' DO DELETE FROM later")
    kept.do("CREATE EVENT never ON SCHEDULE EVERY 1 HOUR DISABLE DO DELETE FROM later")
    middle = kept.position()
    kept.do("INSERT INTO later (n) VALUES (2)")
    kept.add(9)
    last = kept.switch()
    kept.is_kept(last)
    assert sorted(kept.guest.host.kept)[-2:] == [first, last]
    piece, following = (kept.guest.host.kept[name][0] for name in (first, last))
    assert piece.start <= start < piece.stop == following.start < middle < following.stop
    assert piece.timeline == base.stop.timeline == TIMELINE
    inside = kept.restored(guests("mariadb"), middle, "n1")
    view = inside.ready()
    assert view.facts["system_identifier"] == "generation-2"
    assert count(inside) == 22
    with inside.connect(user="bert") as connection:
        assert rows(connection, "SELECT n FROM later") == [(1,)]
        rows(connection, "INSERT INTO goods (what) VALUES ('goes on')")
        events = rows(connection, "SELECT EVENT_NAME, STATUS, DEFINER FROM information_schema.EVENTS")
        assert sorted(events) == [("hourly", "ENABLED", "anna@%"), ("never", "DISABLED", "anna@%")]
    assert not list((inside.volume / "database").glob("**/*relay*"))


@pytest.mark.slow
def test_a_database_at_rest_ends_its_file_once_and_says_no_more(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"), timeout=2)
    kept.add()
    wait_for(lambda: kept.told().endswith(":000000000000"), 40)
    rests, files = kept.told(), kept.files()
    time.sleep(15)
    assert (kept.told(), kept.files()[-1:]) == (rests, files[-1:])
    # A backup made now ends where the log says that it is, though the file has begun.
    assert place_of("mariadb", kept.guest.back_up("n1").stop) == rests
    kept.add()
    wait_for(lambda: kept.told() > rests, 20)
    again = kept.restored(guests("mariadb"), rests, "n1")
    again.ready()
    assert count(again) == 1


@pytest.mark.slow
def test_a_log_of_large_transactions_is_kept_in_pieces_and_applied_from_their_middle(
    guests: Callable[..., Guest],
) -> None:
    kept = Kept(guests("mariadb"))
    kept.do("CREATE TABLE bulk (n int PRIMARY KEY, x varbinary(1024))")
    kept.do("INSERT INTO bulk SELECT seq, RANDOM_BYTES(1024) FROM seq_1_to_40000")
    kept.guest.back_up("n1")
    big = "INSERT INTO bulk SELECT seq + {0}, RANDOM_BYTES(1024) FROM seq_1_to_40000"
    with kept.guest.connect() as connection:
        rows(connection, "BEGIN")
        rows(connection, big.format(100000))
        rows(connection, "COMMIT")
    point = kept.position()
    kept.add(3)
    kept.is_kept(kept.switch())
    wait_for(lambda: len(kept.files()) == 1, 90)
    names = sorted(kept.guest.host.kept)
    assert [name for name in names if name.endswith(".000002")]
    for one, next_one in itertools.pairwise(names):
        assert kept.guest.host.kept[one][0].stop == kept.guest.host.kept[next_one][0].start
    sums = kept.do("SELECT count(*), sum(crc32(x)) FROM bulk")
    other = kept.restored(guests("mariadb"), point, "n1")
    other.ready(180)
    with other.connect() as connection:
        assert rows(connection, "SELECT count(*), sum(crc32(x)) FROM bulk") == sums
    assert count(other) == 0
    # Pieces that lie before the base's end are granted to nobody.
    need = place_of("mariadb", kept.guest.host.finished["n1"].stop)
    few = {name: one for name, one in kept.guest.host.kept.items() if one[0].stop > need}
    assert len(few) < len(kept.guest.host.kept)
    kept.guest.host.kept = few
    least = kept.restored(guests("mariadb"), point, "n1")
    least.ready(180)
    with least.connect() as connection:
        assert rows(connection, "SELECT count(*), sum(crc32(x)) FROM bulk") == sums


@pytest.mark.slow
def test_a_killed_server_leaves_a_log_that_is_applied_to_its_end(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"))
    kept.guest.back_up("n1")
    for _ in range(3):
        kept.add(10)
        first = kept.guest.server_pid()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda gone=first: kept.guest.server_pid() not in (0, gone), 30)
        kept.guest.host.view = None
        kept.guest.ready()
    kept.add(1)
    end = kept.position()
    kept.is_kept(kept.switch())
    # At the very end nothing follows: the whole of it is what was there.
    other = kept.restored(guests("mariadb"), end, "n1")
    other.ready()
    assert count(other) == 31
    assert other.back_up("m1").stop.timeline == server_id("generation-2")


@pytest.mark.slow
def test_a_log_that_ends_before_the_point_is_no_restore(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"))
    kept.guest.back_up("n1")
    kept.add(5)
    kept.is_kept(kept.switch())
    kept.add(5)
    beyond = kept.position()
    other = kept.restored(guests("mariadb"), beyond, "n1")
    view = other.trouble("backup-damaged")
    assert view.trouble is not None
    assert "ends before" in view.trouble.reason
    assert not (other.volume / "database").exists()


@pytest.mark.slow
def test_an_agent_killed_in_the_middle_of_a_piece_delays_it_and_no_more(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"))
    kept.guest.kill()
    kept.guest.start("guest.keep-chunk")
    kept.guest.ready()
    kept.add(3)
    name = kept.switch()
    kept.guest.stopped()
    kept.guest.kill()
    assert name not in kept.guest.host.kept
    kept.guest.start()
    kept.is_kept(name)


@pytest.mark.slow
def test_a_piece_whose_answer_was_lost_is_known_and_kept_once(guests: Callable[..., Guest]) -> None:
    kept = Kept(guests("mariadb"))
    kept.add()
    name = f"binlog.{int(kept.files()[-1].rpartition('.')[2]):010d}.000000"
    kept.guest.host.lose_answer_of = name
    kept.switch()
    kept.is_kept(name)
    wait_for(lambda: kept.guest.host.keeps.count(name) >= 2, 30)
    wait_for(lambda: len(kept.files()) == 1, 90)


@pytest.mark.slow
def test_beyond_its_budget_a_gap_is_written_down_and_the_database_lives_on(
    guests: Callable[..., Guest],
) -> None:
    kept = Kept(guests("mariadb"), budget_mb=8)
    kept.guest.host.full = "the store is away"
    kept.do("CREATE TABLE bulk (x longblob)")
    for _ in range(6):
        kept.do("INSERT INTO bulk VALUES (RANDOM_BYTES(1024))")
        kept.do("INSERT INTO bulk SELECT RANDOM_BYTES(1024) FROM seq_1_to_2000")
        kept.switch()
    wait_for(lambda: (log := kept.guest.view().log) is not None and log.gap is not None, 60)
    log = kept.guest.view().log
    assert log is not None
    assert isinstance(log.gap, Gap)
    assert log.gap.archive_id == "a-1"
    # What is let go is let go by the server as well, and the next archive begins with what comes then.
    wait_for(lambda: len(kept.files()) == 1, 90)
    kept.guest.host.full = None
    kept.wants(archive=kept.archive("a-2"))
    kept.add()
    kept.is_kept(kept.switch())
    assert kept.guest.view().log is not None
    wait_for(lambda: (log := kept.guest.view().log) is not None and log.gap is None, 20)
