"""The wire under the frames: all that is written arrives in order, at any pace; ends are seen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from unstuck.runtime.wire import HIGH, Wire, serve


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[Wire, socket.socket]]:
    """A wire, and the plain socket at its other end."""
    one, other = socket.socketpair()
    other.setblocking(False)
    wire = Wire(one.detach())
    try:
        yield wire, other
    finally:
        wire.abort()
        other.close()


def play(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30.0):
            await work()

    asyncio.run(limited())


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_all_that_is_written_arrives_in_order_at_the_readers_pace() -> None:
    async def scene() -> None:
        draw = random.Random(7)
        parts = [draw.randbytes(draw.choice((0, 1, 48, 5000, 300_000))) for _ in range(200)]
        async with pair() as (wire, other):

            async def send() -> None:
                for at in range(0, len(parts), 2):
                    wire.write(parts[at], memoryview(parts[at + 1]))
                    await wire.drain()
                    assert wire.waiting <= HIGH
                wire.close()
                wire.write(b"is too late")

            sending, got = asyncio.ensure_future(send()), bytearray()
            loop = asyncio.get_running_loop()
            while data := await loop.sock_recv(other, draw.choice((1, 1000, 1 << 20))):
                got += data
            await sending
            assert got == b"".join(parts)
            await wire.wait_closed()

    play(scene)


def test_what_is_read_lies_in_the_same_memory_and_an_end_is_an_end() -> None:
    async def scene() -> None:
        async with pair() as (wire, other):
            reading = asyncio.ensure_future(wire.read())
            await asyncio.sleep(0)
            other.send(b"one")
            first = await reading
            assert first == b"one"
            other.send(b"two")
            assert await wire.read() == b"two"
            assert first == b"two"
            other.close()
            assert await wire.read() == b""

    play(scene)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_whoever_waits_is_told_when_it_is_closed(how: str) -> None:
    async def scene() -> None:
        async with pair() as (wire, _):
            wire.write(bytes(4 * HIGH))
            reading, draining = asyncio.ensure_future(wire.read()), asyncio.ensure_future(wire.drain())
            await asyncio.sleep(0.01)
            assert not draining.done()
            getattr(wire, how)()
            if how == "close":  # what was written is sent first, however long that takes
                assert await reading == b""
                assert not draining.done()
                wire.abort()
            assert await reading == b""
            with pytest.raises(ConnectionResetError):
                await draining
            with pytest.raises(ConnectionResetError):
                await wire.drain()
            wire.abort()
            wire.close()

    play(scene)


def test_a_side_that_has_gone_breaks_what_is_written_to_it() -> None:
    async def scene() -> None:
        async with pair() as (wire, other):
            other.close()
            wire.write(b"to nobody")
            with pytest.raises(OSError):
                await wire.drain()
            with pytest.raises(OSError):
                await wire.read()

    play(scene)


def test_it_leaves_no_descriptor_open() -> None:
    async def scene() -> None:
        before = open_files()
        for end in ("abort", "close"):
            for _ in range(20):
                async with pair() as (wire, _):
                    wire.write(b"some")
                    getattr(wire, end)()
        assert open_files() == before

    play(scene)


def test_a_sender_without_end_stops_nobody_else() -> None:
    async def scene() -> None:
        async with pair() as (wire, other):
            over = asyncio.get_running_loop().time() + 0.2
            turns = 0

            async def others() -> None:
                nonlocal turns
                while asyncio.get_running_loop().time() < over:
                    turns += 1
                    await asyncio.sleep(0)

            work, total = asyncio.ensure_future(others()), 0
            while not work.done():
                with contextlib.suppress(BlockingIOError):
                    other.send(bytes(1 << 16))
                total += len(await wire.read())
            assert turns >= total // (256 << 10)
            assert turns > 10

    play(scene)


def test_connections_are_taken_one_after_the_other() -> None:
    async def scene() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("")  # an abstract name of the kernel's choice
        listening.listen(1)
        taken: asyncio.Queue[Wire] = asyncio.Queue()
        serving = asyncio.ensure_future(serve(listening, taken.put_nowait))
        for number in range(3):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(listening.getsockname())
                one.send(b"%d" % number)
                wire = await taken.get()
                assert await wire.read() == b"%d" % number
                wire.abort()
        serving.cancel()
        listening.close()

    play(scene)
