"""The host's end of the channels: one for each guest with an agent in it.

Who asks follows from the channel: the folder of the server in which its socket lies. A container connects to
a socket of ours; a VM's port is a socket of QEMU, to which we connect. One connection at a time is listened
to: the one that was welcomed last. All that comes is untrusted: it is bounded in size and number, and what
no peer of ours does ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections import deque
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from unstuck.blobs.chunks import CHUNK_SIZE
from unstuck.core.instance.guestwire import (
    AskLog,
    AskRestore,
    Fetch,
    FetchLog,
    Hello,
    NotNow,
    Refused,
    Request,
    Response,
    Store,
    Welcome,
)
from unstuck.core.port import Port
from unstuck.core.server.data import Machine
from unstuck.host.control import Superseded
from unstuck.runtime.framing import Kind
from unstuck.runtime.link import Body, Broken, Dropped, Handler, Link
from unstuck.runtime.room import Room
from unstuck.runtime.wire import Wire, connect, serve

FOLDER: Final = "channel"
AGENT_SOCKET: Final = "agent.sock"
"""In a container's channel folder: the agent in it connects here."""
VM_SOCKET: Final = "vm.sock"
"""In a VM's: QEMU's end of the port."""
ROOM: Final = 12 << 20
"""Bytes of large bodies that one guest may have with us at a time."""
ROOM_FOR_ALL: Final = 64 << 20
LARGE_ANSWER: Final = CHUNK_SIZE + (64 << 10)
CONNECTIONS: Final = 4
UNREAD: Final = 120.0
"""Seconds that an answer may wait for its guest to read it."""
AGAIN: Final = 0.2
AGAIN_MAX: Final = 2.0
_OVER: Final = 64

log = structlog.get_logger(__name__)
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_encode = msgspec.json.Encoder().encode


class Service(Protocol):
    """Who answers (``host/guests.py``)."""

    async def hello(self, server_id: str, hello: Hello) -> Welcome | Refused | NotNow: ...

    async def answer(
        self, server_id: str, incarnation: int, request: Request, blob: bytes
    ) -> tuple[Response, bytes]: ...


class Session(Handler):
    """One connection, and who was welcomed over it."""

    def __init__(self, channel: GuestChannel, wire: Wire) -> None:
        self._channel = channel
        self.link = Link(wire, channel.room, Kind.ASK, self)
        self.start = ""
        self.incarnation = 0
        self._arrived: set[int] = set()
        """Requests that nobody has begun to answer."""
        self._objects: dict[int, asyncio.Task[Any]] = {}
        """Who waits for a store of objects, by the request's number."""

    async def run(self) -> None:
        """Until the other side closes, or misbehaves."""
        try:
            await self.link.run()
        except Broken as error:
            log.warning("a guest is cut off", server=self._channel.server_id, reason=str(error))
        except OSError:
            pass
        finally:
            self.incarnation = 0
            self._nobody_waits()
            await self.link.close()

    def hello(self, nonce: bytes, message: bytes) -> None:
        self.link.begin_session(nonce)
        self.incarnation = 0
        self._nobody_waits()
        self._channel.spawn("hello", self._greet(nonce, message))

    async def _greet(self, nonce: bytes, message: bytes) -> None:
        said: Response
        try:
            hello = msgspec.json.decode(message, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError):
            hello = None
        if not isinstance(hello, Hello):
            said = Refused("protocol", "the hello cannot be read")
        else:
            said = await self._channel.greet(hello)
            if self.link.nonce == nonce and isinstance(said, Welcome):
                self._channel.welcomed(self, hello.start)
                self.incarnation = said.incarnation
        if self.link.nonce == nonce:
            await self.send(0, said)

    def wants(self, request: int) -> bool:  # noqa: ARG002
        return self.incarnation > 0

    def dropped(self, request: int) -> None:
        """What nobody waits for any more makes room for the next one, also while its store hangs."""
        self._arrived.discard(request)
        task = self._objects.pop(request, None)
        if task is not None:
            task.cancel()

    def _nobody_waits(self) -> None:
        for request in {*self._arrived, *self._objects}:
            self.dropped(request)

    def body(self, body: Body) -> None:
        self._arrived.add(body.request)
        self._channel.spawn("answer", self._answer(self.link.nonce, body))

    async def _answer(self, nonce: bytes, body: Body) -> None:
        """Its room, and that of a large answer, is held until the guest has read the answer."""
        try:
            if body.request not in self._arrived:
                return
            self._arrived.discard(body.request)
            request = self._read(body.message)
            room = LARGE_ANSWER if isinstance(request, Fetch | FetchLog | AskRestore | AskLog) else 0
            with self._cancellable(request, body.request):
                await self._channel.room.take(room)
                try:
                    said, blob = await self._said(request, body.blob)
                    if self.link.nonce == nonce:
                        await self.send(body.request, said, blob)
                finally:
                    self._channel.room.give(room)
        finally:
            body.done()

    @contextlib.contextmanager
    def _cancellable(self, request: Request | Refused, number: int) -> Iterator[None]:
        task = asyncio.current_task()
        if task is None or not isinstance(request, Store | Fetch):
            yield
            return
        self._objects[number] = task
        try:
            yield
        finally:
            if self._objects.get(number) is task:
                del self._objects[number]

    def _read(self, message: bytes) -> Request | Refused:
        try:
            return _decoder.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Refused("invalid", f"the request cannot be read: {str(error)[:200]}")

    async def _said(self, request: Request | Refused, blob: bytes) -> tuple[Response, bytes]:
        if isinstance(request, Refused):
            return request, b""
        if isinstance(request, Hello):
            return Refused("invalid", "a hello begins a session of its own"), b""
        return await self._channel.answer(self.incarnation, request, blob)

    async def send(self, request: int, said: Response, blob: bytes = b"") -> None:
        try:
            async with asyncio.timeout(UNREAD):
                await self.link.send(Kind.ANSWER, request, _encode(said), blob)
        except (TimeoutError, Dropped, OSError):
            return  # whoever asked has gone, or asks again


