"""The address of a server's console: a guest has one, its serial port.

``serial`` gives the address of a WebSocket, as the compute API's serial proxy does. ``novnc``, which the
stock client asks for when it is told nothing, gives that of a page that shows the same serial console: a
guest here has no display. There is nothing for the other types, and that is said as the compute API says it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Literal

from unstuck.api.asking import answer_to, silence
from unstuck.api.compute.common import BASE, gate, scope
from unstuck.api.console import digest
from unstuck.api.errors import ApiError, bad_request, conflict
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions, route
from unstuck.core.console import why_not
from unstuck.store import asks
from unstuck.store.consoles import ask_serial, make_token
from unstuck.store.server_lists import show_server

SECONDS = 8.0
"""How long a request waits for the host to say whether the serial port can be opened."""
OFFERED = {"novnc": "vnc", "serial": "serial"}
"""What there is, by type, with the protocol that it belongs to."""


class Remote(Body, frozen=True, kw_only=True):
    protocol: Literal["vnc", "spice", "rdp", "serial", "mks"]
    type: Literal["novnc", "xvpvnc", "spice-html5", "spice-direct", "rdp-html5", "serial", "webmks"]


class RemoteBody(Body, frozen=True, kw_only=True):
    remote_console: Remote


class Vnc(Body, frozen=True, kw_only=True):
    type: Literal["novnc", "xvpvnc"]


class Spice(Body, frozen=True, kw_only=True):
    type: Literal["spice-html5"]


class Rdp(Body, frozen=True, kw_only=True):
    type: Literal["rdp-html5"]


class Serial(Body, frozen=True, kw_only=True):
    type: Literal["serial"]


def unavailable(kind: str) -> ApiError:
    """As the compute API says it of a console that no operator has set up."""
    return bad_request(
        f"Unavailable console type {kind}. A server here has a serial console (`openstack console url show "
        "--serial`, or without an option as a page), and its log (`openstack console log show`)."
    )


async def _address(call: Call, protocol: str, kind: str) -> str:
    """An address that opens the server's console once. 409 with the reason where it would not."""
    server_id = call.params["id"]
    if OFFERED.get(kind) != protocol:
        await call.store.run_read(show_server, server_id, scope(call))
        raise unavailable(kind)
    ask_id = call.new_id()
    shown, host_id = await call.store.run(ask_serial, server_id, scope(call), ask_id=ask_id, seconds=SECONDS)
    call.app.notifier.wake(f"host:{host_id}")
    try:
        answer = await answer_to(call, ask_id, SECONDS)
    finally:
        await asyncio.shield(call.store.run(asks.drop_ask, ask_id))
    if answer is None:
        why = silence(shown, SECONDS)
        raise conflict(f"The console of instance {server_id} cannot be opened now: {why}. Try again.")
    if why := why_not(answer):
        raise conflict(f"The console of instance {server_id} cannot be opened: {why}.")
    token = secrets.token_urlsafe(32)
    await call.store.run(
        make_token, server_id, scope(call), token_hash=digest(token), user_id=call.token.user_id
    )
    page = call.url(f"/console?token={token}")
    return page if kind == "novnc" else f"ws{page.removeprefix('http')}"


async def remote(call: Call) -> Reply:
    """``POST /servers/{id}/remote-consoles``, from 2.6 on."""
    asked: Remote = call.body.remote_console
    if asked.protocol == "mks":
        gate(call, "remote_console.protocol", asked.protocol, (2, 8))
    url = await _address(call, asked.protocol, asked.type)
    return Reply({"remote_console": {"protocol": asked.protocol, "type": asked.type, "url": url}})


async def old(call: Call) -> Reply:
    """Actions ``os-getVNCConsole`` and the like, until 2.5."""
    kind: str = call.body.type
    url = await _address(call, OFFERED.get(kind, ""), kind)
    return Reply({"console": {"type": kind, "url": url}})


_OLD = {
    "os-getVNCConsole": Vnc,
    "os-getSPICEConsole": Spice,
    "os-getRDPConsole": Rdp,
    "os-getSerialConsole": Serial,
}

ROUTES: list[Route] = [
    route(
        "POST",
        f"{BASE}/servers/{{id}}/remote-consoles",
        remote,
        "member",
        body=RemoteBody,
        min_version=(2, 6),
    ),
    *actions(
        f"{BASE}/servers/{{id}}/action",
        [
            Act(name=name, handler=old, rule="member", body=body, max_version=(2, 5), status=200)
            for name, body in _OLD.items()
        ],
    ),
]
