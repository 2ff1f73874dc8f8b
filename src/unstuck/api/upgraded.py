"""Connections that have become WebSockets: uvicorn's protocol, counted and limited like any other."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from unstuck.api.vouch import VOUCH, Vouched
from unstuck.core.console import MESSAGE_MAX, PING

if TYPE_CHECKING:
    from unstuck.api.connections import Gate

LINGER: Final = 15.0
"""Seconds for the closing handshake, and for what was sent before it; then the connection is cut."""

SETTINGS: Final[dict[str, Any]] = {
    "ws_max_size": MESSAGE_MAX, "ws_ping_interval": PING, "ws_ping_timeout": PING,
    "ws_per_message_deflate": False,
}  # fmt: skip
"""Of uvicorn. No compression: a few bytes would become many."""

_log = logging.getLogger("unstuck.websockets")


class Upgraded(WebSocketsSansIOProtocol):
    """One WebSocket. Its handler runs as long as it does, so it is never idle."""

    idle = False

    def __init__(self, gate: Gate, **more: Any) -> None:
        super().__init__(**more)
        self._gate = gate
        self.logger = _log  # uvicorn's writes down addresses, and in ours is a token

    def cut(self) -> None:
        """Close at once, whatever is under way."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._gate.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self)
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            cast("dict[str, Any]", self.scope)[VOUCH] = self._vouch

    def _vouch(self, who: Vouched) -> None:
        from unstuck.api.connections import Rank

        self._gate.vouch(self, Rank.AGENT if who == "agent" else Rank.USER)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # What was sent to one that does not read would hold a mere close up until the kernel gives up.
        self.cut()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(LINGER, self.cut)
