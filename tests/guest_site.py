"""A host's end of a channel, and guests' ends, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.guest_cloud import SERVER, GuestCloud, InProcess
from tests.guest_sender import content_of, patiently
from unstuck.blobs.chunks import Chunk, make_chunk
from unstuck.blobs.keys import recipient_of
from unstuck.core.instance.guestwire import Hello, Welcome
from unstuck.core.server.data import Machine
from unstuck.guest.channel import Channel
from unstuck.host.channel import ROOM_FOR_ALL, GuestChannel
from unstuck.host.control import DatabaseControl
from unstuck.host.guests import GuestService
from unstuck.host.pieces import Places
from unstuck.host.signing import load_signer
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.runtime.room import Room

__all__ = ["content_of", "patiently"]

T = TypeVar("T")


class Voice:
    """The agent of a host that has registered."""

    incarnation = 1
    history = "h"

    def __init__(self, port: AsyncPort, lease: float = 30.0) -> None:
        self._port = port
        self._sequence = 0
        self.lease = lease
        self.heartbeat = lease / 6

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    async def call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._port.effect(name, work)


def server_folder(state: Path) -> Path:
    """The server's folder, as its driver makes it."""
    folder = state / "servers" / SERVER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class HostEnd:
    """What a host's agent runs for its guests."""

    def __init__(
        self, port: AsyncPort, state: Path, control: DatabaseControl, *, lease: float = 30.0,
        places: Places | None = None, machine: Machine = Machine.CONTAINER,
    ) -> None:  # fmt: skip
        self.port = port
        self.voice = Voice(port, lease)
        self.within = Room(ROOM_FOR_ALL)
        self.machine = machine
        self.channel: GuestChannel | None = None
        opened = (places or Places()).at
        self.service = GuestService(
            port, control, self.voice, load_signer(state), opened, lambda server: state / "servers" / server,
            self._open,
        )  # fmt: skip

    def _open(self, service: GuestService, server_id: str, folder: Path, machine: Machine) -> GuestChannel:
        self.channel = GuestChannel(self.port, service, server_id, folder, self.machine, self.within)
        self.port.spawn("channel", self.channel.run())
        return self.channel


class Site:
    """One server on one host; host agents and guest agents come and go."""

    def __init__(self, tmp_path: Path, *, direct: bool = True) -> None:
        self.state = tmp_path / "host"
        self.folder = server_folder(self.state)
        self.cloud = GuestCloud(tmp_path / "objects", direct=direct)
        self.socket = self.folder / "channel" / "agent.sock"
        self.control = InProcess(self.cloud)

    @contextlib.asynccontextmanager
    async def host(self, **more: Any) -> AsyncIterator[HostEnd]:
        port = AsyncPort(Barriers("", self.state))
        end = HostEnd(port, self.state, self.control, **more)
        running = asyncio.ensure_future(port.run({}))
        end.service.hold(self.cloud.want())
        try:
            yield end
            assert not running.done(), "the host's agent has ended"
        finally:
            if end.channel is not None:
                end.channel.end()
            port.end(0)
            assert await running == 0

    @contextlib.asynccontextmanager
    async def guest(self, start: str = "", *, greet: bool = True, **more: Any) -> AsyncIterator[Channel]:
        channel = Channel(self.socket, **more)
        running = asyncio.ensure_future(channel.run())
        try:
            if greet:
                await greeted(channel, start)
            yield channel
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()


async def greeted(channel: Channel, start: str = "") -> Welcome:
    hello = Hello(start or secrets.token_hex(8), 1)
    said, _ = await channel.ask(hello)
    assert isinstance(said, Welcome), said
    return said


def pieces_of(cloud: GuestCloud, data: bytes, size: int) -> list[tuple[Chunk, bytes]]:
    """As the guest makes them."""
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    return [make_chunk(index, plain, recipient_of(cloud.identity)) for index, plain in enumerate(cut)]


def play(work: Callable[[], Awaitable[None]], seconds: float = 60.0) -> None:
    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(limited())


async def until(holds: Callable[[], Any]) -> None:
    while not holds():  # noqa: ASYNC110 (what it waits for sets no event)
        await asyncio.sleep(0.005)
