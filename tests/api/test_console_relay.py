"""The relay between the two ends of a console, and what a host holds for those who look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from unstuck.api.console import meet
from unstuck.api.console.relay import Ended, relay
from unstuck.api.errors import ApiError
from unstuck.api.sockets import BadMessage, Gone
from unstuck.core.console import PER_SERVER, SerialAsk, SerialSaid, why_not
from unstuck.core.server.data import Fence
from unstuck.host import serials
from unstuck.host.serials import Line, NoSerial, Viewer


class Fake:
    """One end: what it will say, what it was sent; it can refuse to read."""

    def __init__(self, *says: bytes | Exception, reads: bool = True) -> None:
        self.says: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        for one in says:
            self.says.put_nowait(one)
        self.got: list[bytes] = []
        self.reads = reads

    async def receive(self) -> bytes:
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def send(self, data: bytes) -> None:
        if not self.reads:
            await asyncio.Event().wait()
        self.got.append(data)


def run(work: Callable[[], Awaitable[object]]) -> object:
    async def bounded() -> object:
        async with asyncio.timeout(20.0):
            return await work()

    return asyncio.run(bounded())


def relayed(user: Fake, host: Fake, **limits: float) -> Ended:
    async def work() -> Ended:
        return await relay(user, host, asyncio.Event(), **limits)

    ended = run(work)
    assert isinstance(ended, Ended)
    return ended


def test_bytes_go_both_ways_until_the_user_leaves() -> None:
    user, host = Fake(b"ls", b"\r"), Fake(b"file")

    async def work() -> Ended:
        task = asyncio.ensure_future(relay(user, host, asyncio.Event()))
        while host.got != [b"ls", b"\r"] or user.got != [b"file"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        user.says.put_nowait(Gone(1000, ""))
        return await task

    assert run(work) == Ended(1000, "the user has left")


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (Gone(1000, "the serial port was closed"), "the serial port was closed"),
        (Gone(1008, "the guest takes no input"), "the guest takes no input"),
        (Gone(1006, ""), "went away"),
        (Gone(1001, "the agent ends"), "went away"),
    ],
)
def test_the_user_is_told_why_the_host_went(gone: Gone, said: str) -> None:
    assert said in relayed(Fake(), Fake(gone)).reason


def test_a_console_at_which_nothing_is_said_is_closed() -> None:
    assert "nothing was said" in relayed(Fake(), Fake(), idle=0.05).reason


def test_a_console_is_not_open_for_ever() -> None:
    async def chatter(user: Fake) -> None:
        while True:
            user.says.put_nowait(b"x")
            await asyncio.sleep(0.01)

    async def work() -> Ended:
        user = Fake()
        talking = asyncio.ensure_future(chatter(user))
        try:
            return await relay(user, Fake(), asyncio.Event(), longest=0.2, idle=5.0)
        finally:
            talking.cancel()

    ended = run(work)
    assert isinstance(ended, Ended)
    assert "at most" in ended.reason


def test_an_end_that_does_not_read_is_not_waited_for() -> None:
    assert "was not read" in relayed(Fake(reads=False), Fake(b"much"), unread=0.05).reason
    assert "takes no input" in relayed(Fake(b"much"), Fake(reads=False), unread=0.05).reason


def test_a_message_that_is_none_closes_it() -> None:
    assert relayed(Fake(BadMessage("the message is not base64")), Fake()).code == 1008


def test_the_end_of_the_process_closes_it() -> None:
    async def work() -> Ended:
        ending = asyncio.Event()
        ending.set()
        return await relay(Fake(), Fake(), ending)

    ended = run(work)
    assert isinstance(ended, Ended)
    assert ended.code == 1001


# --- where they meet


def test_only_the_host_that_was_asked_may_come_and_only_once() -> None:
    async def work() -> None:
        consoles = meet.Consoles()
        with consoles.meeting("ask", "host", "project") as meeting:
            assert consoles.waiting("ask", "other") is None
            assert consoles.waiting("elsewhere", "host") is None
            assert consoles.waiting("ask", "host") is meeting
            meeting.host = object()  # type: ignore[assignment]
            assert consoles.waiting("ask", "host") is None
        assert meeting.over.is_set()
        assert consoles.waiting("ask", "host") is None

    run(work)


def test_there_is_room_for_so_many_of_a_project_and_of_all() -> None:
    async def work() -> None:
        consoles = meet.Consoles()
        with contextlib.ExitStack() as held:
            for number in range(meet.PER_PROJECT):
                held.enter_context(consoles.meeting(f"a{number}", "host", "a"))
            with pytest.raises(ApiError, match="of this project") as refused:
                held.enter_context(consoles.meeting("more", "host", "a"))
            assert refused.value.status == 503
            for number in range(meet.CONSOLES_MAX - meet.PER_PROJECT):
                held.enter_context(consoles.meeting(f"b{number}", "host", f"b{number}"))
            with pytest.raises(ApiError, match="all that there may be"):
                consoles.check_room()
        consoles.check_room("a")
        consoles.close()
        with pytest.raises(ApiError, match="about to end"):
            consoles.check_room()

    run(work)


# --- what a host says


def test_the_answer_of_a_former_agent_is_no_yes() -> None:
    assert why_not('{"serial":true}') == ""
    assert why_not('{"serial":false,"reason":"it does not run"}') == "it does not run"
    for text in ("", "login: ", '{"serial":true,"more":1}', "null", "[[[["):
        assert "has to be upgraded" in why_not(text)
    assert SerialAsk(Fence(1, 2)).open is False
    assert SerialSaid(True).reason == ""


# --- the serial port at the host


class Port:
    """A guest's port: a real unix socket that a test serves."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.there = asyncio.Event()

    def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.there.set()


