"""What happens to agent, server and volume, and what the database loses by it: nothing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.guest.guest import Guest, anna, processes_with
from tests.guest.host_double import wait_for
from unstuck.core.instance.requests import Failed, ListDatabases
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import DatabaseWant, Origin, WantedDatabase
from unstuck.core.server.data import Thing
from unstuck.runtime.port import EXIT_SUPERSEDED

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


def serve(guest: Guest) -> DatabaseWant:
    """A database with one row in it; what is wanted of it from now on."""
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS n")
    want = guest.want(origin=SHOP, data_recorded=True)
    guest.host.wants(want)
    return want


def holds(guest: Guest) -> None:
    with guest.connect() as connection:
        assert connection.execute("SELECT n FROM t").fetchone() == (42,)


def change(guest: Guest, want: DatabaseWant, **changes: object) -> DatabaseWant:
    new = msgspec.structs.replace(want, **changes)
    guest.host.wants(new)
    return new


@pytest.mark.slow
def test_agents_killed_at_each_point_of_the_making_are_followed_by_one_that_finishes(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    for point in ("init", "init+", "start", "start+", "apply", "apply+"):
        guest.start(f"guest.{point}")
        guest.stopped()
        guest.kill()
    guest.start()
    assert guest.ready().applied
    with guest.connect() as connection:
        connection.execute("CREATE TABLE t (n int)")
    assert not (guest.volume / "making").exists()


@pytest.mark.slow
def test_initdb_ends_with_its_agent_and_is_made_anew(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    wait_for(lambda: processes_with(guest.volume / "making"))
    guest.kill()
    wait_for(lambda: not processes_with(guest.volume / "making"), 5)
    assert not (guest.volume / "database").exists()
    guest.start()
    assert guest.ready().applied


def test_data_that_was_made_and_is_gone_is_a_fault_and_never_made_empty(guest: Guest) -> None:
    serve(guest)
    guest.kill()
    guest.end_server()
    shutil.rmtree(guest.volume / "database")
    guest.start()
    assert guest.trouble("data-missing").data is Thing.ABSENT
    time.sleep(1)
    assert {path.name for path in guest.volume.iterdir()} == {"log"}


@pytest.mark.slow
def test_another_instances_data_is_left_alone(guest: Guest) -> None:
    want = serve(guest)
    guest.kill()
    guest.end_server()
    guest.host.view = None
    change(guest, want, generation="another", data_recorded=False)
    guest.start()
    assert guest.trouble("data-foreign").data is Thing.UNKNOWN
    assert "generation-1" in (guest.volume / "database/unstuck.json").read_text()
    assert guest.view().server is ServerState.DOWN


def test_a_volume_with_files_of_nobody_is_left_alone(guest: Guest) -> None:
    (guest.volume / "thesis.tex").write_text("the only copy")
    guest.host.wants(guest.want())
    guest.start()
    view = guest.trouble("data-foreign")
    assert view.trouble is not None
    assert "thesis.tex" in view.trouble.reason
    assert (guest.volume / "thesis.tex").read_text() == "the only copy"


@pytest.mark.slow
def test_a_volume_that_is_not_mounted_is_not_an_empty_one(guest: Guest) -> None:
    guest.host.wants(guest.want())
    guest.start("", "--mounted")
    assert guest.trouble("data-unknown").data is Thing.UNKNOWN
    assert list(guest.volume.iterdir()) == []


def test_a_server_that_crashes_is_up_again_at_once_with_its_data(guest: Guest) -> None:
    serve(guest)
    first = guest.server_pid()
    began = time.monotonic()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: guest.server_pid() not in (0, first), 20)
    wait_for(lambda: guest.view().server is ServerState.UP, 20)
    assert time.monotonic() - began < 15
    holds(guest)
    with guest.connect() as connection:  # on a busy disk it takes minutes otherwise
        shown = connection.execute("SHOW recovery_init_sync_method").fetchone()
    assert shown == ("syncfs",)


@pytest.mark.slow
def test_a_server_that_crashed_while_no_agent_was_there_is_started(guest: Guest) -> None:
    serve(guest)
    first = guest.server_pid()
    guest.kill()
    os.kill(first, signal.SIGKILL)
    guest.start()
    wait_for(lambda: guest.server_pid() not in (0, first), 20)
    guest.ready()
    holds(guest)


@pytest.mark.slow
def test_a_server_that_cannot_come_up_is_left_alone_with_its_last_words(guest: Guest) -> None:
    want = serve(guest)
    guest.kill()
    guest.end_server()
    control = guest.volume / "database/pg/global/pg_control"
    whole = control.read_bytes()
    control.write_bytes(bytes(len(whole)))
    guest.host.view = None
    guest.start()
    view = guest.trouble("server-keeps-failing", 100)
    assert view.trouble is not None
    assert view.trouble.final
    assert "incompatible with server" in view.trouble.reason
    control.write_bytes(whole)
    change(guest, want, restart=1)  # somebody has seen to it
    assert guest.ready().restart == 1
    holds(guest)


@pytest.mark.slow
def test_a_restart_is_one_and_only_one(guest: Guest) -> None:
    want = serve(guest)
    first = guest.server_pid()
    change(guest, want, restart=1)
    assert guest.ready().restart == 1
    second = guest.server_pid()
    assert second != first
    guest.kill()
    guest.start()
    guest.host.view = None
    guest.ready()
    assert guest.server_pid() == second
    holds(guest)


@pytest.mark.slow
def test_agents_killed_at_each_point_of_a_restart_are_followed_by_one_that_finishes_it(guest: Guest) -> None:
    want = serve(guest)
    guest.kill()
    change(guest, want, restart=1)
    for point in ("stop", "start", "start+"):
        guest.start(f"guest.{point}")
        guest.stopped()
        guest.kill()
    guest.start()
    assert guest.ready().restart == 1
    holds(guest)


@pytest.mark.slow
def test_a_frozen_server_is_unclear_and_thaws_unharmed(guest: Guest) -> None:
    serve(guest)
    pid = guest.server_pid()
    os.kill(pid, signal.SIGSTOP)
    assert guest.trouble("server-mute").server is ServerState.UNCLEAR
    began = time.monotonic()
    answer = guest.host.ask_database(ListDatabases(10), seconds=2)
    assert isinstance(answer, Failed)
    assert answer.code == "unready"
    assert time.monotonic() - began < 8
    os.kill(pid, signal.SIGCONT)
    guest.ready()
    assert guest.server_pid() == pid
    holds(guest)


@pytest.mark.slow
def test_a_frozen_server_is_restarted_if_that_is_wanted(guest: Guest) -> None:
    want = serve(guest)
    pid = guest.server_pid()
    os.kill(pid, signal.SIGSTOP)
    change(guest, want, restart=1)
    assert guest.ready().restart == 1
    assert guest.server_pid() != pid
    holds(guest)


def test_settings_and_access_change_in_the_running_server(guest: Guest) -> None:
    want = serve(guest)
    pid = guest.server_pid()
    want = change(guest, want, parameters={"work_mem": "7MB", "max_connections": "77"})
    wait_for(lambda: waiting(guest) == ("max_connections",))
    with guest.connect() as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
    assert guest.server_pid() == pid
    want = change(guest, want, cidrs=("192.0.2.0/24",))
    wait_for(lambda: no_way_in(guest))
    want = change(guest, want, cidrs=("127.0.0.0/8",), restart=1)
    guest.ready()
    with guest.connect() as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("77",)
    assert waiting(guest) == ()


def waiting(guest: Guest) -> tuple[str, ...]:
    found = guest.view().configured
    return () if found is None else found.waiting


def no_way_in(guest: Guest) -> bool:
    try:
        guest.connect().close()
    except psycopg.OperationalError as error:
        return "no pg_hba.conf entry" in str(error)
    return False


@pytest.mark.slow
def test_an_initial_database_that_cannot_be_made_is_told_for_good(guest: Guest) -> None:
    bad = Origin(databases=(WantedDatabase("shop", collate="nowhere"),))
    guest.host.wants(guest.want(origin=bad))
    guest.start()
    view = guest.trouble("effect-failed")
    assert view.trouble is not None
    assert view.trouble.final


@pytest.mark.slow
def test_of_two_agents_the_older_one_ends(guest: Guest) -> None:
    serve(guest)
    first = guest.agent
    assert first is not None
    guest.start()
    assert first.wait(30) == EXIT_SUPERSEDED
    guest.host.view = None
    guest.ready()
    holds(guest)


@pytest.mark.slow
def test_another_protocol_is_a_reason_to_wait_and_not_to_end(guest: Guest) -> None:
    guest.host.protocol = 99
    guest.host.wants(guest.want())
    agent = guest.start()
    wait_for(lambda: "another version" in guest.log.read_text())
    time.sleep(2)
    assert agent.poll() is None
    assert guest.host.calls == ["Hello"]


@pytest.mark.slow
def test_a_host_that_is_away_stops_no_database(guest: Guest) -> None:
    serve(guest)
    guest.host.away = True
    first = guest.server_pid()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: guest.server_pid() not in (0, first))
    wait_for(lambda: not no_server(guest))
    holds(guest)
    guest.host.away = False
    guest.host.view = None
    guest.ready()


def no_server(guest: Guest) -> bool:
    try:
        guest.connect().close()
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.slow
def test_a_server_killed_under_a_long_query_comes_up_again_although_that_goes_on(guest: Guest) -> None:
    """Its session does not notice, and holds the memory that the next server needs."""
    serve(guest)
    killed = guest.server_pid()
    long = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 10000000) b"
    with guest.connect() as busy, ThreadPoolExecutor(1) as threads:
        session = busy.info.backend_pid
        query = threads.submit(busy.execute, long)
        title = Path(f"/proc/{session}/cmdline")
        wait_for(lambda: b"SELECT" in title.read_bytes(), 30)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: guest.server_pid() not in (0, killed), 60)
        with pytest.raises(psycopg.OperationalError):
            query.result(60)
    guest.host.view = None
    guest.ready()
    holds(guest)
