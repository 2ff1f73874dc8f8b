"""``/instances/{id}/databases``: what is asked of the database server itself."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.database.common import (
    BASE,
    invalid,
    limit,
    marker,
    not_offered,
    page,
)
from unstuck.api.database.guest import ask, naming_of
from unstuck.api.database.names import database_name, locale_word
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.instance.naming import Naming
from unstuck.core.instance.requests import CreateDatabases, DropDatabase, ListDatabases
from unstuck.core.instance.want import WantedDatabase

MOST: Final = 100
"""Databases or users in one request."""


class NewDatabase(Body, frozen=True, kw_only=True):
    name: str
    character_set: str | None = None
    collate: str | None = None


class CreateBody(Body, frozen=True, kw_only=True):
    databases: list[NewDatabase]


class NamedDatabase(Body, frozen=True, kw_only=True):
    """A database in a list of those that a user may use. Clients repeat here what they created it with."""

    name: str
    character_set: str | None = None
    collate: str | None = None


def wanted_databases(given: list[NewDatabase], field: str, naming: Naming) -> tuple[WantedDatabase, ...]:
    """The databases of a request, each named once; 400 names the one that is wrong."""
    if len(given) > MOST:
        invalid(field, f"at most {MOST} can be made at once.")
    found: dict[str, WantedDatabase] = {}
    for index, item in enumerate(given):
        where = f"{field}[{index}]"
        name = database_name(item.name, f"{where}.name", naming)
        if name in found:
            invalid(f"{where}.name", f"{name!r} is named twice.")
        character_set = locale_word(item.character_set, f"{where}.character_set")
        found[name] = WantedDatabase(name, character_set, locale_word(item.collate, f"{where}.collate"))
    return tuple(found.values())


async def create(call: Call) -> Reply:
    """``POST``: all of them, or none."""
    body: CreateBody = call.body
    wanted = wanted_databases(body.databases, "databases", await naming_of(call))
    if not wanted:
        invalid("databases", "it is empty.")
    await ask(call, CreateDatabases(wanted))
    return Reply()


async def list_databases(call: Call) -> Reply:
    """``GET``: by name, without the datastore's own."""
    said = await ask(call, ListDatabases(limit(call), marker(call) or ""))
    shown: list[dict[str, Any]] = [{"name": item.name} for item in said.databases]
    return page(call, "databases", shown, shown[-1]["name"] if said.more and shown else None)


async def delete(call: Call) -> Reply:
    """``DELETE``: with everything in it."""
    await ask(call, DropDatabase(database_name(call.params["name"], "name", await naming_of(call))))
    return Reply()


_ALL: Final = f"{BASE}/instances/{{id}}/databases"

ROUTES: list[Route] = [
    route("GET", _ALL, list_databases, "reader"),
    route("POST", _ALL, create, "member", body=CreateBody, status=202),
    route("GET", f"{_ALL}/{{name}}", not_offered("Single databases"), "reader"),
    route("DELETE", f"{_ALL}/{{name}}", delete, "member", status=202),
]