async def line_to(port: Port, path: Path) -> tuple[Line, asyncio.AbstractServer]:
    server = await asyncio.start_unix_server(port.came, path)
    reader, writer = await asyncio.open_unix_connection(path)
    await port.there.wait()
    return Line(reader, writer, Fence(1, 1)), server


def test_all_who_look_see_the_same_and_an_end_is_an_end_for_all(tmp_path: Path) -> None:
    async def work() -> None:
        port = Port()
        line, server = await line_to(port, tmp_path / "serial.sock")
        viewers = [Viewer() for _ in range(PER_SERVER)]
        line.viewers.update(viewers)
        reading = asyncio.ensure_future(line.read())
        assert port.writer is not None
        assert port.reader is not None
        port.writer.write(b"login: ")
        assert [await viewer.take() for viewer in viewers] == [b"login: "] * PER_SERVER
        await line.type(b"root\r")
        assert await port.reader.readexactly(5) == b"root\r"
        port.writer.write(b"last words")
        port.writer.close()
        await reading
        for viewer in viewers:
            assert await viewer.take() == b"last words"
            assert await viewer.take() == b""
        server.close()

    run(work)


def test_who_reads_slowly_loses_the_oldest_and_is_told() -> None:
    async def work() -> None:
        viewer = Viewer()
        for _ in range(100):
            viewer.offer(b"x" * serials.CHUNK)
        viewer.offer(b"END")
        viewer.end()
        first = await viewer.take()
        lost = 100 * serials.CHUNK + 3 - serials.WAITING_MAX
        assert f"[{lost} bytes were written faster than they were read]".encode() in first
        rest = b""
        while data := await viewer.take():
            assert len(data) <= serials.CHUNK
            rest += data
        assert len(rest) == serials.WAITING_MAX
        assert rest.endswith(b"END")

    run(work)


def test_a_guest_that_takes_nothing_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serials, "TAKE", 0.1)

    async def work() -> None:
        port = Port()
        line, server = await line_to(port, tmp_path / "serial.sock")

        async def type_on() -> None:
            while True:  # until the buffers of the kernel are full
                await line.type(b"x" * 65536)

        with pytest.raises(NoSerial, match="takes no input"):
            await type_on()
        line.close()
        assert port.writer is not None
        port.writer.close()
        server.close()

    run(work)
