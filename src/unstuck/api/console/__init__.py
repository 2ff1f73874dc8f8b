"""The console of a server: a page for people, and the WebSocket behind it, at one address.

``GET /console?token=…`` answers with the page; the page (or any client) opens a WebSocket at the same
address, and with that the token is used up.
"""

from __future__ import annotations

import asyncio
import hashlib
from urllib.parse import urlsplit

import structlog

from unstuck.api.asking import answer_to
from unstuck.api.console.meet import Meeting, consoles
from unstuck.api.console.page import page
from unstuck.api.console.relay import Ended, relay
from unstuck.api.errors import forbidden
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.api.sockets import FAILED, SocketCall, socket_route
from unstuck.api.vouch import vouch
from unstuck.core.console import why_not
from unstuck.store import asks
from unstuck.store.consoles import Opened, ask_stream, take_token

COMING = 15.0
"""Seconds for the host's agent to bring the serial port."""
TOKEN_MAX = 128

log = structlog.get_logger(__name__)


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_origin(call: Call) -> None:
    """A browser says which page opens the socket: only ours may. Others say nothing, or our address."""
    origin = call.http.headers.get("origin")
    if origin is None:
        return
    ours = {call.http.headers.get("host", "").lower()}
    if call.app.settings.public_url:
        ours.add(urlsplit(call.app.settings.public_url).netloc.lower())
    if urlsplit(origin).netloc.lower() not in ours:
        raise forbidden("The console may only be opened by a page of this cloud.")


async def talk(call: SocketCall) -> Reply:
    """The user's end."""
    check_origin(call)
    open_ones = consoles(call.app.extra)
    open_ones.check_room()  # before the token is used up
    token = call.http.query_params.get("token", "")
    opened = None
    if 0 < len(token) <= TOKEN_MAX:
        opened = await call.store.run(take_token, digest(token))
    if opened is None:
        raise forbidden(
            "This address opens no console: it was used, its time is over, or the server is gone. "
            "Ask for a new one (`openstack console url show`)."
        )
    vouch(call.http.scope, "user")
    ask_id = call.new_id()
    with open_ones.meeting(ask_id, opened.host_id, opened.project_id) as meeting:
        await call.socket.accept()
        about = {"server": opened.server_id, "user": opened.user_id, "console": ask_id}
        log.info("console opened", **about)
        ended = Ended(FAILED, "the control plane failed; ask for a new URL")
        try:
            ended = await _converse(call, opened, ask_id, meeting)
        finally:
            log.info("console closed", reason=ended.reason, **about)
            for end in (call.socket, meeting.host):
                if end is not None:
                    await end.close(ended.code, ended.reason)
    return Reply()


async def _converse(call: SocketCall, opened: Opened, ask_id: str, meeting: Meeting) -> Ended:
    if not await call.store.run(ask_stream, ask_id, opened, COMING):
        return Ended(FAILED, "the server is gone, or is being deleted")
    call.app.notifier.wake(f"host:{opened.host_id}")
    try:
        answer = await answer_to(call, ask_id, COMING, until=lambda: meeting.host is not None)
    finally:
        # Now, not at its deadline: an agent that has an open question asks again and again.
        await asyncio.shield(call.store.run(asks.drop_ask, ask_id))
    if meeting.host is not None:
        return await relay(call.socket, meeting.host, consoles(call.app.extra).ending)
    if answer is not None:
        return Ended(FAILED, why_not(answer) or "the serial port was not brought here")
    return Ended(FAILED, f"the server's host did not answer within {COMING:g} seconds; ask for a new URL")


ROUTES: list[Route] = [route("GET", "/console", page, "public")]
SOCKETS: list[Route] = [socket_route("/console", talk)]
