"""Bodies over frames: a message and a blob that arrive whole, in both directions, several at once.

A body that fits into one frame just comes. Of a larger one only the lengths come; the rest waits for credit,
which the receiver gives when it has room. So a slow reader slows its sender down, memory is bounded on both
sides, and reading never stops: a short question overtakes the long bodies. Whoever has no use for a body any
more drops it. All of this is per session, and a session begins with a hello under a new nonce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from unstuck.runtime.framing import NOBODY, PADDING, PAYLOAD_MAX, Decoder, Frame, Kind, encode
from unstuck.runtime.room import Room
from unstuck.runtime.wire import Wire

MESSAGE_MAX: Final = 16 << 20
"""Bytes of JSON: what a backup of a hundred thousand pieces consists of."""
BLOB_MAX: Final = 20 << 20
BODIES_MAX: Final = 16
"""Bodies of the other side that are on their way here, or being answered."""
FLOOD: Final = 4 << 20
"""Bytes that wait for a peer which asks and does not read; nobody honest gets there."""
CLOSING: Final = 1.0
SLOW: Final = 64 << 10
"""Bytes a second that a body must make once it has credit; else its room is given to others."""
GRACE: Final = 30.0


class Dropped(Exception):
    """The other side, or the end of the session, dropped what was being sent."""


class Broken(Exception):
    """The other side does what no peer of ours does: the connection is to be closed."""


class Body(NamedTuple):
    """What arrived. ``done`` gives its room back, once."""

    request: int
    message: bytes
    blob: bytes
    done: Callable[[], None]


class Handler:
    """What one side does with what arrives."""

    def body(self, body: Body) -> None:
        """A body is there; ``body.done`` is to be called when its bytes are not needed any more."""

    def wants(self, request: int) -> bool:  # noqa: ARG002
        """Whether a body of this number is to come at all."""
        return True

    def dropped(self, request: int) -> None:
        """The other side has no use for this request any more, or will not take it."""

    def hello(self, nonce: bytes, message: bytes) -> None:
        """The other side wants to begin a session."""

    def reset(self) -> None:
        """The other side does not know this session."""


class _Coming:
    """A body on its way here; its parts come from the moment it has room."""

    def __init__(self, message: int, blob: int) -> None:
        self.message = message
        self.size = message + blob
        self.room = False
        self.parts: list[bytes | memoryview] = []
        self.at = 0
        self.waiter: asyncio.Task[None] | None = None
        self.limit: asyncio.TimerHandle | None = None


class Link:
    """One connection. ``receives`` is what the other side sends: asks or answers."""

    def __init__(self, wire: Wire, room: Room, receives: Kind, handler: Handler) -> None:
        self._wire = wire
        self._room = room
        self._receives = receives
        self._handler = handler
        self._coming: dict[int, _Coming] = {}
        self._credit: dict[int, asyncio.Future[None]] = {}
        self._refused = 0.0
        self.busy = 0
        """Bodies that arrived and whose ``done`` was not called."""
        self.nonce = NOBODY

    # --- the connection

    async def run(self) -> None:
        """Take what comes, until the other side closes. Raises OSError and :class:`Broken`."""
        decoder = Decoder()
        try:
            while data := await self._wire.read():
                for frame in decoder.feed(data):
                    self._take(frame)
                if self._wire.waiting > FLOOD:
                    raise Broken("it asks and does not read the answers")
        finally:
            self.end_session()

    def abort(self) -> None:
        """Cut it off."""
        self._wire.abort()

    async def close(self) -> None:
        """Close it; what was said is sent first, for a moment."""
        self._wire.close()
        try:
            async with asyncio.timeout(CLOSING):
                await self._wire.wait_closed()
        except TimeoutError:
            self.abort()

    def begin_session(self, nonce: bytes) -> None:
        """From here on only what carries this nonce is listened to."""
        self.end_session()
        self.nonce = nonce

    def end_session(self) -> None:
        """Forget all that is on its way, in either direction."""
        for request in list(self._coming):
            self._forget(request)
        for waiting in self._credit.values():
            if not waiting.done():
                waiting.set_exception(Dropped("the session has ended"))
                waiting.exception()  # nobody may be left to fetch it
        self._credit.clear()
        self.nonce = NOBODY

    def pad(self) -> None:
        """Fill up the half frame that a predecessor may have left."""
        self._wire.write(PADDING)

    def hello(self, nonce: bytes, message: bytes) -> None:
        """Begin a session, as the side that asks."""
        self.begin_session(nonce)
        self._write(Frame(Kind.HELLO, nonce, 0, message, 0, len(message), 0))

    def ask_for_hello(self, nonce: bytes = NOBODY) -> None:
        self._write(Frame(Kind.RESET, nonce, 0))

    # --- sending

    async def send(self, kind: Kind, request: int, message: bytes, blob: bytes = b"") -> None:
        """Send a body; returns when all of it is on its way. Raises :class:`Dropped` and OSError."""
        nonce, size = self.nonce, len(message) + len(blob)
        if size <= PAYLOAD_MAX:
            self._write(Frame(kind, nonce, request, message + blob, 0, len(message), len(blob)))
            await self._wire.drain()
            return
        credit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._credit[request] = credit
        whole = False
        try:
            self._write(Frame(kind, nonce, request, b"", 0, len(message), len(blob)))
            await credit
            for offset in range(0, size, PAYLOAD_MAX):
                if self.nonce != nonce or self._credit.get(request) is not credit:
                    raise Dropped("it was dropped on the way")
                payload = _cut(message, blob, offset)
                self._write(Frame(kind, nonce, request, payload, offset, len(message), len(blob)))
                await self._wire.drain()
            whole = True
        finally:
            if self._credit.get(request) is credit:
                del self._credit[request]
                if not whole:
                    self.drop(request)

    def drop(self, request: int) -> None:
        """Tell the other side that no more of it comes, or that it is not wanted."""
        if not self._wire.closing:
            self._write(Frame(Kind.DROP, self.nonce, request))

    def _write(self, frame: Frame) -> None:
        self._wire.write(*encode(frame))

    # --- receiving

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            if len(frame.payload) == frame.message and not frame.blob and frame.nonce != NOBODY:
                self._handler.hello(frame.nonce, bytes(frame.payload))
        elif frame.kind is Kind.RESET:
            if frame.nonce in (self.nonce, NOBODY):
                self._handler.reset()
        elif frame.nonce != self.nonce or self.nonce == NOBODY:
            self._stranger(frame)
        elif frame.kind is Kind.CREDIT:
            waiting = self._credit.get(frame.request)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        elif frame.kind is Kind.DROP:
            self._forget(frame.request)
            self._stop_sending(frame.request)
            self._handler.dropped(frame.request)
        elif frame.kind is self._receives:
            self._part(frame)

    def _stranger(self, frame: Frame) -> None:
        """Somebody goes on with a session that is not known here; once a second is answer enough."""
        now = asyncio.get_running_loop().time()
        if frame.kind is Kind.ASK and self._receives is Kind.ASK and now >= self._refused:
            self._refused = now + 1.0
            self.ask_for_hello(frame.nonce)

    def _stop_sending(self, request: int) -> None:
        waiting = self._credit.pop(request, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(Dropped("the other side does not want it"))

    def _part(self, frame: Frame) -> None:
        size, payload = frame.message + frame.blob, bytes(frame.payload)  # it lies in the wire's memory
        coming = self._coming.get(frame.request)
        if coming is None:
            if frame.offset:
                return  # the rest of one that was dropped
            too_large = frame.message > MESSAGE_MAX or frame.blob > BLOB_MAX
            if too_large or self._full() or not self._handler.wants(frame.request):
                self.drop(frame.request)
            elif len(payload) == size:
                self._arrived(frame.request, [payload], frame.message, 0)
            elif not payload:
                self._open(frame.request, _Coming(frame.message, frame.blob))
            else:
                self.drop(frame.request)
            return
        if not coming.room or frame.offset != coming.at or coming.at + len(payload) > coming.size:
            self._forget(frame.request)
            self.drop(frame.request)
            return
        coming.parts.append(payload)
        coming.at += len(payload)
        if coming.at == coming.size:
            self._forget(frame.request, keep_room=True)
            self._arrived(frame.request, coming.parts, coming.message, coming.size)

    def _full(self) -> bool:
        return len(self._coming) + self.busy >= BODIES_MAX

    def _open(self, request: int, coming: _Coming) -> None:
        self._coming[request] = coming
        coming.waiter = asyncio.ensure_future(self._give_credit(request, coming))

    async def _give_credit(self, request: int, coming: _Coming) -> None:
        await self._room.take(coming.size)
        coming.room = True
        seconds = GRACE + coming.size / SLOW
        coming.limit = asyncio.get_running_loop().call_later(seconds, self._too_slow, request, coming)
        self._write(Frame(Kind.CREDIT, self.nonce, request))

    def _too_slow(self, request: int, coming: _Coming) -> None:
        if self._coming.get(request) is coming:
            self._forget(request)
            self.drop(request)

    def _forget(self, request: int, *, keep_room: bool = False) -> None:
        coming = self._coming.pop(request, None)
        if coming is None:
            return
        if coming.waiter is not None:
            coming.waiter.cancel()
        if coming.limit is not None:
            coming.limit.cancel()
        if coming.room and not keep_room:
            self._room.give(coming.size)

    def _arrived(self, request: int, parts: list[bytes | memoryview], message: int, room: int) -> None:
        self.busy += 1
        given = False

        def done() -> None:
            nonlocal given
            if not given:
                given = True
                self.busy -= 1
                if room:
                    self._room.give(room)

        self._handler.body(Body(request, *_parted(parts, message), done))


def _parted(parts: list[bytes | memoryview], message: int) -> tuple[bytes, bytes]:
    """Message and blob of a body; the blob, which is large, is copied once."""
    head: list[bytes | memoryview] = []
    at = 0
    while message and at < len(parts):
        head.append(parts[at][:message])
        if len(parts[at]) > message:
            parts[at] = memoryview(parts[at])[message:]
            break
        message -= len(parts[at])
        at += 1
    return b"".join(head), b"".join(parts[at:])


def _cut(message: bytes, blob: bytes, offset: int) -> bytes | memoryview:
    """The payload of the frame at ``offset``: of the message, of the blob, or across both."""
    end = offset + PAYLOAD_MAX
    if offset >= len(message):
        return memoryview(blob)[offset - len(message) : end - len(message)]
    if end <= len(message):
        return memoryview(message)[offset:end]
    return message[offset:] + bytes(memoryview(blob)[: end - len(message)])
