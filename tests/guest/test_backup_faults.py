"""A backup's agent is killed, its tool hangs, its store is full: each attempt ends, the next is made."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.guest.guest import Guest, anna, folder, processes_named
from tests.guest.host_double import wait_for
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.want import BackupWant, Origin, WantedDatabase
from unstuck.guest.datastores.postgresql.base import ASK
from unstuck.guest.processes import parent_of

pytestmark = pytest.mark.xdist_group("guest-backups")  # one process has the server of all of them

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
QUICK = {"starting": 2.0, "copying": 2.0, "finishing": 2.0, "uploading": 2.0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with folder() as root:
        made = Guest(root, FolderObjects(Path(tmp_path_factory.mktemp("objects"))))
        made.host.wants(made.want(origin=SHOP))
        made.start()
        made.ready()
        with made.connect() as connection:
            # Does not compress: more pieces than an agent holds in memory.
            connection.execute(
                "CREATE TABLE t AS SELECT string_agg(md5(random()::text), '') AS x"
                " FROM generate_series(1, 900000) n GROUP BY n % 9000"
            )
        yield made
        made.end()


@pytest.fixture
def guest(served: Guest) -> Iterator[Guest]:
    host = served.host
    host.full, host.slow = None, 0.0
    host.renewals.clear()
    host.wants(served.want(origin=SHOP, data_recorded=True))
    if served.agent is None:
        served.start()
    host.view = None
    served.ready()
    yield served
    host.full, host.slow = None, 0.0


def offer(guest: Guest, nonce: str, **changes: object) -> BackupWant:
    backup = guest.backup_want(nonce, **changes)
    guest.host.wants(guest.want(origin=SHOP, data_recorded=True, backup=backup))
    return backup


@contextlib.contextmanager
def written_to(guest: Guest) -> Iterator[None]:
    """Small transactions, one after the other: each commit wakes whoever sends to a client of the log."""
    enough = threading.Event()

    def write() -> None:
        with guest.connect() as connection:
            while not enough.is_set():
                connection.execute("INSERT INTO busy VALUES (1)")

    with guest.connect() as connection:
        connection.execute("CREATE TABLE busy (number int)")
        with ThreadPoolExecutor(3) as threads:
            done = [threads.submit(write) for _ in range(3)]
            try:
                yield
            finally:
                enough.set()
                for one in done:
                    one.result(30)
        connection.execute("DROP TABLE busy")


def slots(guest: Guest) -> list[str]:
    return as_admin(guest, "select slot_name from pg_replication_slots").split()


def as_admin(guest: Guest, query: str) -> str:
    """As the agent's role, over the socket, by PostgreSQL's own client."""
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    command = [
        "psql",
        "-XAt",
        "-h",
        str(guest.run / "pg"),
        "-p",
        str(guest.port),
        "-U",
        "postgres",
        "-c",
        query,
    ]
    return subprocess.run([*user, *command], check=True, capture_output=True, text=True, cwd="/").stdout


def nothing_is_left(guest: Guest) -> None:
    """No tool, no slot, no session of an attempt."""
    wait_for(lambda: not processes_named("pg_basebackup", guest.run), 15)
    wait_for(lambda: slots(guest) == [], 15)


def gave_up(guest: Guest, nonce: str, seconds: float = 30.0) -> str:
    try:
        wait_for(lambda: nonce in guest.host.gave_up or nonce in guest.host.finished, seconds)
    except AssertionError:
        raise AssertionError(guest.log.read_text()[-3000:]) from None
    assert nonce not in guest.host.finished
    return guest.host.gave_up[nonce].reason


KILLS = ["take", "take+", "copy", "copy+", "read+", "pack", "store", "store+", "copied", "finish", "finish+"]


@pytest.mark.slow
def test_agents_killed_in_each_phase_leave_nothing_and_the_next_attempt_is_made(guest: Guest) -> None:
    for number, point in enumerate(KILLS):
        guest.kill()
        guest.start(f"guest.{point}")
        nonce = f"k{number}"
        offer(guest, nonce)
        guest.stopped()
        guest.kill()
        guest.start()
        if point == "finish+":
            assert nonce in guest.host.finished
        guest.ready()
        nothing_is_left(guest)
    assert guest.back_up("after-kills").size > 16 << 20


@pytest.mark.parametrize("frozen", ["tool", "server"])
def test_a_copy_that_hangs_is_ended_and_told(guest: Guest, frozen: str) -> None:
    guest.host.slow = 0.2
    offer(guest, f"hang-{frozen}", stalls=QUICK)
    (tool,) = wait_for(lambda: processes_named("pg_basebackup", guest.run))
    wait_for(lambda: guest.host.stored.get(f"hang-{frozen}"))
    victim = tool if frozen == "tool" else sender(guest)
    os.kill(victim, signal.SIGSTOP)
    guest.host.slow = 0.0
    reason = gave_up(guest, f"hang-{frozen}")
    assert "nothing moved for 2 s (no data came from the server)" in reason
    if frozen == "server":
        os.kill(victim, signal.SIGCONT)
    nothing_is_left(guest)
    assert guest.back_up(f"after-{frozen}").size


def sender(guest: Guest) -> int:
    """The server's process that sends the copy."""
    return int(as_admin(guest, "select pid from pg_stat_progress_basebackup"))


