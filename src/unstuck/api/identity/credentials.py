"""Application credentials: for programs, bound to one project; the secret is shown once."""

from __future__ import annotations

import datetime
import secrets
from typing import Any, Final

from unstuck.api.errors import bad_request, forbidden
from unstuck.api.identity.catalog import collection
from unstuck.api.identity.people import authenticator, check_name, check_password, self_or_admin
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.errors import NotFound
from unstuck.core.time import iso_micros
from unstuck.store import identity_tokens
from unstuck.store import roles as role_rows
from unstuck.store.engine import Tx
from unstuck.store.identity import Role
from unstuck.store.identity_tokens import AppCredential


class RoleRef(Body, frozen=True):
    id: str | None = None
    name: str | None = None
    domain: dict[str, Any] | None = None


class Wanted(Body, frozen=True):
    name: str
    secret: str | None = None
    description: str | None = None
    expires_at: str | None = None
    roles: list[RoleRef] | None = None
    unrestricted: bool | None = False
    access_rules: list[Any] | None = None


class CredentialBody(Body, frozen=True):
    application_credential: Wanted


class CredentialQuery(Query, frozen=True):
    name: str | None = None


def _expiry(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise bad_request("application_credential.expires_at is not an ISO 8601 time.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _role_ids(tx: Tx, call: Call, wanted: list[RoleRef] | None) -> list[str]:
    if not wanted:
        return list(call.token.role_ids)
    by_name = {role.name: role.id for role in role_rows.list_roles(tx)}
    found = []
    for ref in wanted:
        role_id = ref.id or by_name.get(ref.name or "")
        if role_id is None or role_id not in call.token.role_ids:
            raise bad_request(f"application_credential.roles: {ref.id or ref.name!r} is not a role you have.")
        found.append(role_id)
    return found


def _json(call: Call, item: AppCredential, roles: list[Role]) -> dict[str, Any]:
    expires = None if item.expires_at is None else iso_micros(item.expires_at)
    path = f"/identity/v3/users/{item.user_id}/application_credentials/{item.id}"
    named = [{"id": role.id, "name": role.name, "domain_id": None} for role in roles]
    return {
        "id": item.id, "name": item.name, "description": item.description, "user_id": item.user_id,
        "project_id": item.project_id, "unrestricted": item.unrestricted, "expires_at": expires,
        "roles": named, "system": None, "links": {"self": call.url(path)},
    }  # fmt: skip


def _may_manage(call: Call) -> None:
    if call.token.app_credential_id is not None and not call.token.unrestricted:
        raise forbidden("A restricted application credential cannot manage application credentials.")


async def create(call: Call) -> Reply:
    """``POST /v3/users/{user}/application_credentials``: only by the user, for the token's project."""
    wanted: Wanted = call.body.application_credential
    if call.params["user"] != call.token.user_id:
        raise forbidden()
    _may_manage(call)
    check_name("application_credential", wanted.name, 255)
    if wanted.access_rules:
        raise bad_request(
            "application_credential.access_rules: they are not supported; limit a credential by its roles."
        )
    secret = check_password(wanted.secret) if wanted.secret is not None else secrets.token_urlsafe(48)
    expires_at = _expiry(wanted.expires_at)
    hashed = await authenticator(call).passwords.hash(secret)
    project_id, credential_id = call.project_id, call.new_id().replace("-", "")

    def insert(tx: Tx) -> tuple[AppCredential, list[Role]]:
        if expires_at is not None and expires_at <= tx.now.wall:
            raise bad_request("application_credential.expires_at is in the past.")
        item = AppCredential(
            id=credential_id, user_id=call.token.user_id, project_id=project_id, name=wanted.name,
            description=wanted.description, secret_hash=hashed, unrestricted=bool(wanted.unrestricted),
            expires_at=expires_at, role_ids=_role_ids(tx, call, wanted.roles),
        )  # fmt: skip
        return item, identity_tokens.create_credential(tx, item)

    item, roles = await call.store.run(insert)
    return Reply({"application_credential": {**_json(call, item, roles), "secret": secret}})


def _with_roles(tx: Tx, items: list[AppCredential]) -> list[tuple[AppCredential, list[Role]]]:
    known = {role.id: role for role in role_rows.list_roles(tx)}
    return [(item, [known[key] for key in item.role_ids if key in known]) for item in items]


def _list(tx: Tx, user_id: str, name: str | None) -> list[tuple[AppCredential, list[Role]]]:
    return _with_roles(tx, identity_tokens.list_credentials(tx, user_id, name=name))


async def index(call: Call) -> Reply:
    """``GET /v3/users/{user}/application_credentials``."""
    self_or_admin(call, call.params["user"])
    found = await call.store.run_read(_list, call.params["user"], call.query.name)
    return collection(call, "application_credentials", [_json(call, *pair) for pair in found])


def _show(tx: Tx, user_id: str, credential_id: str) -> tuple[AppCredential, list[Role]]:
    item = identity_tokens.get_credential(tx, credential_id)
    if item.user_id != user_id:
        raise NotFound(f"Could not find Application Credential: {credential_id}.")
    return _with_roles(tx, [item])[0]


async def show(call: Call) -> Reply:
    """``GET /v3/users/{user}/application_credentials/{id}``."""
    self_or_admin(call, call.params["user"])
    found = await call.store.run_read(_show, call.params["user"], call.params["id"])
    return Reply({"application_credential": _json(call, *found)})


async def delete(call: Call) -> Reply:
    """``DELETE /v3/users/{user}/application_credentials/{id}``: tokens made with it end at once."""
    self_or_admin(call, call.params["user"])
    _may_manage(call)
    await call.store.run(identity_tokens.delete_credential, call.params["user"], call.params["id"])
    return Reply()


async def no_access_rules(call: Call) -> Reply:
    """``GET /v3/users/{user}/access_rules``: credentials are limited by roles alone, so there are none."""
    self_or_admin(call, call.params["user"])
    return collection(call, "access_rules", [])


_PATH: Final = "/identity/v3/users/{user}/application_credentials"
ROUTES: list[Route] = [
    route("POST", _PATH, create, "authenticated", body=CredentialBody, status=201),
    route("GET", _PATH, index, "authenticated", query=CredentialQuery),
    route("GET", f"{_PATH}/{{id}}", show, "authenticated"),
    route("GET", "/identity/v3/users/{user}/access_rules", no_access_rules, "authenticated"),
    route("DELETE", f"{_PATH}/{{id}}", delete, "authenticated", status=204),
]
