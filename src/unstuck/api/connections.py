"""What strangers may take of the API's process: bytes, time and connections, before anybody knows them.

The parser has no limits of its own. One connection without a token that sent a header without end
stopped everything: the whole process copied it again and again, every lease ran out, every host went DOWN.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import uuid
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final, Protocol, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from unstuck.api.errors import ApiError, render_own
from unstuck.api.vouch import VOUCH, Vouched
from unstuck.runtime.port import AsyncPort

QUIET_MAX: Final = 64 * 1024
"""Bytes without a step forward: the head of a request, the trailers behind a body, a chunk's own head."""
HEAD_SECONDS: Final = 10.0
"""From the first byte of a request (or from the connection on) until its head is complete."""
DEAF_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 1 << 20
OWN_FILES: Final = 64
"""Descriptors for the store, the logs and whatever else is not a connection."""
CONNECTIONS_MAX: Final = 4096
FILES_WANTED: Final = 16384


class Rank(IntEnum):
    """What a connection has shown. Who shows nothing goes first when there is no room."""

    STRANGER = 0
    USER = 1
    AGENT = 2


def raise_limit() -> None:
    """As many descriptors as we are allowed and need; most systems give 1024 and allow far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room() -> int:
    """Connections that this process may have, by its limit of open files as it is now.

    Each may need a file beside its socket: an image that is read or written.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(max((soft - OWN_FILES) // 2, 8), CONNECTIONS_MAX)


class Counted(Protocol):
    """A connection that takes room."""

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        ...

    def cut(self) -> None: ...


class Gate:
    """Which connections stay when there is no room for all.

    Whoever has shown a right credential keeps its connection. Of the strangers the one that has been here
    longest without showing any goes first, so that a newcomer has the time in which as many others as there
    is room for arrive: an agent needs milliseconds. Users come next, those without a request first;
    with one only where users hold more than three quarters of all room, so that the rest stays for agents.
    """

    def __init__(self, room: Callable[[], int] = room, *, head_seconds: float = HEAD_SECONDS) -> None:
        self._room = room
        self.head_seconds = head_seconds
        self._held: dict[Rank, dict[Counted, None]] = {rank: {} for rank in Rank}

    def count(self, rank: Rank | None = None) -> int:
        return sum(len(held) for key, held in self._held.items() if rank in (None, key))

    def enter(self, connection: Counted) -> None:
        """A new connection; it, or one that matters less, is closed where there is no room."""
        most = self._room()
        while self.count() >= most:
            victim = next(self._victims(most), None)
            if victim is None:
                connection.cut()
                return
            self.leave(victim)
            victim.cut()
        self._held[Rank.STRANGER][connection] = None

    def leave(self, connection: Counted) -> None:
        for held in self._held.values():
            held.pop(connection, None)

    def vouch(self, connection: Counted, rank: Rank) -> None:
        """A request on this connection has shown a right credential."""
        if connection in self._held[Rank.STRANGER] or connection in self._held[Rank.USER]:
            self.leave(connection)
            self._held[rank][connection] = None

    def _victims(self, most: int) -> Iterator[Counted]:
        yield from self._held[Rank.STRANGER]
        users = self._held[Rank.USER]
        yield from (connection for connection in users if connection.idle)
        if len(users) > most * 3 // 4:
            yield from users
        agents = self._held[Rank.AGENT]
        if len(agents) > most // 4:
            yield from (connection for connection in agents if connection.idle)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits. Its own errors have the API's form, too."""

    def __init__(self, gate: Gate, **more: Any) -> None:
        super().__init__(**more)
        self._gate = gate
        self._quiet = 0
        self._forward = False
        self._late: asyncio.TimerHandle | None = None
        self._left = LINGER_BYTES
        self._refused = False
        self._upgraded = False

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def cut(self) -> None:
        """Close at once, whatever is under way."""
        self.transport.abort()

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait_for_head()
        self._gate.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self)
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._left -= len(data)
            if self._left < 0:
                self.cut()
            return
        view = memoryview(data)
        while view and not self.transport.is_closing() and not self._refused and not self._upgraded:
            piece, view = view[:QUIET_MAX], view[QUIET_MAX:]
            self._forward = False
            super().data_received(piece)  # type: ignore[arg-type]
            self._quiet = 0 if self._forward else self._quiet + len(piece)
            if self._quiet > QUIET_MAX:
                self._refuse(431, f"The head of the request is larger than {QUIET_MAX} bytes.")
        if self.idle and self.timeout_keep_alive_task is None and not self._upgraded:
            self._wait_for_head()

    def handle_websocket_upgrade(self) -> None:
        """The head is complete: another protocol goes on with the connection, behind the same gate."""
        self._upgraded = True
        self._have_head()
        self._gate.leave(self)
        super().handle_websocket_upgrade()

    # --- time

    def _wait_for_head(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self._gate.head_seconds, self._too_late)

    def _have_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if not self.idle:  # the next request waits behind this one, and we are the ones who read slowly
            self._wait_for_head()
        elif self._quiet:
            seconds = f"{self._gate.head_seconds:g}"
            self._refuse(408, f"The head of the request was not complete after {seconds} seconds.")
        else:
            self.transport.close()

    # --- what the parser tells

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[VOUCH] = self._vouch
        self._have_head()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._forward = True
        self._have_head()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            _hear_of_refusals(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._forward = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._forward = True
        super().on_message_complete()

    def _vouch(self, who: Vouched) -> None:
        self._gate.vouch(self, Rank.AGENT if who == "agent" else Rank.USER)

    # --- refusals

    def send_400_response(self, msg: str) -> None:
        in_body = self.cycle is not None and self.cycle.more_body
        self._refuse(
            400, "The body of the request cannot be read: its chunks are malformed." if in_body else msg
        )

    def _refuse(self, status: int, message: str) -> None:
        """Hear no more, answer, and close; an answer that is under way is ended first.

        In the middle of a body its handler answers, in the form of its API.
        """
        self._refused = True
        self._have_head()
        self._unset_keepalive_if_required()
        if not self.idle:
            self.cycle.keep_alive = False
            if self.cycle.more_body and self.cycle.response_started:
                self.cut()  # its handler waits for what does not come, and has said something else already
            elif self.cycle.more_body:
                setattr(self.cycle, _REFUSAL, ApiError(status, message))
                self.cycle.message_event.set()
            return
        if self.cycle is not None and self.cycle.more_body:  # it was answered before all of it was here
            self.transport.close()
            return
        request_id = f"req-{uuid.uuid4()}"
        body = msgspec.json.encode(render_own(ApiError(status, message), request_id))
        lines = [
            b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close",
            b"x-openstack-request-id: " + request_id.encode(),
        ]  # fmt: skip
        self.transport.write(STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
        # A client that is cut off while it sends may never see the answer: let it read, for a moment.
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


_REFUSAL: Final = "unstuck_refusal"


def _hear_of_refusals(cycle: RequestResponseCycle) -> None:
    """A handler that reads a body which is none is told so, and answers in its own API's form."""
    receive = cycle.receive

    async def receive_or_refuse() -> Any:
        message = await receive()
        refusal = getattr(cycle, _REFUSAL, None)
        if refusal is not None:
            raise refusal
        return message

    cycle.receive = receive_or_refuse  # type: ignore[method-assign]


async def end_when_deaf(port: AsyncPort, address: Any) -> None:
    """End the process, by an error, when nobody listens any more although nothing was told to end.

    A failed accept (for want of descriptors, for one) may close the listening socket within the event
    loop, and a process that answers nobody looks as alive as any other.
    """
    refused = 0
    while True:
        await port.pause(DEAF_SECONDS, "deaf")
        refused = refused + 1 if await _refuses(address) else 0
        if refused == 2:
            raise RuntimeError(f"nobody listens at {address} any more")


async def _refuses(address: Any) -> bool:
    """Only a refusal says so: whatever else fails has other reasons (law 4)."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
            probe.setblocking(False)
            async with asyncio.timeout(DEAF_SECONDS):
                await asyncio.get_running_loop().sock_connect(probe, address)
    except ConnectionRefusedError:
        return True
    except OSError:  # TimeoutError is one
        return False
    return False


def sockets_behind(gate: Gate) -> type[asyncio.Protocol]:
    """The protocol of WebSockets that share this gate."""
    from unstuck.api.upgraded import Upgraded

    class Gated(Upgraded):
        def __init__(self, **more: Any) -> None:
            super().__init__(gate, **more)

    return Gated


def behind(gate: Gate) -> type[asyncio.Protocol]:
    """The protocol of a server whose connections share this gate."""

    class Gated(Connection):
        def __init__(self, **more: Any) -> None:
            super().__init__(gate, **more)

    return Gated
