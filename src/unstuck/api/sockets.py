"""WebSockets: a small table of their own beside the routes, and what a handler sees of one.

A handler that refuses does so before it accepts: its answer is an HTTP answer like any other's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from unstuck.api.routes import Call, Entry, Reply, Route, Table

GOING_AWAY: Final = 1001
POLICY: Final = 1008
TOO_MUCH: Final = 1009
FAILED: Final = 1011
LATER: Final = 1013
REASON_MAX: Final = 120
"""Bytes of a reason that fit into a close frame."""


class Gone(Exception):
    """The other end has closed the connection; ``code`` and ``reason`` are what it said."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason or f"closed with {code}")
        self.code = code
        self.reason = reason


class BadMessage(Exception):
    """The other end sent what its subprotocol does not allow."""


class Socket:
    """One connection: bytes in messages, in the form of the subprotocol that was agreed on.

    ``binary`` (and none): binary messages, and text as UTF-8. ``base64``: text messages of base64.
    """

    SUBPROTOCOLS: Final = ("binary", "base64")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.offered: tuple[str, ...] = tuple(scope.get("subprotocols") or ())
        self.subprotocol: str | None = None
        self.accepted = False
        self.closed = False

    async def accept(self) -> None:
        """Answer the handshake; of the offered subprotocols the first that is known here is taken."""
        await self._message("websocket.connect")
        self.subprotocol = next((name for name in self.offered if name in self.SUBPROTOCOLS), None)
        self.accepted = True
        await self._send({"type": "websocket.accept", "subprotocol": self.subprotocol, "headers": []})

    async def refuse(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Answer the handshake as an ordinary HTTP request."""
        given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "websocket.http.response.start", "status": status, "headers": given})
        await self._send({"type": "websocket.http.response.body", "body": body})

    async def receive(self) -> bytes:
        """The next message. Raises :class:`Gone` and :class:`BadMessage`."""
        message = await self._message("websocket.receive")
        data, text = message.get("bytes"), message.get("text")
        if data is not None:
            return bytes(data)
        encoded = str(text or "").encode()
        if self.subprotocol != "base64":
            return encoded
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise BadMessage("the message is not base64") from None

    async def send(self, data: bytes) -> None:
        """Raises :class:`Gone`; waits while the other end does not read."""
        message: Message = {"type": "websocket.send", "bytes": data}
        if self.subprotocol == "base64":
            message = {"type": "websocket.send", "text": base64.b64encode(data).decode()}
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # after its end; uvicorn says it in either way
            raise Gone(1006, str(error)) from None

    async def close(self, code: int, reason: str) -> None:
        """Say why, once; a reason that is too long is cut."""
        if self.closed:
            return
        self.closed = True
        short = reason.encode()[:REASON_MAX].decode(errors="ignore")
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._send({"type": "websocket.close", "code": code, "reason": short})

    async def _message(self, kind: str) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.closed = True
            raise Gone(int(message.get("code") or 1005), str(message.get("reason") or ""))
        assert message["type"] == kind
        return message


class SocketCall(Call):
    """A call whose answer is a conversation."""

    __slots__ = ("socket",)

    def __init__(self, socket: Socket, **more: Any) -> None:
        super().__init__(**more)
        self.socket = socket


Talk = Callable[[Any], Awaitable[Reply]]
"""What a socket's handler is: its reply is sent where it did not accept."""


class SocketRequest(Request):
    """The request of a handshake, for whoever reads only its head."""

    def __init__(self, scope: Scope) -> None:
        super().__init__({**scope, "type": "http", "method": "GET"})


def socket_route(path: str, handler: Talk) -> Route:
    """An entry of the table of sockets. Each handler knows its caller by what it shows itself."""
    return Route(method="GET", path=path, handler=cast("Any", handler), rule="public")


class Sockets:
    """The table of this process."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._table = Table(list(routes))

    def find(self, parts: list[str]) -> tuple[Entry, list[str]] | None:
        found = self._table.find(parts)
        return None if found is None else (found[0]["GET"][0], found[1])


def all_sockets(services: Sequence[str]) -> list[Route]:
    """The sockets of all services that have any: ``SOCKETS`` in their module."""
    modules = (importlib.import_module(name) for name in services)
    return [item for module in modules for item in getattr(module, "SOCKETS", ())]


def body_of(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else msgspec.json.encode(reply.body)
