"""The guest's end of its channel.

It connects by itself, again and again, and says hello after each new connection and whenever the host does
not know the session (a new host agent behind a virtio port, which shows no new connection).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from unstuck.core.instance.guestwire import (
    Fetch,
    FetchLog,
    Finish,
    Hello,
    KeepChunk,
    KeepEnd,
    Look,
    NotNow,
    Refused,
    Request,
    Response,
    Store,
    Welcome,
)
from unstuck.guest.control import Away
from unstuck.guest.stream import open_way
from unstuck.runtime.framing import NONCE, Kind
from unstuck.runtime.link import BLOB_MAX, MESSAGE_MAX, Body, Broken, Dropped, Handler, Link
from unstuck.runtime.room import Room

ANSWER: Final = 30.0
"""Seconds for an answer; a look has its own wait besides."""
BULK: Final = 300.0
"""Seconds for what goes to a blob store: the host answers long before, also when that does not."""
GREETING: Final = 20.0
"""Seconds for the answer to a hello; then it is said again."""
AGAIN: Final = 0.1
AGAIN_MAX: Final = 2.0
ROOM: Final = MESSAGE_MAX + BLOB_MAX
"""Bytes of answers that come in at the same time; more of them wait at the host."""
_NUMBERS: Final = 2**32

log = structlog.get_logger(__name__)

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Response] = msgspec.json.Decoder(Response)


class Channel(Handler):
    """Implements :class:`unstuck.guest.control.GuestControl`. ``run`` keeps it connected.

    ``path`` is a unix socket or a virtio port; ``answer`` and ``bulk`` are seconds for an answer.
    """

    def __init__(self, path: Path, *, answer: float = ANSWER, bulk: float = BULK) -> None:
        self._path = path
        self._seconds = answer
        self._bulk = bulk
        self._room = Room(ROOM)
        self._hello: Hello | None = None
        self._call = asyncio.Event()
        """Hello is to be said (again)."""
        self._greeting: asyncio.Future[Response] | None = None
        self._waiting: list[asyncio.Future[Response]] = []
        """Who asked the hello that is to be answered."""
        self._link: Link | None = None
        self._session = asyncio.Event()
        """The host has welcomed us over this link, or refused us for good."""
        self._refusal: Refused | None = None
        self._asked: dict[int, asyncio.Future[tuple[Response, bytes]]] = {}
        self._times: dict[str, set[asyncio.Timeout]] = {}
        """How long what is asked for an attempt is waited for, by the attempt's nonce."""
        self._number = 0

    # --- GuestControl

    async def ask(self, request: Request, blob: bytes = b"") -> tuple[Response, bytes]:
        try:
            async with asyncio.timeout(self._time_for(request)) as time:
                if isinstance(request, Hello):
                    return await self._say(request), b""
                with self._forgettable(request, time):
                    await self._session.wait()
                    if self._refusal is not None:
                        return self._refusal, b""
                    return await self._exchange(request, blob)
        except TimeoutError:
            raise Away("the host did not answer in time") from None
        except (Dropped, OSError) as error:
            raise Away(f"the connection to the host broke: {error}") from error

    def forget(self, nonce: str) -> None:
        now = asyncio.get_running_loop().time()
        for time in self._times.pop(nonce, ()):
            time.reschedule(now)

    @contextlib.contextmanager
    def _forgettable(self, request: Request, time: asyncio.Timeout) -> Iterator[None]:
        if not isinstance(request, Store | Finish):
            yield
            return
        self._times.setdefault(request.nonce, set()).add(time)
        try:
            yield
        finally:
            times = self._times.get(request.nonce, set())
            times.discard(time)
            if not times:
                self._times.pop(request.nonce, None)

    def _time_for(self, request: Request) -> float:
        match request:
            case Look():
                return self._seconds + max(request.wait, 0.0)
            case Store() | Finish() | Fetch() | FetchLog() | KeepChunk() | KeepEnd():
                return self._bulk
            case _:
                return self._seconds

    async def _say(self, hello: Hello) -> Response:
        self._hello = hello
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._refusal = None
        self._session.clear()
        self._call.set()
        return await answer

    async def _exchange(self, request: Request, blob: bytes) -> tuple[Response, bytes]:
        link = self._link
        assert link is not None
        number = self._number = self._number % (_NUMBERS - 1) + 1
        answer: asyncio.Future[tuple[Response, bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            sending = asyncio.ensure_future(link.send(Kind.ASK, number, _encode(request), blob))
            sending.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A repeat is answered before all of it was sent, so wait for both at once.
            try:
                await asyncio.wait((sending, answer), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    await sending
                return await answer
            finally:
                sending.cancel()
        finally:
            del self._asked[number]
            if not answer.done() or answer.cancelled():
                link.drop(number)

    # --- the connection

    async def run(self) -> None:
        """Keep connected, for ever."""
        pause = AGAIN
        while True:
            try:
                wire, dirty = await open_way(self._path)
            except OSError as error:
                log.info("no way to the host", path=str(self._path), reason=error.strerror or str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, AGAIN_MAX)
                continue
            if await self._serve(Link(wire, self._room, Kind.ANSWER, self), dirty):
                pause = AGAIN
            await asyncio.sleep(pause)
            pause = min(pause * 2, AGAIN_MAX)

    async def _serve(self, link: Link, dirty: bool) -> bool:
        """Until this connection ends; whether anybody welcomed us over it."""
        self._link = link
        if dirty:
            link.pad()
        self._call.set()
        greeter = asyncio.ensure_future(self._greet(link))
        welcomed = False
        try:
            await link.run()
        except (OSError, Broken):
            pass
        finally:
            welcomed = self._session.is_set()
            greeter.cancel()
            self._lose("the connection to the host ended")
            self._link = None
            await link.close()
        return welcomed

    async def _greet(self, link: Link) -> None:
        """Say hello whenever it is called for, until it is answered with yes or no."""
        while True:
            await self._call.wait()
            self._call.clear()
            if self._hello is None or self._refusal is not None:
                continue
            self._lose("a new session begins")
            greeting = self._greeting = asyncio.get_running_loop().create_future()
            link.hello(secrets.token_bytes(NONCE), _encode(self._hello))
            try:
                async with asyncio.timeout(GREETING):
                    said = await greeting
            except TimeoutError:
                self._call.set()
                continue
            self._hear(said)
            if isinstance(said, NotNow):
                await asyncio.sleep(min(max(said.seconds, AGAIN), 60.0))
                self._call.set()

    def _hear(self, said: Response) -> None:
        if isinstance(said, Refused):
            self._refusal = said
        if isinstance(said, Refused | Welcome):
            self._session.set()
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            if not answer.done():
                answer.set_result(said)

    def _lose(self, why: str) -> None:
        """What is not answered will not be."""
        if self._refusal is None:
            self._session.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Away(why))

    # --- what comes

    def wants(self, request: int) -> bool:
        return request in self._asked or (request == 0 and self._greeting is not None)

    def body(self, body: Body) -> None:
        waiting = self._asked.get(body.request)
        try:
            said = _decoder.decode(body.message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = NotNow("fault", "the host's answer cannot be read")
        body.done()
        if body.request == 0:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_result(said)
        elif waiting is not None and not waiting.done():
            if isinstance(said, Refused) and said.code == "superseded":
                self._refusal = said
            waiting.set_result((said, body.blob))

    def dropped(self, request: int) -> None:
        waiting = self._asked.get(request)
        if waiting is not None and not waiting.done():
            waiting.set_exception(Away("the host did not take it"))

    def reset(self) -> None:
        self._call.set()