class GuestChannel:
    """The channel of one server; ``run`` until ``end``."""

    def __init__(
        self, port: Port, service: Service, server_id: str, folder: Path, machine: Machine, within: Room
    ) -> None:
        self._port = port
        self._service = service
        self.server_id = server_id
        self.room = Room(ROOM, within)
        self._folder = folder / FOLDER
        self._machine = machine
        self._key = f"channel {server_id}"
        self._ended = False
        self._sessions: list[Session] = []
        self._current: Session | None = None
        self._start = ""
        self._over: deque[str] = deque(maxlen=_OVER)
        """Starts of processes that a newer one has taken the place of."""

    def end(self) -> None:
        """The server has gone from this host."""
        self._ended = True
        self._close_all()
        self._port.wake(self._key)

    async def run(self) -> None:
        pause = AGAIN
        while not self._ended:
            try:
                if self._machine is Machine.CONTAINER:
                    await self._listen()
                else:
                    await self._connect()
                pause = AGAIN
            except OSError as error:
                log.debug("no channel", server=self.server_id, error=str(error))
                pause = min(pause * 2, AGAIN_MAX)
            if not self._ended:
                await self._port.pause(pause, self._key)

    # --- containers

    async def _listen(self) -> None:
        """Listen in the channel's folder, as long as it is the one that is there."""
        with _entered(make_folder(self._folder.parent)) as inside:
            server = listening(inside, AGENT_SOCKET)
            ours = (inside / AGENT_SOCKET).stat()
        taking = asyncio.ensure_future(serve(server, self._accept))
        try:
            while not self._ended and not taking.done() and _same(self._folder / AGENT_SOCKET, ours):
                await self._port.pause(AGAIN_MAX, self._key)
            if taking.done():
                taking.result()
        finally:
            taking.cancel()
            server.close()
            self._close_all()

    def _accept(self, wire: Wire) -> None:
        """The newest may speak: a connection that nobody uses never locks out the next one."""
        waiting = [session for session in self._sessions if session is not self._current]
        for session in waiting[: max(len(waiting) - CONNECTIONS + 2, 0)]:
            session.link.abort()
        session = Session(self, wire)
        self.spawn("connection", self._serve(session))

    # --- VMs

    async def _connect(self) -> None:
        with _entered(self._folder) as inside:
            wire = await connect(str(inside / VM_SOCKET))
        session = Session(self, wire)
        session.link.pad()
        session.link.ask_for_hello()
        await self._serve(session)

    # --- sessions

    async def _serve(self, session: Session) -> None:
        self._sessions.append(session)
        try:
            await session.run()
        finally:
            self._sessions.remove(session)
            if self._current is session:
                self._current = None

    def _close_all(self) -> None:
        for session in self._sessions:
            session.link.abort()

    async def greet(self, hello: Hello) -> Welcome | Refused | NotNow:
        if hello.start in self._over:
            return Refused("superseded", "a newer process of the agent has come")
        try:
            return await self._service.hello(self.server_id, hello)
        except Superseded:
            raise
        except Exception:
            log.exception("hello failed", server=self.server_id)
            return NotNow("fault", "the host has a fault", 5.0)

    def welcomed(self, session: Session, start: str) -> None:
        """From now on this one is listened to."""
        if self._start and self._start != start:
            self._over.append(self._start)
        old, self._current, self._start = self._current, session, start
        was, session.start = session.start, start
        if old is not None and old is not session:
            self.spawn("dismissal", self._dismiss(old, told=old.start != start))
        elif was and was != start:
            log.info("another process of the agent speaks over the same port", server=self.server_id)

    async def _dismiss(self, session: Session, told: bool) -> None:
        session.incarnation = 0
        if told:
            await session.send(0, Refused("superseded", "a newer process of the agent has come"))
        await session.link.close()

    async def answer(self, incarnation: int, request: Request, blob: bytes) -> tuple[Response, bytes]:
        if not incarnation:
            return Refused("superseded", "a newer process of the agent has come"), b""
        try:
            return await self._service.answer(self.server_id, incarnation, request, blob)
        except Superseded:
            raise
        except Exception:
            # A fault of ours in what one guest asks stops no other guest (law 8).
            log.exception("answer failed", server=self.server_id, request=type(request).__name__)
            return NotNow("fault", "the host has a fault", 5.0), b""

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        self._port.spawn(f"{what} {self.server_id}", work)


@contextlib.contextmanager
def _entered(folder: Path) -> Iterator[Path]:
    """A short way into the folder: a socket's path has 107 bytes at most."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


def make_folder(server: Path) -> Path:
    """The channel's folder, for whoever comes first, driver or channel. What protects it is the folder that
    it lies in; a container's agent, which sees it alone, is another user."""
    folder = server / FOLDER
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o711)
    return folder


def listening(folder: Path, name: str) -> socket.socket:
    """A socket that listens under this name, in place of one that may be left from a predecessor."""
    for part in folder.glob(f".{name}.*"):
        part.unlink(missing_ok=True)
    part = folder / f".{name}.{secrets.token_hex(4)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.bind(str(part))
        part.chmod(0o666)
        made.listen(16)
        part.rename(folder / name)  # whoever connects finds the old one or this one
    except OSError:
        made.close()
        raise
    return made


def _same(path: Path, as_of: os.stat_result) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (as_of.st_dev, as_of.st_ino)
