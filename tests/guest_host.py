"""A host's end of channels as a process of its own, to be measured and killed: ``STATE WANT URL``."""

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


async def host(state: Path, want: Want, url: str) -> None:
    port = AsyncPort(Barriers.from_environment(state))
    end = HostEnd(port, state, HttpDatabase(HttpControl(url, HOST, "secret")))
    end.machine = want.spec.machine
    running = asyncio.ensure_future(port.run({}))
    end.service.hold(want)
    say(started=os.getpid(), peak=peak())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: (os.read(0, 100), say(peak=peak())))
    await running


if __name__ == "__main__":
    wanted = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Want)
    asyncio.run(host(Path(sys.argv[1]), wanted, sys.argv[3]))
