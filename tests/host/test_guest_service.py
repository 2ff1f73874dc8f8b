"""What a guest may do over its channel, and what comes of it: backups, restores, questions, reports."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tests.guest_cloud import PIECE, SERVER
from tests.guest_site import Site, content_of, patiently, pieces_of, play, until

from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import Chunk, chunk_key, open_chunk
from unstuck.blobs.objects import BlobError, Problem
from unstuck.core.agents import Ask
from unstuck.core.backup.data import Done as BackupDone
from unstuck.core.backup.data import Gave
from unstuck.core.instance.guestwire import (
    Answered,
    AskRestore,
    Done,
    Fetch,
    Finish,
    GiveUp,
    Hello,
    Look,
    NotNow,
    Orders,
    Refused,
    Renew,
    Restore,
    Seen,
    Store,
    Take,
)
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.server.data import Thing
from unstuck.host.control import Unreachable
from unstuck.host.guestcalls import PIECES_MAX
from unstuck.runtime.link import MESSAGE_MAX


@pytest.fixture(params=["direct", "through the control plane"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    return Site(tmp_path, direct=request.param == "direct")


@pytest.fixture
def one(tmp_path: Path) -> Site:
    return Site(tmp_path)


VIEW = DatabaseView(generation="g", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY)


def test_a_backup_is_stored_signed_and_told_and_can_be_restored(site: Site) -> None:
    data = os.urandom(3 * PIECE + 5)

    async def backup_and_restore() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, data, PIECE)
        async with site.host() as host, site.guest() as guest:
            orders, _ = await guest.ask(Look(0, 0.0))
            assert isinstance(orders, Orders)
            assert orders.want is not None
            assert orders.want.backup is not None
            nonce = orders.want.backup.nonce
            assert (await guest.ask(Take("backup-1", nonce)))[0] == Done()
            assert (await guest.ask(Renew("backup-1", nonce, "copying", 5, 0.0)))[0] == Done()
            answers = await asyncio.gather(
                *(guest.ask(Store(nonce, chunk), sealed) for chunk, sealed in pieces)
            )
            assert [said for said, _ in answers] == [Done()] * 4
            assert (await guest.ask(Finish(nonce, content_of(pieces, PIECE))))[0] == Done()
            host.service.hold(site.cloud.want())
        written = site.cloud.objects.get(manifests.manifest_key(site.cloud.prefix))
        assert written is not None
        manifest = manifests.read(written, site.cloud.signer.public, site.cloud.prefix)
        assert manifests.missing(manifest, site.cloud.objects.list(site.cloud.prefix)) == []
        assert site.cloud.backup is not None
        assert site.cloud.backup.attempt.report == BackupDone(manifests.digest(written))

        site.cloud.may_restore(content_of(pieces, PIECE))
        async with site.host(), site.guest() as guest:
            granted, _ = await guest.ask(AskRestore())
            assert isinstance(granted, Restore)
            got = b""
            for chunk in granted.content.chunks:
                said, sealed = await guest.ask(Fetch(chunk.index))
                assert said == Done()
                got += open_chunk(chunk, sealed, granted.identity)
            assert got == data
            assert isinstance((await guest.ask(Fetch(4)))[0], Refused)
            assert isinstance((await guest.ask(Fetch(-1)))[0], Refused)

    play(backup_and_restore)


def test_a_host_that_is_started_anew_in_mid_backup_goes_on_with_it(site: Site) -> None:
    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(4 * PIECE), PIECE)
        async with site.guest(greet=False) as guest:
            hello = asyncio.ensure_future(patiently(guest, _hello()))
            async with site.host():
                await hello
                await guest.ask(Take("backup-1", "n1"))
                for chunk, sealed in pieces[:2]:
                    assert (await guest.ask(Store("n1", chunk), sealed))[0] == Done()
            async with site.host():
                for chunk, sealed in pieces[1:]:
                    assert await patiently(guest, Store("n1", chunk), sealed) == Done()
                assert site.cloud.calls.count("put") in (0, 4)  # what was stored is not stored again
            async with site.host():
                assert await patiently(guest, Finish("n1", content_of(pieces, PIECE))) == Done()
        written = site.cloud.objects.get(manifests.manifest_key(site.cloud.prefix))
        assert manifests.read(written or b"", site.cloud.signer.public, site.cloud.prefix).size == 4 * PIECE

    play(work)


def test_a_finish_is_harmless_at_every_repeat_also_when_its_report_was_lost(one: Site) -> None:
    async def work() -> None:
        one.cloud.offer()
        pieces = pieces_of(one.cloud, os.urandom(PIECE), PIECE)
        finish = Finish("n1", content_of(pieces, PIECE))
        async with one.guest(greet=False) as guest:
            hello = asyncio.ensure_future(patiently(guest, _hello()))
            async with one.host():
                await hello
                await guest.ask(Take("backup-1", "n1"))
                await guest.ask(Store("n1", pieces[0][0]), pieces[0][1])
                one.control.fails["end"] = Unreachable("it never came there")
                assert isinstance((await guest.ask(finish))[0], NotNow)
            async with one.host():
                one.control.fails["end+"] = Unreachable("the answer was lost")
                assert isinstance(await patiently(guest, finish), NotNow)
                assert (await guest.ask(finish))[0] == Done()
                assert (await guest.ask(finish))[0] == Done()
            async with one.host():
                assert await patiently(guest, finish) == Done()
        assert one.cloud.backup is not None
        assert isinstance(one.cloud.backup.attempt.report, BackupDone)

    play(work)


def test_a_guest_writes_nothing_but_its_own_current_attempt(one: Site) -> None:
    async def work() -> None:
        one.cloud.offer("n1")
        pieces = pieces_of(one.cloud, os.urandom(3 * PIECE), PIECE)
        (first, sealed), (second, other) = pieces[:2]
        async with one.host() as host, one.guest() as guest:

            async def code(request: object, blob: bytes = b"") -> str:
                said, _ = await guest.ask(request, blob)  # type: ignore[arg-type]
                return said.code if isinstance(said, Refused) else type(said).__name__

            replace = msgspec.structs.replace
            assert await code(Take("backup-2", "n1")) == "late"
            assert await code(Take("backup-1", "../n1")) == "late"
            assert await code(Store("another attempt's", first), sealed) == "late"
            assert await code(Take("backup-1", "n1")) == "Done"
            for wrong in (
                replace(first, index=-1),
                replace(first, index=100),
                replace(first, index=1 << 40),
                replace(first, length=PIECE + 1),
                replace(first, length=0),
                replace(first, sealed_length=first.sealed_length + 1),
                replace(first, sealed_digest="0" * 64),
                replace(first, sealed_digest="../../x"),
                replace(first, digest=""),
            ):
                assert await code(Store("n1", wrong), sealed) == "invalid"
            assert await code(Store("n1", first), sealed[:-1]) == "invalid"
            assert await code(Store("n1", first), os.urandom(2 * PIECE)) == "invalid"
            assert one.cloud.objects.list("backups") == []
            assert await code(Store("n1", first), sealed) == "Done"
            assert await code(Store("n1", first), sealed) == "Done"
            assert await code(Store("n1", replace(second, index=0)), other) == "invalid"
            assert one.cloud.objects.get(chunk_key(one.cloud.prefix, 0)) == sealed
            # Gaps, pieces that were never stored, other sizes: nothing of it is signed.
            assert await code(Store("n1", pieces[2][0]), pieces[2][1]) == "Done"
            content = content_of(pieces, PIECE)
            assert await code(Finish("n1", content)) == "invalid"
            gap = replace(content, chunks=(first, pieces[2][0]), size=2 * PIECE)
            assert await code(Finish("n1", gap)) == "invalid"
            assert await code(Store("n1", second), other) == "Done"
            assert await code(Finish("n1", replace(content, size=1))) == "invalid"
            assert await code(Finish("n1", replace(content, chunk_size=5))) == "invalid"
            assert await code(Finish("n1", replace(content, system_identifier="x" * 1000))) == "invalid"
            assert await code(Finish("n2", content)) == "late"
            assert one.cloud.objects.get(manifests.manifest_key(one.cloud.prefix)) is None
            # The store gives it up and offers another: the old one is over, whatever the guest does.
            one.cloud.offer("n2")
            host.service.hold(one.cloud.want(version=2))
            assert await code(Store("n1", first), sealed) == "late"
            assert await code(Finish("n1", content)) == "late"
            assert await code(Renew("backup-1", "n1", "copying", 1, 0.0)) == "late"
            assert await code(AskRestore()) == "gone"
            assert await code(Fetch(0)) == "gone"
            assert await code(Renew("backup-1", "n2", "sleeping", 1, 0.0)) == "invalid"
            assert await code(Renew("backup-1", "n2", "copying", -1, 0.0)) == "invalid"

    play(work)


def test_a_cancelled_attempt_is_stopped_and_given_up(one: Site) -> None:
    async def work() -> None:
        backup = one.cloud.offer()
        async with one.host() as host, one.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            one.cloud.backup = msgspec.structs.replace(one.cloud.backup or backup, cancelled=True)
            said, _ = await guest.ask(Renew("backup-1", "n1", "copying", 1, 0.0))
            assert said == Done("the backup was cancelled")
            host.service.hold(one.cloud.want(version=2))
            chunk, sealed = pieces_of(one.cloud, b"x", PIECE)[0]
            # Not a refusal, after which an agent says nothing more: the backup is free with its word.
            assert (await guest.ask(Store("n1", chunk), sealed))[0] == said
            assert (await guest.ask(GiveUp("backup-1", "n1", "told to")))[0] == Done()
        assert one.cloud.backup is not None
        assert one.cloud.backup.attempt.report == Gave("told to")

    play(work)


def test_a_look_waits_for_news_and_questions_come_with_it_and_are_answered(one: Site) -> None:
    async def work() -> None:
        async with one.host() as host, one.guest() as guest:
            first, _ = await guest.ask(Look(0, 0.0))
            assert isinstance(first, Orders)
            look = asyncio.ensure_future(guest.ask(Look(first.version, 30.0)))
            await until(lambda: "register" in one.cloud.calls)
            host.service.ask(Ask("q1", SERVER, "guest", None, '{"type":"list-users"}', 20.0))
            asked, _ = await look
            assert isinstance(asked, Orders)
            assert [(ask.id, ask.argument) for ask in asked.asks] == [("q1", '{"type":"list-users"}')]
            assert 0.0 < asked.asks[0].seconds <= 20.0
            again, _ = await guest.ask(Look(first.version, 0.0))
            assert isinstance(again, Orders)
            assert again.asks == ()  # it is at work on it
            assert (await guest.ask(Answered("q1", "{}")))[0] == Done()
            assert (await guest.ask(Answered("q1", "twice")))[0] == Done()
            assert (await guest.ask(Answered("never asked", "{}")))[0] == Done()
            assert one.cloud.answers == {"q1": "{}"}
            host.service.ask(Ask("q2", SERVER, "guest", None, "{}", 0.0))
            late, _ = await guest.ask(Look(first.version, 0.0))
            assert isinstance(late, Orders)
            assert late.asks == ()  # its time is over
            look = asyncio.ensure_future(guest.ask(Look(first.version, 30.0)))
            one.cloud.offer()
            host.service.hold(one.cloud.want(version=2))
            news, _ = await look
            assert isinstance(news, Orders)
            assert news.version != first.version
            assert news.want is not None
            assert news.want.backup is not None

    play(work)


def test_only_news_of_a_guest_is_reported_and_its_silence_is(one: Site) -> None:
    async def work() -> None:
        async with one.host(lease=1.0) as host:
            host.service.hold(one.cloud.want(data_recorded=True))
            async with one.guest() as guest:
                for _ in range(20):
                    assert (await guest.ask(Seen(VIEW)))[0] == Done()
                await until(lambda: one.cloud.reports and one.cloud.reports[-1].view == VIEW)
                said = len(one.cloud.reports)
                for _ in range(20):
                    await guest.ask(Seen(VIEW))
                    await asyncio.sleep(0.1)
                assert len(one.cloud.reports) == said
                assert one.cloud.reports[-1].alive
                assert one.cloud.reports[-1].who.guest == 1
                one.control.fails["report+"] = Unreachable("lost")
                await guest.ask(Seen(msgspec.structs.replace(VIEW, server=ServerState.CRASHED)))
                await until(lambda: one.cloud.calls.count("report") >= said + 2)
                too_much = msgspec.structs.replace(VIEW, facts={"a": "x" * 1000})
                assert isinstance((await guest.ask(Seen(too_much)))[0], Refused)
            await until(lambda: not one.cloud.reports[-1].alive)
            async with one.guest("another process") as guest:
                await guest.ask(Seen(VIEW))
                await until(lambda: one.cloud.reports[-1].alive and one.cloud.reports[-1].who.guest == 2)
            sequences = [report.sequence for report in one.cloud.reports]
            assert sequences == sorted(set(sequences))

    play(work)


def test_a_guest_that_asks_without_end_is_put_off_and_the_control_plane_hears_little_of_it(one: Site) -> None:
    async def work() -> None:
        one.cloud.offer()
        async with one.host(), one.guest() as guest:
            put_off = 0
            for _ in range(400):
                said, _ = await guest.ask(Renew("backup-1", "n1", "copying", 1, 0.0))
                put_off += isinstance(said, NotNow)
            assert put_off > 200
            assert one.cloud.calls.count("renew") < 200

    play(work)


def test_a_control_plane_that_is_away_is_not_now_and_one_that_refuses_is_no(one: Site) -> None:
    async def work() -> None:
        one.cloud.offer()
        async with one.host(), one.guest() as guest:
            one.control.fails["take"] = Unreachable("away")
            said, _ = await guest.ask(Take("backup-1", "n1"))
            assert isinstance(said, NotNow)
            assert said.problem == "unreachable"
            assert one.cloud.backup is not None
            one.cloud.backup = msgspec.structs.replace(
                one.cloud.backup, attempt=msgspec.structs.replace(one.cloud.backup.attempt, nonce="other")
            )
            said, _ = await guest.ask(Take("backup-1", "n1"))
            assert isinstance(said, Refused)
            assert said.code == "late"
            one.control.fails["take"] = BlobError(Problem.REFUSED, "403 Forbidden")
            said, _ = await guest.ask(Take("backup-1", "n1"))
            assert said == NotNow("refused", "403 Forbidden", 5.0), (
                "the store of objects is not the host's fault"
            )
            one.control.fails["take"] = RuntimeError("a fault of ours")
            said, _ = await guest.ask(Take("backup-1", "n1"))
            assert isinstance(said, NotNow)
            assert said.problem == "fault"

    play(work)


def _hello() -> Hello:
    return Hello("the same process", 1)


def test_the_largest_backup_can_be_finished_in_one_message() -> None:
    digest, last = "f" * 64, PIECES_MAX - 1
    chunks = tuple(Chunk(last, 16 << 20, digest, 17 << 20, digest) for _ in range(PIECES_MAX))
    content = msgspec.structs.replace(content_of([], PIECE), chunks=chunks, size=1 << 50)
    assert len(msgspec.json.encode(Finish("n" * 64, content))) <= MESSAGE_MAX
