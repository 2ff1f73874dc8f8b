"""The serial ports of this host's guests, for as long as somebody looks at one.

QEMU serves one client at each port, so one connection is held here for all who look at a guest at a time. It
is always read, whatever they do: a port whose client does not read holds up what the guest writes to it.
Who reads too slowly loses the oldest, and is told so. Nothing here can hold a guest: its process ends when
it is told to, and with that its consoles.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from unstuck.core.agents import Answer, Ask
from unstuck.core.console import PER_SERVER, SerialAsk, SerialSaid
from unstuck.core.port import Port
from unstuck.core.server.data import Fence, Machine, Power, Want
from unstuck.host.control import Superseded, Unreachable
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.sight import find_process

CHUNK: Final = 16 * 1024
WAITING_MAX: Final = 256 * 1024
"""Bytes that wait for one who reads slowly."""
PER_HOST: Final = 64
CONNECT: Final = 2.0
TAKE: Final = 10.0
"""Seconds for which a guest may not take what is typed; a paused one takes nothing."""

NO_PORT: Final = (
    "its guest was started by a former version, without a serial port that can be opened; after a hard "
    "reboot (`openstack server reboot --hard`) there is one"
)
ENDED: Final = "the serial port was closed: the server was stopped, started anew or removed"

log = structlog.get_logger(__name__)


class NoSerial(Exception):
    """The port cannot be opened; the message is for the user."""


class Viewer:
    """One who looks at a guest's serial port."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._skipped = 0
        self._news = asyncio.Event()
        self.ended = False

    def offer(self, data: bytes) -> None:
        """Never waits: where there is no room, the oldest goes."""
        self._waiting += data
        over = len(self._waiting) - WAITING_MAX
        if over > 0:
            del self._waiting[:over]
            self._skipped += over
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def take(self) -> bytes:
        """What has come; empty at the end."""
        while not self._waiting and not self.ended:
            self._news.clear()
            await self._news.wait()
        if self._skipped:
            note = f"\r\n[{self._skipped} bytes were written faster than they were read]\r\n"
            self._skipped = 0
            return note.encode()
        data = bytes(self._waiting[:CHUNK])
        del self._waiting[:CHUNK]
        return data


class Line:
    """The one connection to a guest's port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fence: Fence) -> None:
        self.fence = fence
        self.viewers: set[Viewer] = set()
        self._reader = reader
        self._writer = writer
        self._typing = asyncio.Lock()

    async def read(self) -> None:
        """Until the port is closed, by either side."""
        with contextlib.suppress(OSError):
            while data := await self._reader.read(CHUNK):
                for viewer in self.viewers:
                    viewer.offer(data)
        self.close()

    async def type(self, data: bytes) -> None:
        """Raises :class:`NoSerial` where the guest takes nothing, and OSError where the port is closed."""
        try:
            async with asyncio.timeout(TAKE), self._typing:
                self._writer.write(data)
                await self._writer.drain()
        except TimeoutError:
            raise NoSerial("the guest takes no input: it is paused, or it hangs") from None

    def close(self) -> None:
        self._writer.transport.abort()  # what it did not take by now it need not get
        for viewer in self.viewers:
            viewer.end()


async def open_port(folder: ServerFolder) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises :class:`NoSerial`. By way of the folder's descriptor: a unix path is limited to 107 bytes."""
    try:
        async with asyncio.timeout(CONNECT):
            descriptor = os.open(folder.path, os.O_PATH | os.O_CLOEXEC)
            try:
                short = f"/proc/self/fd/{descriptor}/{folder.serial.name}"
                return await asyncio.open_unix_connection(short, limit=CHUNK)
            finally:
                os.close(descriptor)
    except TimeoutError:
        raise NoSerial("its serial port does not answer") from None
    except (FileNotFoundError, ConnectionRefusedError):
        runs = await asyncio.to_thread(find_process, folder)
        raise NoSerial(NO_PORT if runs is not None else "it does not run") from None
    except OSError as error:
        raise NoSerial(f"its serial port cannot be opened: {error.strerror or error}") from None


class Voice(Protocol):
    """What of the agent is needed here."""

    @property
    def incarnation(self) -> int: ...

    def want_of(self, server_id: str) -> Want | None:
        """What is wanted of a server; None where it is not this host's."""
        ...

    async def call(self, name: str, work: Callable[[], Awaitable[None]]) -> None: ...


