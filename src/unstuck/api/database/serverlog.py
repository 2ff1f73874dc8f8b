"""``/instances/{id}/log``: the datastore server's own log, read from the instance itself.

There is one, it is always on, and nothing of it is copied into a store of objects: Trove's publishing is not
offered, and so neither are the stock client's ``log tail`` and ``log save``, which read Swift.
"""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.database.common import BASE, invalid, missing
from unstuck.api.database.guest import ask
from unstuck.api.errors import bad_request
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.instance.requests import LogPart, ReadLog

NAME: Final = "server"
MOST: Final = 64 << 10
"""Bytes of one part."""


class Asked(Body, frozen=True, kw_only=True):
    """What to do with a log; nothing: show it."""

    name: str
    enable: int | bool = 0
    disable: int | bool = 0
    publish: int | bool = 0
    discard: int | bool = 0


class Part(Query, frozen=True, kw_only=True):
    after: str | None = None
    bytes: str | None = None


def _number(text: str | None, field: str, other: int, most: int) -> int:
    if text is None:
        return other
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:18]) <= most or len(text) > 18:
        invalid(field, f"{text[:60]!r} is not a number from 0 to {most}.")
    return int(text)


async def _read(call: Call, after: int, most: int) -> LogPart:
    said = await ask(call, ReadLog(most, after))
    return said.log or LogPart("", 0, 0)


async def _view(call: Call) -> dict[str, Any]:
    found = await _read(call, -1, 1)
    return {
        "name": NAME, "type": "SYS", "status": "Enabled", "published": 0, "pending": found.size,
        "container": None, "prefix": None, "metafile": None,
    }  # fmt: skip


def _named(name: str) -> None:
    if name != NAME:
        raise missing("Log", name)


async def list_logs(call: Call) -> Reply:
    """``GET``."""
    return Reply({"logs": [await _view(call)]})


async def act(call: Call) -> Reply:
    """``POST``: shows it. It is always enabled."""
    asked: Asked = call.body
    _named(asked.name)
    for field in ("disable", "publish", "discard"):
        if getattr(asked, field):
            raise bad_request(
                f"{field}: the log is always on, and is read from the instance itself (unstuck db logs, or "
                f"GET …/log/{NAME})."
            )
    return Reply({"log": await _view(call)})


async def read(call: Call) -> Reply:
    """Ours: ``GET …/log/{log}``: its last lines, or (``after``) what follows a position."""
    _named(call.params["log"])
    asked: Part = call.query
    most = max(_number(asked.bytes, "bytes", MOST, MOST), 1)
    found = await _read(call, _number(asked.after, "after", -1, 2**62), most)
    return Reply(
        {"log": {"name": NAME, "text": found.text[: 2 * MOST], "after": found.after, "size": found.size}}
    )


_ALL: Final = f"{BASE}/instances/{{id}}/log"

ROUTES: list[Route] = [
    route("GET", _ALL, list_logs, "reader"),
    route("POST", _ALL, act, "member", body=Asked),
    route("GET", f"{_ALL}/{{log}}", read, "reader", query=Part),
]
