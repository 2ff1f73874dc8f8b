"""``/instances/{id}/users``: users of a database server, their passwords and what they may use.

A password becomes what the datastore stores of it here, in the API process, and goes nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import UNSET, UnsetType

from unstuck.api.database.common import BASE, invalid, limit, marker, page
from unstuck.api.database.databases import MOST, NamedDatabase
from unstuck.api.database.guest import Budget, ask, naming_of
from unstuck.api.database.names import ANYWHERE, database_name, host_of, password_verifier, user_name
from unstuck.api.errors import ApiError, bad_request, not_found
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.instance.naming import Naming
from unstuck.core.instance.requests import (
    ChangeUser,
    CreateUsers,
    DropUser,
    GetUser,
    Grant,
    ListUsers,
    Revoke,
    UserInfo,
)
from unstuck.core.instance.want import WantedUser


class NewUser(Body, frozen=True, kw_only=True):
    name: str
    password: str
    host: str | None = None
    databases: list[NamedDatabase] = []


class CreateBody(Body, frozen=True, kw_only=True):
    users: list[NewUser]


class NewPassword(Body, frozen=True, kw_only=True):
    name: str
    password: str
    host: str | None = None


class PasswordsBody(Body, frozen=True, kw_only=True):
    users: list[NewPassword]


class Changes(Body, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    password: str | UnsetType = UNSET
    host: str | None = None


class ChangeBody(Body, frozen=True, kw_only=True):
    user: Changes


class GrantBody(Body, frozen=True, kw_only=True):
    databases: list[NamedDatabase]


def wanted_users(given: list[NewUser], field: str, naming: Naming) -> tuple[WantedUser, ...]:
    """The users of a request with verifiers in place of passwords; 400 names the one that is wrong."""
    if len(given) > MOST:
        invalid(field, f"at most {MOST} can be made at once.")
    found: dict[tuple[str, str], WantedUser] = {}
    for index, item in enumerate(given):
        where = f"{field}[{index}]"
        name = user_name(item.name, f"{where}.name", naming)
        host = host_of(item.host, f"{where}.host", naming)
        if (name, host) in found:
            invalid(f"{where}.name", f"{name!r} is named twice.")
        databases = named_databases(item.databases, f"{where}.databases", naming)
        verifier = password_verifier(item.password, f"{where}.password", naming)
        found[name, host] = WantedUser(name, verifier, databases, host)
    return tuple(found.values())


def named_databases(given: list[NamedDatabase], field: str, naming: Naming) -> tuple[str, ...]:
    """Names of databases, each once."""
    if len(given) > MOST:
        invalid(field, f"at most {MOST} can be named at once.")
    names = (database_name(item.name, f"{field}[{index}].name", naming) for index, item in enumerate(given))
    return tuple(dict.fromkeys(names))


def _user(call: Call, naming: Naming) -> tuple[str, str]:
    """The user that the path names, as ``name`` or ``name@host``; a host that cannot be is not there."""
    text = call.params["user"]
    name, at, host = text.rpartition("@")
    if not at or host == "":
        name, host = (name if at else text), ANYWHERE
    if host != ANYWHERE and (fault := naming.fault_of_host(host)) is not None:
        raise not_found(f"User {text[:100]} cannot be found: {fault}")
    return user_name(name, "name", naming), host


def _view(user: UserInfo) -> dict[str, Any]:
    databases = [{"name": name} for name in user.databases]
    return {"name": user.name, "host": user.host, "databases": databases}


async def create(call: Call) -> Reply:
    """``POST``: all of them, or none."""
    body: CreateBody = call.body
    # Some verifiers take a millisecond each.
    wanted = await asyncio.to_thread(wanted_users, body.users, "users", await naming_of(call))
    if not wanted:
        invalid("users", "it is empty.")
    await ask(call, CreateUsers(wanted))
    return Reply()


async def list_users(call: Call) -> Reply:
    """``GET``: by name, without the datastore's own."""
    hosts = (await naming_of(call)).hosts is not None
    after = marker(call) or ""
    said = await ask(call, ListUsers(limit(call), after if hosts else after.removesuffix("@%")))
    shown = [_view(user) for user in said.users]
    last = said.users[-1] if said.more and said.users else None
    following = None if last is None else (f"{last.name}@{last.host}" if hosts else last.name)
    return page(call, "users", shown, following)


