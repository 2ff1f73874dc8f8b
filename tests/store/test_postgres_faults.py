"""PostgreSQL away, restarted, frozen, failing in the commit: looked up or tried again, never assumed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from tests.postgres import Postgres
from tests.store.play import Cloud, insert
from unstuck.control.loop import Controller
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.store import engine as engine_module
from unstuck.store import servers
from unstuck.store.engine import Store, StoreUnavailable, Tx
from unstuck.store.schema.compute import servers as table


class Between:
    """A connection to PostgreSQL through a relay that can cut it at a chosen moment of a commit."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cut = ""
        """``before``: the commit does not reach the server; ``after``: its answer does not come back."""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone would wait for the accept
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                dropping = threading.Event()
                for work in (self._up, self._down):
                    threading.Thread(target=work, args=(client, server, dropping), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, dropping: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut and b"COMMIT\0" in data:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    if cut == "before":
                        break
                    dropping.set()
                server.sendall(data)
        end(client, server)

    def _down(self, client: socket.socket, server: socket.socket, dropping: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(65536)) and not dropping.is_set():
                client.sendall(data)
        end(client, server)


def end(*both: socket.socket) -> None:
    for one in both:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@pytest.fixture
def relay(postgres_server: Postgres, postgres_store: Store) -> Iterator[tuple[Between, Store]]:
    between = Between(postgres_server.port)
    url = postgres_store.engine.url.set(port=between.port)
    store = Store(url.render_as_string(hide_password=False))
    yield between, store
    store.close()
    between.close()


def count(tx: Tx) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_lost_in_the_commit_neither_loses_nor_repeats_the_transaction(
    relay: tuple[Between, Store], cut: str
) -> None:
    between, store = relay
    cloud = Cloud(store)
    cloud.host()
    runs = []

    def create(tx: Tx, name: str) -> str:
        runs.append(name)
        insert(tx, name)
        return name

    between.cut = cut
    assert store.transact(create, "a") == "a"
    assert between.cuts == 1
    assert store.read(count) == 1
    # Committed and only the answer lost: not run again. Not committed: run again, from the start.
    assert runs == (["a"] if cut == "after" else ["a", "a"])


def test_an_outcome_that_nobody_can_tell_is_unknown_and_not_tried_again(
    relay: tuple[Between, Store], postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost in the commit and the database stays away: the asker hears just that."""
    monkeypatch.setattr(engine_module, "OUTCOME_PATIENCE", 0.5)
    between, store = relay
    cloud = Cloud(store)
    cloud.host()
    runs = []

    def create(tx: Tx) -> None:
        runs.append(1)
        insert(tx, "a")
        between.cut = "after"
        between.close()  # nobody gets through any more

    with pytest.raises(StoreUnavailable, match="its outcome is not known"):
        store.transact(create)
    assert runs == [1]


def test_a_session_that_is_ended_within_its_commit_is_tried_again(
    postgres_store: Store, postgres: str
) -> None:
    """A deferred trigger holds the commit; an administrator ends the session just there."""
    cloud = Cloud(postgres_store)
    cloud.host()
    address = f"postgresql://unstuck@{postgres}/{postgres_store.engine.url.database}"
    with psycopg.connect(address, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_lock(1); PERFORM pg_advisory_unlock(1); RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON servers DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION hold()"
        )
        admin.execute("SELECT pg_advisory_lock(1)")
        worker = threading.Thread(target=cloud.create, args=("a",))
        worker.start()
        victim = until(lambda: held(admin))
        assert admin.execute("SELECT pg_terminate_backend(%s)", (victim,)).fetchone() == (True,)
        second = until(lambda: held(admin, other_than=victim))
        assert second != victim
        admin.execute("SELECT pg_advisory_unlock(1)")
        worker.join(20)
        assert not worker.is_alive()
    assert postgres_store.read(count) == 1


def held(admin: psycopg.Connection, other_than: int = 0) -> int:
    found = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND pid <> %s", (other_than,)
    ).fetchone()
    return int(found[0]) if found else 0


def until(condition: Callable[[], int], seconds: float = 30.0) -> int:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_restart_between_two_transactions_is_not_even_noticed(
    postgres_store: Store, postgres_server: Postgres
) -> None:
    cloud = Cloud(postgres_store)
    cloud.host()
    cloud.active("a")
    postgres_server.stop(signal.SIGINT)
    postgres_server.start()
    assert cloud.status("a").status == "ACTIVE"
    cloud.tell()  # as its agent does: a database that was started anew may be another one
    cloud.active("b")


def test_after_a_restart_no_old_connection_of_the_pool_fails_anybody(
    postgres_store: Store, postgres_server: Postgres
) -> None:
    """Nobody tries a connection before its use: the first one that is lost speaks for all older ones."""
    cloud = Cloud(postgres_store)
    cloud.host()
    all_at_once = threading.Barrier(6)

    def hold(tx: Tx) -> None:
        count(tx)
        all_at_once.wait(20)

    def six(call: Callable[[], object]) -> None:
        with ThreadPoolExecutor(6) as threads:
            for done in [threads.submit(call) for _ in range(6)]:
                done.result(30)

    six(lambda: postgres_store.transact(hold))
    postgres_server.stop(signal.SIGQUIT)
    postgres_server.start()
    cloud.create("a")
    six(lambda: postgres_store.transact(hold))
    postgres_server.stop(signal.SIGQUIT)
    postgres_server.start()
    assert postgres_store.read(servers.due_servers, 10) == ["a"]


def test_while_it_is_away_every_call_says_so_at_once_and_afterwards_all_go_on(
    postgres_store: Store, postgres_server: Postgres
) -> None:
    cloud = Cloud(postgres_store)
    cloud.host()
    cloud.active("a")
    postgres_server.stop(signal.SIGQUIT)
    try:
        for call in (lambda: cloud.create("b"), lambda: cloud.status("a"), cloud.beat):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < 5.0
    finally:
        postgres_server.start()
    assert cloud.status("a").status == "ACTIVE"
    cloud.tell()  # as its agent does: a database that was started anew may be another one
    cloud.active("b")


def test_a_session_that_is_ended_within_a_transaction_makes_no_difference(
    postgres_store: Store, postgres: str
) -> None:
    cloud = Cloud(postgres_store)
    cloud.host()
    runs = []

    def create(tx: Tx) -> None:
        runs.append(1)
        insert(tx, "a")
        if len(runs) == 1:
            mine = tx.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            with psycopg.connect(f"postgresql://unstuck@{postgres}/postgres", autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", (mine,))
        tx.execute(sa.select(table.c.id)).all()

    postgres_store.transact(create)
    assert len(runs) == 2
    assert postgres_store.read(count) == 1


def test_a_database_that_refuses_to_write_is_as_good_as_away(postgres_store: Store) -> None:
    """A standby that was not promoted yet, behind the same address."""
    cloud = Cloud(postgres_store)

    def create(tx: Tx) -> None:
        tx.execute(sa.text("SET TRANSACTION READ ONLY"))
        insert(tx, "a")

    with pytest.raises(StoreUnavailable, match="read-only"):
        postgres_store.transact(create)
    cloud.create("a")


def test_a_frozen_database_holds_up_nobody_and_what_had_not_begun_never_happens(
    postgres_store: Store, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "DEADLINE", 0.5)
    cloud = Cloud(postgres_store)
    cloud.host()
    cloud.active("a")
    began = []

    def create(tx: Tx, name: str) -> None:
        began.append(name)
        insert(tx, name)

    async def scene() -> list[object]:
        names = [f"s{number}" for number in range(40)]  # more than there are threads
        calls = [postgres_store.run(create, name) for name in names]
        return await asyncio.gather(*calls, return_exceptions=True)

    postgres_server.signal_all(signal.SIGSTOP)
    try:
        before = time.monotonic()
        answers = asyncio.run(scene())
        assert time.monotonic() - before < 10.0
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    finally:
        postgres_server.signal_all(signal.SIGCONT)
    assert cloud.status("a").status == "ACTIVE"
    cloud.create("last")  # waits behind whatever had begun
    asyncio.run(postgres_store.run(count))
    assert len(began) <= 8, "the others had not begun when their callers were told"
    assert cloud.place("last")


def test_the_controllers_live_through_an_outage_and_go_on_by_themselves(
    postgres_store: Store, postgres_server: Postgres, tmp_path: Path
) -> None:
    cloud = Cloud(postgres_store)
    cloud.host()
    cloud.create("a")

    async def scene() -> None:
        port = AsyncPort(Barriers("", tmp_path))
        controller = Controller(port, postgres_store, lambda _key: None, tick=0.05)
        works = {"tick": controller.tick_forever(), "servers": controller.servers_forever()}
        running = asyncio.ensure_future(port.run(works))
        await asyncio.to_thread(until, lambda: "a" in cloud.wants())
        await asyncio.to_thread(postgres_server.stop, signal.SIGQUIT)
        await asyncio.sleep(0.5)
        assert not running.done(), "an outage of the database ends no process"
        await asyncio.to_thread(postgres_server.start)
        await asyncio.to_thread(cloud.beat)
        await asyncio.to_thread(cloud.tell)  # a database that was started anew may be another one
        await asyncio.to_thread(cloud.create, "b")
        await asyncio.to_thread(until, lambda: "b" in cloud.wants())
        port.end(0)
        assert await running == 0

    asyncio.run(scene())


def test_who_waits_for_a_parent_row_keeps_nobody_else_waiting(postgres_store: Store, postgres: str) -> None:
    """More placements for one host than there are threads, and its row is held by somebody: the store goes
    on for all others. Creates of one project held all threads that claims and reports needed."""
    cloud = Cloud(postgres_store)
    cloud.host()
    names = [f"s{number}" for number in range(12)]
    for name in names:
        cloud.create(name)
    address = f"postgresql://unstuck@{postgres}/{postgres_store.engine.url.database}"

    async def scene() -> list[bool]:
        placing = [
            asyncio.ensure_future(postgres_store.run(servers.place, name, "h", name)) for name in names
        ]
        await asyncio.to_thread(until, lambda: blocked(watcher))
        assert await asyncio.wait_for(postgres_store.run(count), 20) == len(names)
        assert not any(done.done() for done in placing)
        holder.rollback()
        return await asyncio.gather(*placing)

    with psycopg.connect(address) as holder, psycopg.connect(address, autocommit=True) as watcher:
        holder.execute("SELECT id FROM hosts FOR UPDATE")
        assert asyncio.run(scene()) == [True] * len(names)


def blocked(admin: psycopg.Connection) -> int:
    found = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    return int(found[0]) if found else 0
