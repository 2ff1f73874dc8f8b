"""The log of a real server leaves the guest, and a restore reads it up to a point."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from tests.guest.guest import Guest, anna
from tests.guest.host_double import wait_for
from tests.guest.kept import KeptLog
from unstuck.core.archive.data import Gap, Point
from unstuck.core.instance.want import Origin, WantedDatabase

pytestmark = pytest.mark.timeout(400)

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


class Kept(KeptLog):
    def __init__(self, guest: Guest) -> None:
        super().__init__(guest, SHOP)
        with guest.connect() as connection:
            connection.execute("CREATE TABLE goods (n serial primary key, what text)")

    def admin(self, statement: str) -> Any:
        place = self.guest.run / "pg"
        with psycopg.connect(
            host=str(place), port=self.guest.port, user="postgres", dbname="shop", autocommit=True
        ) as connection:
            return connection.execute(statement).fetchone()

    def add(self, count: int = 1) -> None:
        with self.guest.connect() as connection:
            connection.execute(
                "INSERT INTO goods (what) SELECT md5(n::text) FROM generate_series(1, %s::int) n", [count]
            )

    def switch(self) -> str:
        """End the segment; its name."""
        (name,) = self.admin("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        self.admin("SELECT pg_switch_wal()")
        return str(name)

    def position(self) -> str:
        (lsn,) = self.admin("SELECT pg_current_wal_insert_lsn()::text")
        high, _, low = lsn.partition("/")
        return f"{(int(high, 16) << 32) + int(low, 16):016X}"

    def is_kept(self, name: str, seconds: float = 30.0) -> None:
        try:
            wait_for(lambda: name in self.guest.host.kept, seconds)
        except AssertionError:
            raise AssertionError(self.guest.log.read_text() + self.guest.server_log()) from None

    def restored(self, other: Guest, point: str, *nonces: str) -> Guest:
        other.host.source, *other.host.above = [self.guest.source(nonce) for nonce in reversed(nonces)]
        other.host.log, other.host.log_key = dict(self.guest.host.kept), self.identity
        origin = Origin(backup_id="backup-1", point=Point("a-1", 1, point, time.time()))
        other.host.wants(other.want(generation="generation-2", origin=origin))
        other.start()
        return other


def count(guest: Guest) -> int:
    with guest.connect() as connection:
        (found,) = connection.execute("SELECT count(*) FROM goods").fetchone() or (0,)
    return int(found)


def test_a_log_is_kept_in_order_and_read_back_up_to_a_point(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.add(10)
    kept.guest.back_up("n1")
    kept.add(5)
    first = kept.switch()
    kept.add(7)
    middle = kept.position()
    kept.add(9)
    last = kept.switch()
    end = kept.position()
    kept.is_kept(last)
    assert first in kept.guest.host.kept
    assert kept.admin("SHOW max_wal_size") == ("128MB",)
    view = kept.guest.view()
    assert view.log is not None
    assert (view.log.timeline, view.log.gap) == (1, None)
    wait_for(lambda: (view := kept.guest.view()).log is not None and view.log.position >= end, 60)
    inside = kept.restored(guests(), middle, "n1")
    inside.ready()
    assert count(inside) == 22
    # At the end of all that is there no record follows: the whole of it is what was there.
    whole = kept.restored(guests(), end, "n1")
    whole.ready()
    assert count(whole) == 31
    with whole.connect() as connection:
        connection.execute("INSERT INTO goods (what) VALUES ('goes on')")
    assert whole.back_up("m1").stop.timeline == 2


@pytest.mark.slow
def test_a_log_that_ends_before_the_point_is_no_restore(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.guest.back_up("n1")
    kept.add(5)
    kept.is_kept(kept.switch())
    kept.add(5)
    beyond = kept.position()
    other = kept.restored(guests(), beyond, "n1")
    view = other.trouble("backup-damaged")
    assert view.trouble is not None
    assert "ends before" in view.trouble.reason


@pytest.mark.slow
def test_a_piece_whose_answer_was_lost_is_known_and_kept_once(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.add()
    (name,) = kept.admin("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    kept.guest.host.lose_answer_of = name
    kept.switch()
    kept.is_kept(name)
    wait_for(lambda: kept.guest.host.keeps.count(name) >= 2, 30)
    wait_for(lambda: kept.admin("SELECT last_archived_wal FROM pg_stat_archiver") == (name,), 30)
    assert kept.admin("SELECT failed_count FROM pg_stat_archiver") == (0,)


@pytest.mark.slow
def test_an_agent_killed_in_the_middle_of_a_piece_delays_it_and_no_more(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.add(1000)
    kept.guest.host.slow = 3.0
    name = kept.switch()
    wait_for(lambda: name in kept.guest.host.trying, 30)
    kept.guest.kill()
    kept.guest.host.slow = 0.0
    assert name not in kept.guest.host.kept
    time.sleep(3.0)
    kept.add(10)  # the database does not notice
    kept.guest.start()
    began = time.monotonic()
    kept.is_kept(name)
    assert time.monotonic() - began < 20.0  # no minute of PostgreSQL's own
    assert kept.admin("SELECT failed_count FROM pg_stat_archiver") == (0,)


@pytest.mark.slow
def test_another_history_under_the_same_name_is_not_taken_for_kept(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.add()
    (name,) = kept.admin("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    piece = msgspec.structs.replace(
        next(iter(kept.guest.host.kept.values()), (None, ()))[0], name=name, digest="0" * 64
    ) if kept.guest.host.kept else None  # fmt: skip
    from unstuck.core.archive.data import Piece

    kept.guest.host.kept[name] = (
        piece or Piece(name=name, timeline=1, start="0", stop="1", size=1, digest="0" * 64), ()
    )  # fmt: skip
    kept.switch()
    wait_for(lambda: kept.guest.host.keeps.count(name) >= 2, 40)
    with contextlib.suppress(AssertionError):
        wait_for(lambda: kept.admin("SELECT last_archived_wal FROM pg_stat_archiver") == (name,), 3)
        raise RuntimeError("it was taken for kept")
    # The next archive generation takes it.
    kept.guest.host.kept.clear()
    kept.wants(archive=kept.archive("a-2"))
    kept.is_kept(name)


@pytest.mark.slow
def test_beyond_its_budget_a_part_of_the_log_is_let_go_and_that_is_written_down_first(
    guests: Callable[[], Guest],
) -> None:
    kept = Kept(guests())
    kept.wants(archive=kept.archive("a-1", budget_mb=48))
    kept.guest.host.full = "the store of objects is away"
    names = []
    for _ in range(5):
        kept.add(100)
        names.append(kept.switch())
    wait_for(lambda: (view := kept.guest.view()).log is not None and view.log.gap is not None, 60)
    log = kept.guest.view().log
    assert log is not None
    assert log.gap is not None
    assert (log.gap.archive_id, log.gap.name) == ("a-1", names[0])
    assert msgspec.json.decode((kept.guest.volume / "archive-gap.json").read_bytes(), type=Gap) == log.gap
    kept.add(10)  # it lives on
    # What is let go stays so for the agent's successor, and the next archive has a log of its own.
    kept.guest.kill()
    kept.guest.start()
    wait_for(lambda: (view := kept.guest.view()).log is not None and view.log.gap is not None, 60)
    kept.guest.host.full = None
    assert not kept.guest.host.kept
    kept.wants(archive=kept.archive("a-2"))
    kept.add(10)
    kept.is_kept(kept.switch())
    wait_for(lambda: (view := kept.guest.view()).log is not None and view.log.gap is None, 30)


@pytest.mark.slow
def test_a_server_that_is_to_stop_does_not_wait_for_its_log(guests: Callable[[], Guest]) -> None:
    kept = Kept(guests())
    kept.guest.host.full = "the store of objects is away"
    kept.add(10)
    kept.switch()
    began = time.monotonic()
    kept.wants(restart=1)
    wait_for(lambda: kept.guest.view().restart == 1, 60)
    assert time.monotonic() - began < 45.0
    kept.guest.ready()
