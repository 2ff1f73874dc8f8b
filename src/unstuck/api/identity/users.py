"""Users."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from unstuck.api.errors import bad_request, unauthorized
from unstuck.api.identity.catalog import collection
from unstuck.api.identity.people import (
    DOMAIN,
    authenticator,
    check_domain,
    check_name,
    check_password,
    extras,
    self_or_admin,
    user_json,
)
from unstuck.api.identity.projects import fields, flag
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.store import identity
from unstuck.store.identity import User

_OWN: Final = {
    "id", "links", "domain_id", "name", "password", "enabled", "default_project_id", "password_expires_at",
    "original_password",
}  # fmt: skip


class UserFields(msgspec.Struct, frozen=True, kw_only=True):
    """What we know of a user's body; other keys are kept as they are."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    password: str | None = None
    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    email: str | msgspec.UnsetType | None = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    default_project_id: Annotated[str, msgspec.Meta(max_length=64)] | msgspec.UnsetType | None = msgspec.UNSET
    domain_id: str | None = None
    options: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class UserBody(Body, frozen=True):
    user: dict[str, Any]


class PasswordChange(Body, frozen=True):
    password: str
    original_password: str


class PasswordBody(Body, frozen=True):
    user: PasswordChange


class UserQuery(Query, frozen=True):
    name: str | None = None
    enabled: str | None = None
    domain_id: str | None = None


def _changed(user: User, given: dict[str, Any], known: UserFields, password_hash: str | None) -> User:
    changes: dict[str, Any] = {}
    for name in ("name", "enabled", "default_project_id"):
        value = getattr(known, name)
        if value is not msgspec.UNSET:
            changes[name] = value
    if password_hash is not None:
        changes["password_hash"] = password_hash
    extra = {**user.extra, **extras(given, _OWN)}
    return msgspec.structs.replace(user, extra=extra, **changes)


async def _read(call: Call) -> tuple[dict[str, Any], UserFields, str | None]:
    """The body, checked, and the hash of its password."""
    given: dict[str, Any] = call.body.user
    known: UserFields = fields(given, UserFields, "user")
    check_domain(known.domain_id)
    if known.name is not msgspec.UNSET:
        check_name("user", known.name, 255)
    hashed = None
    if known.password is not None:
        hashed = await authenticator(call).passwords.hash(check_password(known.password))
    return given, known, hashed


async def create_user(call: Call) -> Reply:
    """``POST /v3/users``."""
    if "name" not in call.body.user:
        raise bad_request("user.name is missing.")
    given, known, hashed = await _read(call)
    user = _changed(User(id=call.new_id().replace("-", ""), name=""), given, known, hashed)
    await call.store.run(identity.create_user, user)
    return Reply({"user": user_json(call, user)})


async def list_users(call: Call) -> Reply:
    """``GET /v3/users``; the name is matched exactly."""
    wanted: UserQuery = call.query
    enabled = flag("enabled", wanted.enabled)
    found: list[User] = []
    if wanted.domain_id in (None, DOMAIN):
        found = await call.store.run_read(identity.list_users, name=wanted.name, enabled=enabled)
    return collection(call, "users", [user_json(call, item) for item in found])


async def show_user(call: Call) -> Reply:
    """``GET /v3/users/{id}``: administrators, and the user."""
    self_or_admin(call, call.params["id"])
    user = await call.store.run_read(identity.get_user, call.params["id"])
    return Reply({"user": user_json(call, user)})


async def update_user(call: Call) -> Reply:
    """``PATCH /v3/users/{id}``."""
    given, known, hashed = await _read(call)
    updated = await call.store.run(
        identity.update_user, call.params["id"], lambda user: _changed(user, given, known, hashed)
    )
    return Reply({"user": user_json(call, updated)})


async def delete_user(call: Call) -> Reply:
    """``DELETE /v3/users/{id}``."""
    await call.store.run(identity.delete_user, call.params["id"])
    return Reply()


async def change_password(call: Call) -> Reply:
    """``POST /v3/users/{id}/password``: by the user, with the old password; ends all tokens."""
    wanted: PasswordChange = call.body.user
    check_password(wanted.password)
    passwords = authenticator(call).passwords
    try:
        user = await call.store.run_read(identity.get_user, call.params["id"])
    except NotFound:
        user = None
    right = await passwords.verify(user.password_hash if user else None, wanted.original_password)
    if user is None or not right or not user.enabled:
        raise unauthorized()
    hashed = await passwords.hash(wanted.password)

    def change(current: User) -> User:
        if current.password_hash != user.password_hash:  # somebody was faster: this proof is out of date
            raise unauthorized()
        return msgspec.structs.replace(current, password_hash=hashed)

    await call.store.run(identity.update_user, user.id, change)
    return Reply()


_V3: Final = "/identity/v3"
ROUTES: list[Route] = [
    route("POST", f"{_V3}/users", create_user, "admin", body=UserBody, status=201),
    route("GET", f"{_V3}/users", list_users, "admin", query=UserQuery),
    route("GET", f"{_V3}/users/{{id}}", show_user, "authenticated"),
    route("PATCH", f"{_V3}/users/{{id}}", update_user, "admin", body=UserBody),
    route("DELETE", f"{_V3}/users/{{id}}", delete_user, "admin", status=204),
    route("POST", f"{_V3}/users/{{id}}/password", change_password, "public", body=PasswordBody, status=204),
]