class Way(Protocol):
    """The way to the control plane."""

    async def answer(self, ask_id: str, answer: Answer) -> None: ...

    async def carry(self, ask_id: str, seconds: float, viewer: Viewer, type_: Typing) -> None:
        """Bring one viewer's stream there, and pass on both ways until one end has gone.

        Raises :class:`Unreachable` where it did not get there within ``seconds``."""
        ...


Typing = Callable[[bytes], Awaitable[None]]


class Serials:
    """Answers what is asked about serial ports. ``folder_of`` names a server's folder."""

    def __init__(self, port: Port, way: Way, voice: Voice, host_dir: Path) -> None:
        self._port = port
        self._way = way
        self._voice = voice
        self._host_dir = host_dir
        self._lines: dict[str, Line] = {}
        self._opening = asyncio.Lock()

    def ask(self, ask: Ask) -> None:
        self._port.spawn(f"console {ask.id}", self._serve(ask))

    def hold(self, want: Want) -> None:
        """The newest that is wanted of a server: its consoles belong to the grant they were opened under."""
        line = self._lines.get(want.server_id)
        if line is not None and (want.gone or line.fence != want.fence):
            line.close()

    def forget(self, server_id: str) -> None:
        line = self._lines.get(server_id)
        if line is not None:
            line.close()

    async def _serve(self, ask: Ask) -> None:
        try:
            await self._do(ask)
        except NoSerial as error:
            await self._say(ask.id, SerialSaid(False, str(error)))
        except Unreachable as error:
            log.info("a console was not brought to the control plane", server=ask.server_id, error=str(error))
        except Superseded:
            raise
        except Exception:
            log.exception("a console failed", server=ask.server_id)

    async def _do(self, ask: Ask) -> None:
        wanted = msgspec.json.decode(ask.argument, type=SerialAsk)
        folder = self._folder(ask.server_id, wanted.fence)
        if wanted.open:
            await self._show(ask, folder, wanted.fence)
            return
        if ask.server_id not in self._lines:
            _, writer = await open_port(folder)
            writer.transport.abort()
        await self._say(ask.id, SerialSaid(True))

    def _folder(self, server_id: str, fence: Fence) -> ServerFolder:
        want = self._voice.want_of(server_id)
        if want is None or want.fence != fence or want.gone:
            raise NoSerial("it is not on this host any more")
        if want.spec.data or want.spec.machine is not Machine.VM:
            raise NoSerial("it is a database, which has no console")
        if want.power not in (Power.ON, Power.PAUSED):
            raise NoSerial("it does not run")
        try:
            return ServerFolder(self._host_dir, server_id)
        except DriverError as error:
            raise NoSerial(str(error)) from None

    async def _say(self, ask_id: str, said: SerialSaid) -> None:
        answer = Answer(self._voice.incarnation, msgspec.json.encode(said).decode())
        with contextlib.suppress(Unreachable):  # the question has a deadline, and its asker hears of it
            await self._voice.call("control.answer", lambda: self._way.answer(ask_id, answer))

    async def _show(self, ask: Ask, folder: ServerFolder, fence: Fence) -> None:
        line = await self._line(folder, fence)
        viewer = Viewer()
        line.viewers.add(viewer)
        try:
            await self._way.carry(ask.id, ask.seconds, viewer, line.type)
        finally:
            line.viewers.discard(viewer)
            if not line.viewers:
                line.close()

    async def _line(self, folder: ServerFolder, fence: Fence) -> Line:
        """The connection to this guest's port with room for one more; made where there is none."""
        async with self._opening:
            line = self._lines.get(folder.server_id)
            if line is not None and len(line.viewers) >= PER_SERVER:
                raise NoSerial(f"{PER_SERVER} consoles of it are open, which is all that there may be")
            if sum(len(one.viewers) for one in self._lines.values()) >= PER_HOST:
                raise NoSerial(f"{PER_HOST} consoles are open on its host, which is all that there may be")
            if line is None:
                reader, writer = await open_port(folder)
                line = self._lines[folder.server_id] = Line(reader, writer, fence)
                self._port.spawn(f"serial port of {folder.server_id}", self._read(folder.server_id, line))
            return line

    async def _read(self, server_id: str, line: Line) -> None:
        try:
            await line.read()
        finally:
            if self._lines.get(server_id) is line:
                del self._lines[server_id]
