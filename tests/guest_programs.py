"""A host's end and a guest's end of a channel as processes of their own, to be measured and killed.

``host STATE WANT URL`` and ``guest SOCKET PIECES AT_ONCE [NONCE]``; both print what they do, line by line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

from tests.guest_cloud import HOST
from tests.guest_site import HostEnd, content_of, patiently
from unstuck.blobs.chunks import Chunk
from unstuck.blobs.objects import sha256
from unstuck.core.instance.guestwire import Done, Finish, Hello, NotNow, Request, Response, Store, Take
from unstuck.core.server.data import Want
from unstuck.guest.channel import Channel
from unstuck.host.client import HttpControl
from unstuck.host.guestclient import HttpDatabase
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort

PIECE = 4 << 20
KINDS = 8
"""Different pieces that are sent again and again: making them is not what is measured."""


def say(**words: object) -> None:
    print(msgspec.json.encode(words).decode(), flush=True)


def peak() -> int:
    """The most memory of this process so far, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


async def host(state: Path, want: Want, url: str) -> None:
    port = AsyncPort(Barriers.from_environment(state))
    end = HostEnd(port, state, HttpDatabase(HttpControl(url, HOST, "secret")))
    end.machine = want.spec.machine
    running = asyncio.ensure_future(port.run({}))
    end.service.hold(want)
    say(started=os.getpid(), peak=peak())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: (os.read(0, 100), say(peak=peak())))
    await running


def pieces(count: int) -> list[tuple[Chunk, bytes]]:
    kinds = [os.urandom(PIECE) for _ in range(min(KINDS, count))]
    digests = [sha256(kind) for kind in kinds]
    return [
        (Chunk(index, PIECE, digests[index % KINDS], PIECE, digests[index % KINDS]), kinds[index % KINDS])
        for index in range(count)
    ]


async def guest(path: Path, count: int, at_once: int, nonce: str = "n1") -> None:
    made = pieces(count)
    channel = Channel(path)
    running = asyncio.ensure_future(channel.run())
    await persistently(channel, Hello(os.urandom(8).hex(), 1))
    await persistently(channel, Take("backup-1", nonce))
    say(taken=os.getpid(), peak=peak())
    began, free, longest = time.monotonic(), asyncio.Semaphore(at_once), 0.0

    async def store(chunk: Chunk, sealed: bytes) -> None:
        try:
            await persistently(channel, Store(nonce, chunk), sealed)
            say(stored=chunk.index)
        finally:
            free.release()

    tasks = []
    for chunk, sealed in made:
        await free.acquire()
        tasks.append(asyncio.ensure_future(store(chunk, sealed)))
    await asyncio.gather(*tasks)
    seconds = time.monotonic() - began
    await persistently(channel, Finish(nonce, content_of(made, PIECE)))
    say(finished=seconds, peak=peak(), longest=longest)
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
    if sys.argv[1] == "host":
        wanted = msgspec.json.decode(Path(sys.argv[3]).read_bytes(), type=Want)
        asyncio.run(host(Path(sys.argv[2]), wanted, sys.argv[4]))
    else:
        asyncio.run(guest(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]))
