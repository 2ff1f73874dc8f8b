"""A guest's end of a channel as a process of its own, to be measured and killed: no more than a guest has.

``SOCKET PIECES AT_ONCE [NONCE [KINDS [DEATH]]]``; prints what it does, line by line. With ``DEATH`` it kills
itself after so many pieces, while others are on their way.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from unstuck.core.backup.content import Chunk, Content, Datastore, Position
from unstuck.core.instance.guestwire import Done, Finish, Hello, NotNow, Request, Response, Store, Take
from unstuck.guest.channel import Channel
from unstuck.guest.control import Away

PIECE = 4 << 20
KINDS = 8
"""Different pieces that are sent again and again: making them is not what is measured."""


def say(**words: object) -> None:
    print(msgspec.json.encode(words).decode(), flush=True)


def peak() -> int:
    """The most memory of this process so far, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


async def patiently(channel: Channel, request: Any, blob: bytes = b"") -> Response:
    """As an agent asks: again, after there was no answer."""
    while True:
        try:
            return (await channel.ask(request, blob))[0]
        except Away:
            await asyncio.sleep(0.05)


def content_of(pieces: list[tuple[Chunk, bytes]], size: int) -> Content:
    chunks = tuple(chunk for chunk, _ in pieces)
    return Content(
        datastore=Datastore("postgresql", "15", "15.8"), system_identifier="7", start=Position(1, "0/1"),
        stop=Position(1, "0/2"), chunk_size=size, size=sum(chunk.length for chunk in chunks), chunks=chunks,
    )  # fmt: skip


def pieces(count: int, most: int = KINDS) -> list[tuple[Chunk, bytes]]:
    kinds = [os.urandom(PIECE) for _ in range(min(most, count))]
    made = [(hashlib.sha256(kind).hexdigest(), kind) for kind in kinds]
    turns = [(index, *made[index % len(made)]) for index in range(count)]
    return [(Chunk(index, PIECE, digest, PIECE, digest), kind) for index, digest, kind in turns]


async def guest(
    path: Path, count: int, at_once: int, nonce: str = "n1", most: int = KINDS, death: int = 0
) -> None:
    made = pieces(count, most)
    channel = Channel(path)
    running = asyncio.ensure_future(channel.run())
    await persistently(channel, Hello(os.urandom(8).hex(), 1))
    await persistently(channel, Take("backup-1", nonce))
    say(taken=os.getpid(), peak=peak())
    began, free = time.monotonic(), asyncio.Semaphore(at_once)

    async def store(chunk: Chunk, sealed: bytes) -> None:
        try:
            await persistently(channel, Store(nonce, chunk), sealed)
            say(stored=chunk.index)
            if chunk.index + 1 == death:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            free.release()

    tasks = []
    for chunk, sealed in made:
        await free.acquire()
        tasks.append(asyncio.ensure_future(store(chunk, sealed)))
    await asyncio.gather(*tasks)
    seconds = time.monotonic() - began
    await persistently(channel, Finish(nonce, content_of(made, PIECE)))
    say(finished=seconds, peak=peak())
    running.cancel()


async def persistently(channel: Channel, request: Request, blob: bytes = b"") -> Response:
    """Until it is done; what is refused ends the process."""
    while isinstance(said := await patiently(channel, request, blob), NotNow):
        say(not_now=said.problem)
        await asyncio.sleep(min(said.seconds, 0.5))
    if not isinstance(said, Done) and not isinstance(request, Hello):
        raise SystemExit(f"refused: {said}")
    return said


if __name__ == "__main__":
    asyncio.run(
        guest(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:7]))
    )
