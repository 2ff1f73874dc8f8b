"""Consoles to look at: there is no proxy for any, and so it is answered, in the compute API's own form.

The end of what a guest has written to its serial console is there: ``os-getConsoleOutput``.
"""

from __future__ import annotations

from typing import Literal

from unstuck.api.compute.common import BASE, gate, scope
from unstuck.api.errors import ApiError, bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions, route
from unstuck.store.server_lists import show_server


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
        f"Unavailable console type {kind}. There are no console proxies here; the console log is there "
        "(`openstack console log show`)."
    )


async def remote(call: Call) -> Reply:
    """``POST /servers/{id}/remote-consoles``, from 2.6 on."""
    asked: Remote = call.body.remote_console
    if asked.protocol == "mks":
        gate(call, "remote_console.protocol", asked.protocol, (2, 8))
    await call.store.run_read(show_server, call.params["id"], scope(call))
    raise unavailable(asked.type)


async def old(call: Call) -> Reply:
    """Actions ``os-getVNCConsole`` and the like, until 2.5."""
    await call.store.run_read(show_server, call.params["id"], scope(call))
    raise unavailable(call.body.type)


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
            Act(name=name, handler=old, rule="member", body=body, max_version=(2, 5))
            for name, body in _OLD.items()
        ],
    ),
]