@pytest.mark.slow
def test_an_attempt_has_ended_only_when_its_tool_and_its_slot_are_gone(guest: Guest) -> None:
    """Else the next one, which is offered at once, meets both."""
    guest.host.slow = 0.2
    offer(guest, "ends", stalls=QUICK)
    (tool,) = wait_for(lambda: processes_named("pg_basebackup", guest.run))
    wait_for(lambda: guest.host.stored.get("ends"))
    leash = parent_of(tool)
    assert leash is not None
    for pid in (tool, leash):
        os.kill(pid, signal.SIGSTOP)
    guest.host.slow = 0.0
    began = time.monotonic()
    try:
        gave_up(guest, "ends")
        assert time.monotonic() - began > QUICK["copying"] + ASK
        assert slots(guest) == []
    finally:
        os.kill(leash, signal.SIGCONT)
    nothing_is_left(guest)


def test_a_tool_that_dies_is_no_backup(guest: Guest) -> None:
    guest.host.slow = 0.2
    offer(guest, "killed")
    (tool,) = wait_for(lambda: processes_named("pg_basebackup", guest.run))
    wait_for(lambda: guest.host.stored.get("killed"))
    os.kill(tool, signal.SIGKILL)
    guest.host.slow = 0.0
    assert "pg_basebackup ended with 137" in gave_up(guest, "killed")
    nothing_is_left(guest)


@pytest.mark.slow
def test_a_full_store_is_waited_for_and_shown_as_what_is_waited_for(guest: Guest) -> None:
    guest.host.full = "the bucket is full"
    offer(guest, "full")
    wait_for(lambda: any(word.phase == "uploading" for word in guest.host.renewals), 30)
    guest.host.full = None
    wait_for(lambda: "full" in guest.host.finished, 30)


@pytest.mark.slow
def test_a_store_that_stays_full_ends_the_attempt_however_busy_the_database_is(guest: Guest) -> None:
    """Each commit wakes the server's sender, which so has used some processor time: that is no progress."""
    guest.host.full = "the bucket is full"
    with written_to(guest):
        offer(guest, "fuller", stalls={**QUICK, "uploading": 4.0})
        assert "the blob store took no piece: the bucket is full" in gave_up(guest, "fuller")
    assert guest.host.renewals[-1].put_off == "the bucket is full"
    nothing_is_left(guest)


@pytest.mark.slow
def test_a_store_that_hangs_holds_nobody_up_once_its_attempt_is_over(guest: Guest) -> None:
    guest.host.slow = 100.0
    offer(guest, "hung", stalls=QUICK)
    assert "the blob store took no piece" in gave_up(guest, "hung")
    nothing_is_left(guest)
    guest.host.slow = 0.0
    began = time.monotonic()
    assert guest.back_up("after-hung").size > 16 << 20
    assert time.monotonic() - began < 30.0


def test_an_attempt_that_is_to_stop_stops(guest: Guest) -> None:
    guest.host.slow = 2.0  # it has to last until it asks again, with several pieces on their way at once
    offer(guest, "stop")
    wait_for(lambda: guest.host.stored.get("stop"))
    guest.host.stop["stop"] = "the backup was cancelled"
    assert gave_up(guest, "stop") == "the backup was cancelled"
    nothing_is_left(guest)


