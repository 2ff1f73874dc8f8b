"""A blob store that is full, refuses, hangs or is gone is "not now" to the guest, never a yes and never a no;
and it goes on as soon as the store does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.guest_cloud import PIECE, GuestCloud, InProcess
from tests.guest_http import served
from tests.guest_site import Site, content_of, patiently, pieces_of, play, until

from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import chunk_key
from unstuck.blobs.objects import BlobError, Entry, FolderObjects, Problem
from unstuck.core.instance.guestwire import (
    AskRestore,
    Done,
    Fetch,
    Finish,
    NotNow,
    Refused,
    Restore,
    Seen,
    Store,
    Take,
)
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.server.data import Thing
from unstuck.guest.control import Away
from unstuck.host.client import HttpControl
from unstuck.host.guestclient import HttpDatabase
from unstuck.host.pieces import Direct, Places

SEEN = Seen(DatabaseView(generation="g", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY))


class Faulty:
    """A real folder behind a store that does what the test says."""

    def __init__(self, folder: Path) -> None:
        self.inner = FolderObjects(folder)
        self.fails: Exception | None = None
        self.hangs: threading.Event | None = None

    def _before(self) -> None:
        if self.hangs is not None:
            self.hangs.wait(60.0)
        if self.fails is not None:
            raise self.fails

    def put_new(self, key: str, data: bytes) -> None:
        self._before()
        self.inner.put_new(key, data)

    def get(self, key: str) -> bytes | None:
        self._before()
        return self.inner.get(key)

    def head(self, key: str) -> Entry | None:
        return self.inner.head(key)

    def list(self, prefix: str) -> list[Entry]:
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.inner.delete(keys)


class At(Places):
    def __init__(self, direct: Direct) -> None:
        super().__init__()
        self.direct = direct

    def at(self, place: object) -> Direct:
        return self.direct


@pytest.mark.parametrize("problem", Problem)
def test_a_store_with_a_problem_is_not_now_with_its_name_and_then_goes_on(
    tmp_path: Path, problem: Problem
) -> None:
    site = Site(tmp_path)
    faulty = Faulty(site.cloud.root)

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(2 * PIECE), PIECE)
        finish = Finish("n1", content_of(pieces, PIECE))
        async with site.host(places=At(Direct(faulty))), site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            assert (await guest.ask(Store("n1", pieces[0][0]), pieces[0][1]))[0] == Done()
            faulty.fails = BlobError(problem, "as the test says")
            waits = []
            for _ in range(3):
                said, _ = await guest.ask(Store("n1", pieces[1][0]), pieces[1][1])
                assert isinstance(said, NotNow)
                assert said.problem == problem
                waits.append(said.seconds)
            assert waits == sorted(waits)
            assert waits[-1] > waits[0]
            assert isinstance((await guest.ask(finish))[0], Refused)  # one piece is certainly not stored
            faulty.fails = None
            assert (await guest.ask(Store("n1", pieces[1][0]), pieces[1][1]))[0] == Done()
            faulty.fails = BlobError(problem, "as the test says")
            assert isinstance((await guest.ask(finish))[0], NotNow)
            assert site.cloud.backup is not None
            assert site.cloud.backup.attempt.report is None
            faulty.fails = None
            assert (await guest.ask(finish))[0] == Done()
        site.cloud.may_restore(content_of(pieces, PIECE))
        async with site.host(places=At(Direct(faulty))), site.guest() as guest:
            assert isinstance((await guest.ask(AskRestore()))[0], Restore)
            faulty.fails = BlobError(problem, "as the test says")
            said, blob = await guest.ask(Fetch(0))
            assert isinstance(said, NotNow)
            assert blob == b""
            faulty.fails = None
            assert await guest.ask(Fetch(0)) == (Done(), pieces[0][1])

    play(work)


def test_a_store_that_hangs_holds_up_nothing_but_its_own_pieces(tmp_path: Path) -> None:
    site = Site(tmp_path)
    faulty = Faulty(site.cloud.root)
    faulty.hangs = threading.Event()

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(12 * PIECE), PIECE)
        async with site.host(places=At(Direct(faulty, deadline=0.5))) as host, site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            began = time.monotonic()
            stores = [asyncio.ensure_future(guest.ask(Store("n1", it), sealed)) for it, sealed in pieces]
            while not all(store.done() for store in stores):
                assert (await guest.ask(SEEN))[0] == Done()
                await asyncio.sleep(0.02)
            assert time.monotonic() - began < 10.0
            for store in stores:
                said, _ = store.result()
                assert isinstance(said, NotNow)
                assert said.problem == "unreachable"
            await until(lambda: host.within.used == 0)
            assert faulty.hangs is not None
            faulty.hangs.set()
            for chunk, sealed in pieces:
                while await patiently(guest, Store("n1", chunk), sealed) != Done():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await patiently(guest, Finish("n1", content_of(pieces, PIECE))) == Done()

    play(work)


@pytest.mark.parametrize("ends", ["the attempt", "the connection"])
def test_pieces_that_nobody_waits_for_in_a_store_that_hangs_hold_no_room(tmp_path: Path, ends: str) -> None:
    """The next attempt, of the same agent or of the next one, begins at once."""
    site = Site(tmp_path)
    faulty = Faulty(site.cloud.root)
    faulty.hangs = threading.Event()

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(3 * PIECE), PIECE)
        async with site.host(places=At(Direct(faulty))) as host, site.guest() as guest:
            assert await patiently(guest, Take("backup-1", "n1")) == Done()
            stores = [asyncio.ensure_future(guest.ask(Store("n1", it), sealed)) for it, sealed in pieces]
            await until(lambda: host.within.used > 2 * PIECE)
            began = time.monotonic()
            if ends == "the attempt":
                guest.forget("another")
                await asyncio.sleep(0.1)
                assert not any(store.done() for store in stores)
                guest.forget("n1")
                said = await asyncio.gather(*stores, return_exceptions=True)
                assert {type(each) for each in said} == {Away}
            else:
                for store in stores:
                    store.cancel()
                assert guest._link is not None
                guest._link.abort()
            await until(lambda: host.within.used == 0)
            assert time.monotonic() - began < 5.0
            assert faulty.hangs is not None
            faulty.hangs.set()
            site.cloud.offer("n2")
            host.service.hold(site.cloud.want())
            assert await patiently(guest, Take("backup-1", "n2")) == Done()
            for chunk, sealed in pieces:
                assert await patiently(guest, Store("n2", chunk), sealed) == Done()

    play(work)


def test_a_restore_is_refused_what_is_not_what_was_written(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(3 * PIECE), PIECE)
        async with site.host(), site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            for chunk, sealed in pieces:
                await guest.ask(Store("n1", chunk), sealed)
            await guest.ask(Finish("n1", content_of(pieces, PIECE)))
        site.cloud.may_restore(content_of(pieces, PIECE))
        flipped = site.cloud.root / chunk_key(site.cloud.prefix, 0)
        flipped.write_bytes(pieces[0][1][:-1] + bytes([pieces[0][1][-1] ^ 1]))
        (site.cloud.root / chunk_key(site.cloud.prefix, 1)).unlink()
        async with site.host(), site.guest() as guest:
            assert isinstance((await guest.ask(AskRestore()))[0], Restore)
            said, blob = await guest.ask(Fetch(0))
            assert isinstance(said, Refused)
            assert said.code == "damaged"
            assert blob == b""
            said, _ = await guest.ask(Fetch(1))
            assert isinstance(said, Refused)
            assert said.code == "damaged"
            assert (await guest.ask(Fetch(2)))[0] == Done()
            site.cloud.root.rename(tmp_path / "away")  # not mounted: nothing can be said
            said, _ = await guest.ask(Fetch(2))
            assert isinstance(said, NotNow)

    play(work)


def test_a_disk_that_is_full_on_the_host_or_in_the_store_is_said_and_waited_for(
    tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    site = Site(tmp_path)
    small = small_disk(5 * PIECE)
    site.cloud = GuestCloud(small / "objects")
    site.control = InProcess(site.cloud)

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(3 * PIECE), PIECE)
        filler = small / "filler"
        async with site.host(), site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            assert (await guest.ask(Store("n1", pieces[0][0]), pieces[0][1]))[0] == Done()
            filler.write_bytes(bytes(3 * PIECE))
            said, _ = await guest.ask(Store("n1", pieces[1][0]), pieces[1][1])
            assert isinstance(said, NotNow)
            assert said.problem == "full"
            filler.unlink()
            for chunk, sealed in pieces:
                assert (await guest.ask(Store("n1", chunk), sealed))[0] == Done()
            assert (await guest.ask(Finish("n1", content_of(pieces, PIECE))))[0] == Done()
        found = [entry.key for entry in site.cloud.objects.list(site.cloud.prefix)]
        assert found[-1] == manifests.manifest_key(site.cloud.prefix)
        assert len(found) == 4

    play(work)


def test_over_http_each_answer_of_the_control_plane_keeps_its_meaning(tmp_path: Path) -> None:
    site = Site(tmp_path, direct=False)
    faulty = Faulty(site.cloud.root)
    site.cloud.objects = faulty

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(PIECE), PIECE)
        chunk, sealed = pieces[0]
        with served(site.cloud) as url:
            control = HttpControl(url, "11111111-2222-4333-8444-555555555555", "secret")
            site.control = HttpDatabase(control)  # type: ignore[assignment]
            async with site.host() as host, site.guest() as guest:
                assert (await guest.ask(Take("backup-1", "n1")))[0] == Done()
                for problem in Problem:
                    faulty.fails = BlobError(problem, "as the test says")
                    said, _ = await guest.ask(Store("n1", chunk), sealed)
                    assert isinstance(said, NotNow)
                    assert said.problem == problem
                faulty.fails = None
                key = chunk_key(site.cloud.prefix, 0)
                faulty.inner.put_new(key, b"other bytes")
                said, _ = await guest.ask(Store("n1", chunk), sealed)
                assert isinstance(said, Refused)
                assert faulty.inner.get(key) == b"other bytes"
                (site.cloud.root / key).unlink()
                assert (await guest.ask(Store("n1", chunk), sealed))[0] == Done()
                assert (await guest.ask(Finish("n1", content_of(pieces, PIECE))))[0] == Done()
                site.cloud.may_restore(content_of(pieces, PIECE))
                host.service.hold(site.cloud.want(version=2))
                assert isinstance((await guest.ask(AskRestore()))[0], Restore)
                assert await guest.ask(Fetch(0)) == (Done(), sealed)
                (site.cloud.root / key).unlink()
                said, _ = await guest.ask(Fetch(0))
                assert isinstance(said, Refused)
                assert said.code == "damaged"
            await control.close()

    play(work)
