"""Bodies arrive whole, several at once; a slow reader slows its sender; memory is bounded on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from unstuck.runtime.framing import PAYLOAD_MAX, Frame, Kind, encode
from unstuck.runtime.link import BLOB_MAX, BODIES_MAX, FLOOD, Body, Broken, Dropped, Handler, Link
from unstuck.runtime.room import Room
from unstuck.runtime.wire import Wire

NONCE = b"12345678"
MIB = 1 << 20


class Side(Handler):
    def __init__(self, wire: Wire, room: Room, kind: Kind) -> None:
        self.room = room
        self.writer = wire
        self.link = Link(wire, room, kind, self)
        self.bodies: asyncio.Queue[Body] = asyncio.Queue()
        self.drops: list[int] = []
        self.resets = 0
        self.running = asyncio.ensure_future(self.link.run())

    def body(self, body: Body) -> None:
        self.bodies.put_nowait(body)

    def dropped(self, request: int) -> None:
        self.drops.append(request)

    def hello(self, nonce: bytes, message: bytes) -> None:
        self.link.begin_session(nonce)

    def reset(self) -> None:
        self.resets += 1


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30.0):
            await work

    asyncio.run(limited())


@asynccontextmanager
async def pair(room: int = 8 * MIB, greet: bool = True) -> AsyncIterator[tuple[Side, Side]]:
    """Who asks, and who is asked."""
    one, other = socket.socketpair()
    asks = Side(Wire(one.detach()), Room(40 * MIB), Kind.ANSWER)
    asked = Side(Wire(other.detach()), Room(room), Kind.ASK)
    if greet:
        asks.link.hello(NONCE, b"{}")
        await until(lambda: asked.link.nonce == NONCE)
    try:
        yield asks, asked
    finally:
        for side in (asks, asked):
            await side.link.close()
        await asyncio.wait([asks.running, asked.running])
        for side in (asks, asked):
            side.running.cancelled() or side.running.exception()


async def until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 (what it waits for sets no event)
        await asyncio.sleep(0.001)


def test_bodies_of_all_sizes_arrive_whole_while_many_are_sent_at_once() -> None:
    async def play() -> None:
        chance = random.Random(1)
        async with pair() as (asks, asked):
            sizes = [0, 1, PAYLOAD_MAX - 1, PAYLOAD_MAX, PAYLOAD_MAX + 1, 300_000, 2 * MIB, 3 * MIB, 5 * MIB]
            sent = {n + 1: (chance.randbytes(s % 200_000), chance.randbytes(s)) for n, s in enumerate(sizes)}
            sending = [asyncio.ensure_future(asks.link.send(Kind.ASK, n, *body)) for n, body in sent.items()]
            for _ in sizes:
                body = await asked.bodies.get()
                assert (body.message, body.blob) == sent.pop(body.request)
                assert asked.room.used <= 8 * MIB
                body.done()
            await asyncio.gather(*sending)
            assert asked.room.used == 0

    run(play())


def test_a_body_waits_for_room_and_a_short_question_overtakes_it() -> None:
    async def play() -> None:
        async with pair(room=5 * MIB) as (asks, asked):
            first = asyncio.ensure_future(asks.link.send(Kind.ASK, 1, b"", bytes(4 * MIB)))
            held = await asked.bodies.get()
            await first
            second = asyncio.ensure_future(asks.link.send(Kind.ASK, 2, b"", bytes(4 * MIB)))
            await asks.link.send(Kind.ASK, 3, b"short")
            assert (await asked.bodies.get()).message == b"short"
            assert not second.done()
            held.done()
            assert (await asked.bodies.get()).request == 2
            await second

    run(play())


def test_what_is_dropped_on_either_side_gives_its_room_back() -> None:
    async def play() -> None:
        async with pair(room=5 * MIB) as (asks, asked):
            for request in range(1, 40):
                sending = asyncio.ensure_future(asks.link.send(Kind.ASK, request, b"", bytes(4 * MIB)))
                await asyncio.sleep(0)
                if request % 2:
                    await until(lambda: asked.room.used or not asked.bodies.empty())
                sending.cancel()
                await asyncio.wait([sending])
            await asks.link.send(Kind.ASK, 99, b"last")
            while (body := await asked.bodies.get()).request != 99:
                body.done()
            await until(lambda: asked.room.used == 0)

    run(play())


def test_what_is_too_large_or_too_much_is_dropped_before_it_is_sent() -> None:
    async def play() -> None:
        async with pair(room=MIB) as (asks, asked):
            with pytest.raises(Dropped):
                await asks.link.send(Kind.ASK, 1, b"", bytes(BLOB_MAX + 1))
            for request in range(BODIES_MAX):
                await asks.link.send(Kind.ASK, 10 + request, b"x")
            await asks.link.send(Kind.ASK, 50, b"one too many")
            await until(lambda: 50 in asks.drops)
            assert asked.bodies.qsize() == BODIES_MAX

    run(play())


def test_parts_out_of_order_or_without_credit_are_dropped_and_harm_nothing_else() -> None:
    async def play() -> None:
        async with pair() as (asks, asked):
            for frame in (
                Frame(Kind.ASK, NONCE, 1, b"x" * 10, 0, 0, 100),  # larger than itself, without credit
                Frame(Kind.ASK, NONCE, 2, b"", 0, 0, 100_000),
                Frame(Kind.ASK, NONCE, 2, b"x" * 10, 50, 0, 100_000),
                Frame(Kind.ASK, NONCE, 3, b"rest", 70_000, 0, 100_000),
                Frame(Kind.CREDIT, NONCE, 77),
                Frame(Kind.ANSWER, NONCE, 4, b"", 0, 0, 0),
            ):
                asks.writer.write(b"".join(encode(frame)))
            await asks.link.send(Kind.ASK, 9, b"good")
            assert (await asked.bodies.get()).message == b"good"
            await until(lambda: asks.drops == [1, 2])
            assert asked.room.used == 0

    run(play())


def test_a_session_that_is_not_known_is_told_so_and_its_bodies_never_arrive() -> None:
    async def play() -> None:
        async with pair(greet=False) as (asks, asked):
            asks.link.begin_session(NONCE)
            await asks.link.send(Kind.ASK, 1, b"of another life")
            await until(lambda: asks.resets == 1)
            asks.link.hello(b"87654321", b"{}")
            await asks.link.send(Kind.ASK, 2, b"known")
            assert (await asked.bodies.get()).message == b"known"

    run(play())


def test_a_new_session_ends_what_the_old_one_sent_and_gives_its_room_back() -> None:
    async def play() -> None:
        async with pair(room=5 * MIB) as (asks, asked):
            asks.writer.write(b"".join(encode(Frame(Kind.ASK, NONCE, 1, b"", 0, 0, 4 * MIB))))
            await until(lambda: asked.room.used == 4 * MIB)
            asks.link.hello(b"87654321", b"{}")
            await until(lambda: asked.room.used == 0)
            await asks.link.send(Kind.ASK, 1, b"", bytes(4 * MIB))
            assert len((await asked.bodies.get()).blob) == 4 * MIB

    run(play())


def test_who_asks_without_end_and_reads_nothing_is_cut_off() -> None:
    async def play() -> None:
        async with pair(greet=False) as (asks, asked):
            asks.running.cancel()
            asks.link.hello(NONCE, b"{}")
            refused = b"".join(encode(Frame(Kind.ASK, NONCE, 1, b"", 0, 0, BLOB_MAX + 1))) * 1000
            written = 0
            while not asked.running.done():
                asks.writer.write(refused)
                written += len(refused)
                assert written < 20 * FLOOD
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asks.writer.drain()
            with pytest.raises(Broken):
                await asked.running

    run(play())


def test_whoever_needs_no_room_does_not_wait_behind_those_who_do() -> None:
    async def play() -> None:
        room = Room(10)
        await room.take(10)
        waiting = asyncio.ensure_future(room.take(5))
        await asyncio.sleep(0)
        await room.take(0)
        assert not waiting.done()
        room.give(10)
        await waiting
        assert room.used == 5

    run(play())
