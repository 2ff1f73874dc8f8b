"""A host's end of channels as a process of its own, to be measured and killed: ``STATE WANT URL``.

A line to its input asks for the most memory that it had; before that it looks at WANT again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from tests.guest_cloud import HOST
from tests.guest_sender import peak, say
from tests.guest_site import HostEnd
from unstuck.core.server.data import Want
from unstuck.host.client import HttpControl
from unstuck.host.guestclient import HttpDatabase
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort


async def host(state: Path, path: Path, url: str) -> None:
    want = read(path)
    port = AsyncPort(Barriers.from_environment(state))
    end = HostEnd(port, state, HttpDatabase(HttpControl(url, HOST, "secret")))
    end.machine = want.spec.machine
    running = asyncio.ensure_future(port.run({}))

    def hear() -> None:
        os.read(0, 100)
        end.service.hold(read(path))
        say(peak=peak())

    end.service.hold(want)
    say(started=os.getpid(), peak=peak())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
    await running


def read(path: Path) -> Want:
    return msgspec.json.decode(path.read_bytes(), type=Want)


if __name__ == "__main__":
    asyncio.run(host(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
