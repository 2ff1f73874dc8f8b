"""Ours: extensions of a database, by name."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.database.common import BASE, text_of
from unstuck.api.database.guest import ask, naming_of
from unstuck.api.database.names import database_name
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.instance.requests import DisableExtension, EnableExtension, ListExtensions


class Named(Body, frozen=True, kw_only=True):
    name: str


class EnableBody(Body, frozen=True, kw_only=True):
    extension: Named


async def _database(call: Call) -> str:
    return database_name(call.params["name"], "name", await naming_of(call))


async def list_extensions(call: Call) -> Reply:
    """``GET``: all that may be had; ``version`` is null where it is not enabled."""
    said = await ask(call, ListExtensions(await _database(call)))
    shown: list[dict[str, Any]] = [
        {"name": item.name, "version": item.version or None, "available_version": item.offered}
        for item in said.extensions
    ]
    return Reply({"extensions": shown})


async def enable(call: Call) -> Reply:
    """``POST``: harmless where it is there."""
    name = text_of(call.body.extension.name, "extension.name", most=63)
    await ask(call, EnableExtension(await _database(call), name))
    return Reply()


async def disable(call: Call) -> Reply:
    """``DELETE``: refused while anything in the database needs it."""
    await ask(
        call, DisableExtension(await _database(call), text_of(call.params["extension"], "name", most=63))
    )
    return Reply()


_ALL: Final = f"{BASE}/instances/{{id}}/databases/{{name}}/extensions"

ROUTES: list[Route] = [
    route("GET", _ALL, list_extensions, "reader"),
    route("POST", _ALL, enable, "member", body=EnableBody, status=202),
    route("DELETE", f"{_ALL}/{{extension}}", disable, "member", status=202),
]
