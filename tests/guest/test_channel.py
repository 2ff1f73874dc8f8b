"""The two ends of a channel over real sockets: who speaks, who is not heard any more, what is survived."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.guest_cloud import PIECE, GuestCloud
from tests.guest_http import served
from tests.guest_sender import PIECE as LARGE
from tests.guest_site import Site, greeted, patiently, pieces_of, play, server_folder, until
from unstuck.blobs import manifest as manifests
from unstuck.core.backup.data import Done as BackupDone
from unstuck.core.instance.guestwire import Done, Hello, Look, Orders, Refused, Seen, Store, Take
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.server.data import Thing
from unstuck.guest.channel import Channel
from unstuck.guest.control import Away
from unstuck.runtime.framing import MARK, Frame, Kind, encode

ROOT = Path(__file__).parents[2]
SEEN = Seen(DatabaseView(generation="g", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_nobody_at_the_other_end_is_away_and_a_host_that_comes_later_is_found(site: Site) -> None:
    async def work() -> None:
        async with site.guest(greet=False, answer=0.3) as guest:
            with pytest.raises(Away):
                await guest.ask(Hello("one", 1))
            with pytest.raises(Away):
                await guest.ask(SEEN)
            async with site.host():
                await until_greeted(guest)
                assert (await guest.ask(SEEN))[0] == Done()
            with pytest.raises(Away):
                await guest.ask(SEEN)
            async with site.host():
                assert await patiently(guest, SEEN) == Done()

    play(work)


def test_a_request_under_way_is_away_as_soon_as_the_host_goes(site: Site) -> None:
    async def work() -> None:
        async with site.guest(greet=False) as guest:
            async with site.host():
                await greeted(guest)
                orders, _ = await guest.ask(Look(0, 0.0))
                assert isinstance(orders, Orders)
                look = asyncio.ensure_future(guest.ask(Look(orders.version, 60.0)))
                await guest.ask(SEEN)
            async with asyncio.timeout(5.0):
                with pytest.raises(Away):
                    await look

    play(work)


def test_a_newer_process_of_the_agent_wins_and_the_older_one_never_comes_back(site: Site) -> None:
    async def work() -> None:
        async with site.host(), site.guest("old") as old:
            orders, _ = await old.ask(Look(0, 0.0))
            assert isinstance(orders, Orders)
            look = asyncio.ensure_future(old.ask(Look(orders.version, 60.0)))
            await old.ask(SEEN)
            async with site.guest("new") as new:
                said, _ = await look
                assert isinstance(said, Refused)
                assert said.code == "superseded"
                for _ in range(20):
                    said, _ = await old.ask(SEEN)
                    assert isinstance(said, Refused)
                    assert (await new.ask(SEEN))[0] == Done()
                    await asyncio.sleep(0.02)
                refused, _ = await old.ask(Hello("old", 1))
                assert isinstance(refused, Refused)
                assert (await new.ask(SEEN))[0] == Done()
        assert site.cloud.starts == ["old", "new"]

    play(work)


def test_the_same_process_that_connects_again_keeps_its_number(site: Site) -> None:
    async def work() -> None:
        async with site.guest("same", greet=False) as guest:
            for _ in range(3):
                async with site.host():
                    hello = await patiently(guest, Hello("same", 1))
                    assert hello == await greeted(guest, "same")
        assert site.cloud.starts == ["same"]

    play(work)


def test_another_version_of_the_protocol_is_refused_and_said_so(site: Site) -> None:
    async def work() -> None:
        async with site.host(), site.guest(greet=False) as guest:
            for _ in range(2):
                said, _ = await guest.ask(Hello("x", 99))
                assert isinstance(said, Refused)
                assert said.code == "protocol"
            said, _ = await guest.ask(SEEN)
            assert isinstance(said, Refused)

    play(work)


def test_a_socket_of_a_dead_agent_is_replaced_and_a_folder_that_is_made_anew_is_found(site: Site) -> None:
    async def work() -> None:
        site.socket.parent.mkdir()
        stale = socket.socket(socket.AF_UNIX)
        folder = os.open(site.socket.parent, os.O_RDONLY)
        stale.bind(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        stale.close()
        async with site.host(), site.guest("a") as guest:
            mode = site.socket.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert mode & 0o777 == 0o666
            assert sorted(path.name for path in site.socket.parent.iterdir()) == ["agent.sock"]
            site.socket.unlink()
            site.socket.parent.rename(site.folder / "away")
            async with site.guest("b") as second:  # it is made anew, and listened in
                assert (await second.ask(SEEN))[0] == Done()
            del guest

    play(work)


def test_connections_that_say_nothing_lock_nobody_out(site: Site) -> None:
    async def work() -> None:
        async with site.host():
            await until(site.socket.exists)
            idle = [await connect(site) for _ in range(50)]
            async with site.guest("real") as guest:
                assert (await guest.ask(SEEN))[0] == Done()
                more = [await connect(site) for _ in range(50)]
                assert (await guest.ask(SEEN))[0] == Done()
            for _, writer in idle + more:
                writer.close()

    play(work)


HOSTILE = {
    "garbage": os.urandom(1 << 20),
    "marks": MARK * 300_000,
    "zeros": bytes(1 << 20),
    "a hello that is none": b"".join(encode(Frame(Kind.HELLO, b"n" * 8, 0, b"\xff{", 0, 2))),
    "a hello without end": b"".join(encode(Frame(Kind.HELLO, b"n" * 8, 0, b"[" * 9000, 0, 9000))),
    "asks before a hello": b"".join(encode(Frame(Kind.ASK, b"n" * 8, 1, b"{}", 0, 2))) * 1000,
    "bodies without end": b"".join(
        b"".join(encode(Frame(Kind.ASK, b"n" * 8, number, b"", 0, 0, 1 << 24))) for number in range(2000)
    ),
    "answers and credits": b"".join(
        b"".join(encode(Frame(kind, b"n" * 8, 0, b"{}", 0, 2)))
        for kind in (Kind.ANSWER, Kind.CREDIT, Kind.DROP)
    )
    * 1000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_harm_neither_the_host_nor_who_comes_next(site: Site, what: str) -> None:
    async def work() -> None:
        async with site.host() as host:
            await until(site.socket.exists)
            hello = msgspec.json.encode(Hello("hostile", 1))
            for start in (b"", b"".join(encode(Frame(Kind.HELLO, b"n" * 8, 0, hello, 0, len(hello))))):
                _, writer = await connect(site)
                try:
                    writer.write(start + HOSTILE[what])
                    await writer.drain()
                except OSError:
                    pass  # cut off
                async with site.guest() as guest:
                    assert (await guest.ask(SEEN))[0] == Done()
                writer.transport.abort()
            await until(lambda: host.within.used == 0)

    play(work)


def test_requests_that_are_no_requests_are_refused_by_name(site: Site) -> None:
    async def work() -> None:
        async with site.host():
            await until(site.socket.exists)
            reader, writer = await connect(site)
            hello = msgspec.json.encode(Hello("hostile", 1))
            writer.write(b"".join(encode(Frame(Kind.HELLO, b"n" * 8, 0, hello, 0, len(hello)))))
            text = b""
            while b"welcome" not in text:
                text += await reader.read(65536)
            large = b'"nonce":"n","phase":"p","size":99999999999999999999,"idle":0}'
            wrong = [
                b"", b"{", b'{"type":"store"}', b'{"type":"nothing"}', b'"x"', b"[" * 50_000, b"\xff\xfe",
                b'{"type":"hello","start":"x","protocol":1}', b'{"type":"look","since":1e400,"wait":0}',
                b'{"type":"renew","backup_id":"b",' + large,
            ]  # fmt: skip
            for number, message in enumerate(wrong):
                frame = Frame(Kind.ASK, b"n" * 8, number + 1, message, 0, len(message))
                writer.write(b"".join(encode(frame)))
            while text.count(b'"refused"') < len(wrong):
                text += await reader.read(65536)
            assert text.count(b'"invalid"') == len(wrong)
            writer.close()

    play(work)


# --- processes


@contextmanager
def program(name: object, *arguments: object, **more: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", **more}
    command = [sys.executable, "-m", f"tests.{name}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def lines(child: subprocess.Popen[str], word: str) -> Iterator[dict[str, int]]:
    assert child.stdout is not None
    for line in child.stdout:
        said = msgspec.json.decode(line) if line.startswith("{") else {}
        if word in said:
            yield said


@contextmanager
def processes(tmp_path: Path) -> Iterator[tuple[GuestCloud, list[object], list[object]]]:
    """The cloud; arguments of a host's process; arguments of a guest's."""
    cloud = GuestCloud(tmp_path / "objects", direct=False)
    cloud.offer()
    folder = server_folder(tmp_path / "host")
    want = tmp_path / "want.json"
    want.write_bytes(msgspec.json.encode(cloud.want(chunk_size=LARGE)))
    with served(cloud) as url:
        yield (
            cloud,
            ["guest_host", tmp_path / "host", want, url],
            ["guest_sender", folder / "channel" / "agent.sock"],
        )


@pytest.mark.slow
def test_a_host_that_is_killed_in_the_middle_of_frames_again_and_again_loses_nothing(tmp_path: Path) -> None:
    with processes(tmp_path) as (cloud, host, guest):
        count, kills = 24, 0
        with program(*guest, count, 2) as sender:
            heard = lines(sender, "stored")
            while True:
                with program(*host) as end:
                    for _ in range(4):
                        if (said := next(heard, None)) is None:
                            break
                    if said is None or sender.poll() is not None or kills > 4:
                        for _ in heard:
                            pass
                        break
                    kills += 1
                    os.kill(end.pid, signal.SIGKILL)  # pieces are on their way at this moment
            assert sender.wait(30.0) == 0
        assert kills >= 3
        written = cloud.objects.get(manifests.manifest_key(cloud.prefix))
        manifest = manifests.read(written or b"", cloud.signer.public, cloud.prefix)
        assert len(manifest.chunks) == count
        assert manifests.missing(manifest, cloud.objects.list(cloud.prefix)) == []
        assert len(cloud.objects.list(cloud.prefix)) == count + 1  # and nothing else


EFFECTS = ("register", "take", "store", "note", "manifest", "done")
BEFORE = [pytest.param(f"guests.{name}", marks=pytest.mark.slow) for name in EFFECTS]
BEHIND = [f"guests.{name}+" for name in EFFECTS]


@pytest.mark.parametrize("point", [*BEHIND, *BEFORE])
def test_a_host_that_dies_at_any_effect_of_a_backup_is_followed_by_one_that_ends_it(
    tmp_path: Path, point: str
) -> None:
    with processes(tmp_path) as (cloud, host, guest), program(*guest, 3, 2) as sender:
        with program(*host, UNSTUCK_STOP_AT=point) as end:
            wait_for((tmp_path / "host" / f"stopped-{end.pid}").exists)
            os.kill(end.pid, signal.SIGKILL)
        with program(*host):
            assert list(lines(sender, "finished"))
        assert sender.wait(30.0) == 0
        assert cloud.backup is not None
        written = cloud.objects.get(manifests.manifest_key(cloud.prefix)) or b""
        assert cloud.backup.attempt.report == BackupDone(manifests.digest(written))
        manifest = manifests.read(written, cloud.signer.public, cloud.prefix)
        assert manifests.missing(manifest, cloud.objects.list(cloud.prefix)) == []
        assert len(cloud.objects.list(cloud.prefix)) == 4


def test_a_guest_that_is_killed_in_the_middle_of_a_frame_leaves_the_way_free_for_the_next(
    site: Site,
) -> None:
    async def work() -> None:
        async with site.host() as host:
            for number in range(1, 4):
                site.cloud.offer(f"n{number}")
                host.service.hold(site.cloud.want(chunk_size=LARGE, version=number))
                with program("guest_sender", site.socket, 200, 2, f"n{number}") as sender:
                    said = lines(sender, "stored")
                    for _ in range(5):
                        assert await asyncio.to_thread(next, said, None)
                    sender.kill()
                await until(lambda: host.within.used == 0)
            async with site.guest() as guest:
                assert (await guest.ask(SEEN))[0] == Done()
            assert len(site.cloud.starts) == 4

    play(work)


def test_pieces_that_nobody_stores_do_not_fill_the_hosts_memory(site: Site) -> None:
    """A blob store that takes its time is waited for by the guest, not collected by the host."""
    busy = asyncio.Event()

    async def work() -> None:
        site.cloud.offer()
        slow = site.control

        async def put(who: object, nonce: str, key: str, data: bytes) -> None:
            await busy.wait()
            site.cloud.objects.put_new(key, data)

        slow.put_object = put  # type: ignore[method-assign,assignment]
        site.cloud.place = None
        pieces = pieces_of(site.cloud, os.urandom(14 * PIECE), PIECE)
        async with site.host() as host, site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            stores = [
                asyncio.ensure_future(guest.ask(Store("n1", *piece[:1]), piece[1])) for piece in pieces[:15]
            ]
            await until(lambda: host.within.used > 8 * PIECE)
            for _ in range(20):
                assert host.within.used <= 12 * PIECE
                assert (await guest.ask(SEEN))[0] == Done()  # it is heard of meanwhile
            busy.set()
            assert {type(said) for said, _ in await asyncio.gather(*stores)} == {Done}
            assert host.within.used == 0

    play(work)


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


async def connect(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    folder = os.open(site.socket.parent, os.O_RDONLY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/agent.sock")
    finally:
        os.close(folder)


async def until_greeted(guest: Channel) -> None:
    while True:
        try:
            await greeted(guest, "one")
        except Away:
            continue
        return
