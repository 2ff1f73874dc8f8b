"""Servers: show, update, delete, and their actions."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from unstuck.api.asking import answer_to, silence
from unstuck.api.compute import create, listing
from unstuck.api.compute.common import (
    BASE,
    as_int,
    as_name,
    caller,
    gate,
    handing_on,
    scope,
    wake,
)
from unstuck.api.compute.create import check_hostname, describing
from unstuck.api.compute.views import show_view, update_view
from unstuck.api.errors import conflict
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions, route
from unstuck.store import asks
from unstuck.store import server_edit as store
from unstuck.store.server_lists import show_server

CONSOLE_SECONDS = 8.0
"""How long a request waits for a host's answer; after that it says so, and holds nothing."""


class Changes(Body, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    access_ipv4: str | UnsetType | None = field(name="accessIPv4", default=UNSET)
    access_ipv6: str | UnsetType | None = field(name="accessIPv6", default=UNSET)
    disk_config: str | UnsetType = field(name="OS-DCF:diskConfig", default=UNSET)
    description: str | UnsetType | None = UNSET
    hostname: str | UnsetType = UNSET


class UpdateBody(Body, frozen=True, kw_only=True):
    server: Changes


class Reboot(Body, frozen=True, kw_only=True):
    type: Literal["SOFT", "HARD", "soft", "hard", "Soft", "Hard"]


class Console(Body, frozen=True, kw_only=True):
    length: int | str | None = None


async def show(call: Call) -> Reply:
    """``GET /servers/{id}``."""
    shown = await call.store.run_read(show_server, call.params["id"], scope(call))
    return Reply({"server": show_view(call, shown.item, shown.now)})


async def update(call: Call) -> Reply:
    """``PUT /servers/{id}``."""
    asked: Changes = call.body.server
    gate(call, "description", asked.description, (2, 19))
    gate(call, "hostname", asked.hostname, (2, 90))
    hostname = None if isinstance(asked.hostname, UnsetType) else check_hostname(call, asked.hostname)
    values = _columns(asked)
    shown = await call.store.run(store.update_server, call.params["id"], scope(call), values, hostname)
    return Reply({"server": update_view(call, shown.item, shown.now)})


def _columns(asked: Changes) -> dict[str, Any]:
    name = {} if isinstance(asked.name, UnsetType) else {"name": as_name(asked.name, "name")}
    return {**name, **describing(asked)}


async def delete(call: Call) -> Reply:
    """``DELETE /servers/{id}`` and the action ``forceDelete``: in every state (law 6)."""
    host = await call.store.run(store.delete_own, call.params["id"], scope(call), caller(call))
    wake(call, host, control=True)
    return Reply()


stop = handing_on(store.stop_own)
start = handing_on(store.start_own)


async def reboot(call: Call) -> Reply:
    """Action ``reboot``."""
    soft = call.body.type.upper() == "SOFT"
    host = await call.store.run(store.reboot_own, call.params["id"], scope(call), caller(call), soft=soft)
    wake(call, host)
    return Reply()


def _lines(body: Console | None) -> int | None:
    """How many lines are asked for; None is all of them."""
    if body is None or body.length in (None, ""):
        return None
    assert body.length is not None
    length = as_int(body.length, "length", least=-1)
    return None if length == -1 else length


async def console(call: Call) -> Reply:
    """Action ``os-getConsoleOutput``: asks the host, and waits for it without a thread or a connection."""
    server_id, lines, ask_id = call.params["id"], _lines(call.body), call.new_id()
    if lines == 0:
        await call.store.run_read(show_server, server_id, scope(call))
        return Reply({"output": ""})
    shown, host_id = await call.store.run(
        store.ask_console, server_id, scope(call), ask_id=ask_id, lines=lines, seconds=CONSOLE_SECONDS
    )
    wake(call, host_id)
    try:
        text = await answer_to(call, ask_id, CONSOLE_SECONDS)
    finally:
        await call.store.run(asks.drop_ask, ask_id)
    if text is None:
        why = silence(shown, CONSOLE_SECONDS)
        raise conflict(f"The console log of instance {server_id} cannot be read now: {why}. Try again.")
    return Reply({"output": text if lines is None else _last_lines(text, lines)})


def _last_lines(text: str, lines: int) -> str:
    ended = text.endswith("\n")
    kept = text.removesuffix("\n").split("\n")[-lines:]
    return "\n".join(kept) + ("\n" if ended else "")


_ONE = f"{BASE}/servers/{{id}}"

ROUTES: list[Route] = [
    route("GET", f"{BASE}/servers", listing.list_brief, "reader"),
    route("GET", f"{BASE}/servers/detail", listing.list_detail, "reader"),
    route("POST", f"{BASE}/servers", create.create, "member", body=create.CreateBody, status=202),
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, update, "member", body=UpdateBody),
    route("DELETE", _ONE, delete, "member", status=204),
    *actions(
        f"{_ONE}/action",
        [
            Act(name="os-stop", handler=stop, rule="member"),
            Act(name="os-start", handler=start, rule="member"),
            Act(name="reboot", handler=reboot, rule="member", body=Reboot),
            Act(name="forceDelete", handler=delete, rule="member"),
            Act(name="os-getConsoleOutput", handler=console, rule="member", body=Console | None, status=200),
        ],
    ),
]