@pytest.mark.slow
def test_the_word_to_stop_may_come_with_the_want(guest: Guest) -> None:
    guest.host.slow = 0.3
    offer(guest, "stop2")
    wait_for(lambda: guest.host.stored.get("stop2"))
    offer(guest, "stop2", stop="the instance was deleted")
    assert gave_up(guest, "stop2") == "the instance was deleted"
    nothing_is_left(guest)


@pytest.mark.parametrize("point", ["copy", "copied", "finish"])
def test_an_attempt_is_stopped_in_any_phase(guest: Guest, point: str) -> None:
    guest.kill()
    agent = guest.start(f"guest.{point}")
    offer(guest, f"s-{point}")
    guest.stopped()
    guest.host.over[f"s-{point}"] = "it was cancelled"
    agent.send_signal(signal.SIGCONT)
    nothing_is_left(guest)
    assert f"s-{point}" not in guest.host.finished


def test_a_late_agent_stops_at_once_and_says_nothing_more(guest: Guest) -> None:
    guest.host.slow = 0.3
    offer(guest, "late")
    wait_for(lambda: guest.host.stored.get("late"))
    guest.host.over["late"] = "another attempt runs"
    nothing_is_left(guest)
    guest.host.calls.clear()
    time.sleep(1)
    assert not {"Store", "Renew", "Finish"} & set(guest.host.calls)
    assert "late" not in guest.host.gave_up


def test_a_key_that_is_none_ends_it_for_good(guest: Guest) -> None:
    offer(guest, "key", recipient="age1nothing")
    assert "key" in gave_up(guest, "key")
    assert guest.host.gave_up["key"].final
    nothing_is_left(guest)


@pytest.mark.slow
def test_a_server_that_stops_in_the_middle_ends_the_attempt_and_the_next_is_made(guest: Guest) -> None:
    guest.host.slow = 0.3
    offer(guest, "crash")
    wait_for(lambda: guest.host.stored.get("crash"))
    os.kill(guest.server_pid(), signal.SIGKILL)
    assert "pg_basebackup ended with" in gave_up(guest, "crash", 60)
    guest.host.slow = 0.0
    guest.ready()
    wait_for(lambda: reachable(guest))
    assert guest.back_up("after-crash").size


def test_an_attempt_that_is_offered_while_the_server_comes_up_again_waits_for_it(guest: Guest) -> None:
    """Else all that there may be would be used up before it is up."""
    guest.kill()
    agent = guest.start("guest.copy")
    offer(guest, "first")
    guest.stopped()
    os.kill(guest.server_pid(), signal.SIGKILL)
    agent.send_signal(signal.SIGCONT)
    gave_up(guest, "first", 60)
    offer(guest, "second")
    try:
        wait_for(lambda: {"second"} & (guest.host.finished.keys() | guest.host.gave_up.keys()), 60)
    except AssertionError:
        raise AssertionError(guest.log.read_text()[-3000:] + guest.server_log()[-2000:]) from None
    assert "second" in guest.host.finished, guest.host.gave_up


def reachable(guest: Guest) -> bool:
    try:
        guest.connect().close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_a_host_that_is_away_for_a_while_loses_no_attempt(guest: Guest) -> None:
    guest.host.slow = 0.1
    offer(guest, "away")
    wait_for(lambda: guest.host.stored.get("away"))
    guest.host.away = True
    time.sleep(2)
    guest.host.away = False
    wait_for(lambda: "away" in guest.host.finished, 60)


def test_a_host_that_does_not_know_yet_what_is_wanted_ends_no_attempt(guest: Guest) -> None:
    guest.host.slow = 0.2
    offer(guest, "unsaid")
    wait_for(lambda: guest.host.stored.get("unsaid"))
    want = guest.host.want
    assert want is not None
    guest.host.want, guest.host.version = None, guest.host.version + 1
    looks = guest.host.calls.count("Look")
    wait_for(lambda: guest.host.calls.count("Look") > looks)  # it has heard that
    guest.host.wants(want)
    guest.host.slow = 0.0
    wait_for(lambda: "unsaid" in guest.host.finished, 60)
    assert "unsaid" not in guest.host.gave_up


def test_an_attempt_that_is_not_offered_any_more_is_dropped(guest: Guest) -> None:
    guest.host.slow = 0.3
    offer(guest, "gone")
    wait_for(lambda: guest.host.stored.get("gone"))
    guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
    nothing_is_left(guest)
    assert "gone" not in guest.host.finished