async def change_passwords(call: Call) -> Reply:
    """``PUT`` of the whole list: passwords of several users, one after the other."""
    body: PasswordsBody = call.body
    if not 0 < len(body.users) <= MOST:
        invalid("users", f"it must name 1 to {MOST} users.")
    changes = await asyncio.to_thread(_changes, body.users, await naming_of(call))
    budget = Budget()
    done: list[str] = []
    for change in changes:
        try:
            await ask(call, change, budget)
        except ApiError as error:
            before = f" (changed before it: {', '.join(done)})" if done else ""
            raise ApiError(error.status, f"User {change.name}: {error.message}{before}") from None
        done.append(change.name)
    return Reply()


def _changes(users: list[NewPassword], naming: Naming) -> list[ChangeUser]:
    changes = []
    for index, item in enumerate(users):
        where = f"users[{index}]"
        host = host_of(item.host, f"{where}.host", naming)
        name = user_name(item.name, f"{where}.name", naming)
        verifier = password_verifier(item.password, f"{where}.password", naming)
        changes.append(ChangeUser(name, verifier=verifier, host=host))
    return changes


async def show(call: Call) -> Reply:
    """``GET /users/{user}``."""
    return Reply({"user": _view(await _one(call))})


async def _one(call: Call) -> UserInfo:
    name, host = _user(call, await naming_of(call))
    said = await ask(call, GetUser(name, host))
    for user in said.users:
        if (user.name, user.host) == (name, host):
            return user
    raise not_found(f"User {name} cannot be found.")


async def change(call: Call) -> Reply:
    """``PUT /users/{user}``: name, password or host."""
    asked: Changes = call.body.user
    naming = await naming_of(call)
    new_host = None if asked.host is None else host_of(asked.host, "user.host", naming)
    if asked.name is UNSET and asked.password is UNSET and asked.host is None:
        raise bad_request("user: nothing to change is named; there are name, password and host.")
    new_name = None if isinstance(asked.name, UnsetType) else user_name(asked.name, "user.name", naming)
    verifier = None
    if not isinstance(asked.password, UnsetType):
        verifier = password_verifier(asked.password, "user.password", naming)
    name, host = _user(call, naming)
    new_name = None if new_name == name else new_name
    new_host = None if new_host == host else new_host
    if (new_name, new_host, verifier) != (None, None, None):
        await ask(call, ChangeUser(name, new_name, verifier, host, new_host))
    return Reply()


async def delete(call: Call) -> Reply:
    """``DELETE /users/{user}``."""
    await ask(call, DropUser(*_user(call, await naming_of(call))))
    return Reply()


async def list_grants(call: Call) -> Reply:
    """``GET /users/{user}/databases``: what the user may use."""
    return Reply({"databases": [{"name": name} for name in (await _one(call)).databases]})


async def grant(call: Call) -> Reply:
    """``PUT /users/{user}/databases``."""
    body: GrantBody = call.body
    naming = await naming_of(call)
    names = named_databases(body.databases, "databases", naming)
    if not names:
        invalid("databases", "it is empty.")
    name, host = _user(call, naming)
    await ask(call, Grant(name, names, host))
    return Reply()


async def revoke(call: Call) -> Reply:
    """``DELETE /users/{user}/databases/{name}``."""
    naming = await naming_of(call)
    name, host = _user(call, naming)
    await ask(call, Revoke(name, database_name(call.params["name"], "name", naming), host))
    return Reply()


_ALL: Final = f"{BASE}/instances/{{id}}/users"
_ONE: Final = f"{_ALL}/{{user}}"

ROUTES: list[Route] = [
    route("GET", _ALL, list_users, "reader"),
    route("POST", _ALL, create, "member", body=CreateBody, status=202),
    route("PUT", _ALL, change_passwords, "member", body=PasswordsBody, status=202),
    route("GET", _ONE, show, "reader"),
    route("PUT", _ONE, change, "member", body=ChangeBody, status=202),
    route("DELETE", _ONE, delete, "member", status=202),
    route("GET", f"{_ONE}/databases", list_grants, "reader"),
    route("PUT", f"{_ONE}/databases", grant, "member", body=GrantBody, status=202),
    route("DELETE", f"{_ONE}/databases/{{name}}", revoke, "member", status=202),
]
