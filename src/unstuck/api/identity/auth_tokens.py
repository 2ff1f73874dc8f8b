"""Tokens: log in, validate, revoke."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.context import Token
from unstuck.api.errors import ApiError, bad_request, forbidden, not_found, unauthorized
from unstuck.api.identity.auth import Authenticator, resolve
from unstuck.api.identity.catalog import catalog, collection
from unstuck.api.identity.people import DOMAIN, DOMAIN_ROW, authenticator, project_json
from unstuck.api.identity.tokens import Claim, new_audit_id, sign
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.time import iso_micros
from unstuck.store import identity, identity_tokens, roles
from unstuck.store.engine import Tx


class Ref(Body, frozen=True):
    """A thing by id, or by name (with its domain where names are within one)."""

    id: str | None = None
    name: str | None = None
    domain: dict[str, str] | None = None
    password: str | None = None
    secret: str | None = None
    user: Ref | None = None


class PasswordMethod(Body, frozen=True):
    user: Ref


class TokenMethod(Body, frozen=True):
    id: str


class Identity(Body, frozen=True):
    methods: list[str]
    password: PasswordMethod | None = None
    token: TokenMethod | None = None
    application_credential: Ref | None = None


class ScopeBody(Body, frozen=True):
    project: Ref | None = None
    domain: Ref | None = None
    unscoped: dict[str, Any] | None = None
    system: dict[str, Any] | None = None


class Auth(Body, frozen=True):
    identity: Identity
    scope: ScopeBody | str | None = None


class AuthBody(Body, frozen=True):
    auth: Auth


class TokenQuery(Query, frozen=True):
    nocatalog: str | None = None


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """Who has proven to be whom, and how."""

    user: identity.User
    method: str
    old: Token | None = None
    credential_id: str | None = None


def in_domain(where: dict[str, str] | None) -> bool:
    """Whether a reference means the one domain there is (also when it names none)."""
    return not where or DOMAIN in (where.get("id"), (where.get("name") or "").lower())


async def create_token(call: Call) -> Reply:
    """``POST /v3/auth/tokens``."""
    auth: Auth = call.body.auth
    auth_er = authenticator(call)
    proven = await _prove(call, auth_er, auth.identity)
    claim = await call.store.run_read(_claim, proven, auth.scope, float(call.app.settings.token_seconds))
    token = await call.store.run_read(resolve, claim)
    text = sign(await auth_er.key(call.store), claim)
    headers = {"X-Subject-Token": text}
    return Reply({"token": token_json(call, token, with_catalog=True)}, headers=headers)


async def _prove(call: Call, auth_er: Authenticator, given: Identity) -> Proven:
    if len(given.methods) != 1:
        raise bad_request("auth.identity.methods must have exactly one entry.")
    method = given.methods[0]
    if method == "password" and given.password is not None:
        return await _by_password(call, auth_er, given.password.user)
    if method == "token" and given.token is not None:
        old = await auth_er.check(call.store, given.token.id)
        if old.app_credential_id is not None:
            raise forbidden("A token of an application credential cannot be used for another token.")
        user = await call.store.run_read(identity.get_user, old.user_id)
        return Proven(user=user, method=method, old=old)
    if method == "application_credential" and given.application_credential is not None:
        return await _by_credential(call, auth_er, given.application_credential)
    if method in ("password", "token", "application_credential"):
        raise bad_request(f"auth.identity.{method} is missing.")
    raise unauthorized(f"Attempted to authenticate with an unsupported method: {method[:64]!r}.")


async def _by_password(call: Call, auth_er: Authenticator, given: Ref) -> Proven:
    if given.id is None and given.name is None:
        raise bad_request("auth.identity.password.user needs id, or name and domain.")
    if given.password is None:
        raise bad_request("auth.identity.password.user.password is missing.")
    user = None
    if given.id is not None or in_domain(given.domain):
        user = await call.store.run_read(identity_tokens.find_user, user_id=given.id, name=given.name)
    right = await auth_er.passwords.verify(user.password_hash if user else None, given.password)
    if user is None or not right or not user.enabled:
        raise unauthorized()
    return Proven(user=user, method="password")


async def _by_credential(call: Call, auth_er: Authenticator, given: Ref) -> Proven:
    if given.secret is None:
        raise bad_request("auth.identity.application_credential.secret is missing.")
    if given.id is None and (given.name is None or given.user is None):
        raise bad_request("auth.identity.application_credential needs id, or name and user.")
    found = await call.store.run_read(_find_credential, given)
    right = await auth_er.passwords.verify(found[0].secret_hash if found else None, given.secret)
    if found is None or not right or not found[1].enabled:
        raise unauthorized()
    return Proven(user=found[1], method="application_credential", credential_id=found[0].id)


def _find_credential(tx: Tx, given: Ref) -> tuple[identity_tokens.AppCredential, identity.User] | None:
    if given.id is not None:
        found = identity_tokens.find_credential(tx, given.id)
    else:
        by = given.user or Ref()
        user = identity_tokens.find_user(tx, user_id=by.id, name=by.name) if in_domain(by.domain) else None
        named = identity_tokens.list_credentials(tx, user.id, name=given.name) if user else []
        found = named[0] if named else None
    return None if found is None else (found, identity.get_user(tx, found.user_id))


def _claim(tx: Tx, proven: Proven, scope: ScopeBody | str | None, seconds: float) -> Claim:
    """The claim for a user who has proven who it is, with the scope that is asked for."""
    now = tx.wall()
    old = proven.old
    methods: tuple[str, ...] = (proven.method,)
    if old is not None:
        methods = tuple(dict.fromkeys((*old.methods, proven.method)))
    project_id, domain_id = None, None
    if proven.credential_id is not None:
        if scope is not None and scope != "unscoped":
            raise unauthorized("Application credentials cannot request a scope.")
        project_id = identity_tokens.get_credential(tx, proven.credential_id).project_id
    elif scope is not None and scope != "unscoped":
        project_id, domain_id = _scope(tx, proven.user, scope)
    elif scope is None and proven.user.default_project_id is not None:
        default = proven.user.default_project_id
        held = {item.id for item in roles.projects_of(tx, proven.user.id)}
        project_id = default if default in held else None
    return Claim(
        user_id=proven.user.id, epoch=proven.user.epoch, project_id=project_id, domain_id=domain_id,
        methods=methods, audit_ids=(new_audit_id(), *(old.audit_ids[-1:] if old else ())),
        issued_at=now, expires_at=old.expires_at if old else now + seconds,
        app_credential_id=proven.credential_id,
    )  # fmt: skip


def _scope(tx: Tx, user: identity.User, scope: ScopeBody | str) -> tuple[str | None, str | None]:
    """The (project id, domain id) that a scope means."""
    if isinstance(scope, str):
        raise bad_request("auth.scope must be an object, or the string unscoped.")
    given = [n for n in ("project", "domain", "unscoped", "system") if getattr(scope, n) is not None]
    if len(given) != 1:
        raise bad_request("auth.scope needs exactly one of project, domain and unscoped.")
    if scope.project is not None:
        if scope.project.id is None and scope.project.name is None:
            raise bad_request("auth.scope.project needs id, or name and domain.")
        if scope.project.id is None and not in_domain(scope.project.domain):
            raise unauthorized()
        found = identity_tokens.project_scope(
            tx, user.id, project_id=scope.project.id, name=scope.project.name
        )
        return (found.project.id if found.project else None), None
    if scope.domain is not None:
        if not in_domain({"id": scope.domain.id or "", "name": scope.domain.name or ""}):
            raise unauthorized()
        identity_tokens.domain_scope(tx, user.id)
        return None, DOMAIN
    if scope.system is not None:
        raise unauthorized("There is no system scope: use a project.")
    return None, None


def token_json(call: Call, token: Token, *, with_catalog: bool) -> dict[str, Any]:
    """The body that describes a token."""
    domain = {"id": DOMAIN_ROW["id"], "name": DOMAIN_ROW["name"]}
    body: dict[str, Any] = {
        "methods": token.methods,
        "user": {
            "id": token.user_id, "name": token.user_name, "domain": domain, "password_expires_at": None,
        },
        "audit_ids": token.audit_ids,
        "expires_at": iso_micros(token.expires_at) + "Z",
        "issued_at": iso_micros(token.issued_at) + "Z",
    }  # fmt: skip
    if token.project_id is not None:
        body["project"] = {"id": token.project_id, "name": token.project_name, "domain": domain}
        body["is_domain"] = False
    elif token.domain_id is not None:
        body["domain"] = domain
    if token.roles:
        named = zip(token.role_ids, token.roles, strict=True)
        body["roles"] = [{"id": key, "name": name} for key, name in named]
        if with_catalog:
            body["catalog"] = catalog(call, token.project_id)
    if token.app_credential_id is not None:
        body["application_credential"] = {
            "id": token.app_credential_id, "restricted": not token.unrestricted,
        }  # fmt: skip
    return body


async def _subject(call: Call) -> tuple[str, Token]:
    """The token in X-Subject-Token, if the caller may look at it."""
    text = call.http.headers.get("x-subject-token", "")
    if not text:
        raise bad_request("The header X-Subject-Token is missing.")
    try:
        token = await authenticator(call).check(call.store, text)
    except ApiError:
        raise not_found("The token in X-Subject-Token is not valid.") from None
    own = token.user_id == call.token.user_id
    if not own and not {"admin", "service"} & set(call.token.roles):
        raise forbidden()
    return text, token


async def show_token(call: Call) -> Reply:
    """``GET`` and ``HEAD /v3/auth/tokens``."""
    text, token = await _subject(call)
    body = {"token": token_json(call, token, with_catalog=call.query.nocatalog is None)}
    return Reply(body, headers={"X-Subject-Token": text})


async def delete_token(call: Call) -> Reply:
    """``DELETE /v3/auth/tokens``: takes effect at once."""
    _, token = await _subject(call)
    await call.store.run(identity_tokens.revoke_token, token.audit_ids[0], token.expires_at)
    return Reply()


async def auth_projects(call: Call) -> Reply:
    """``GET /v3/auth/projects``: what the caller may take as scope."""
    found = await call.store.run_read(roles.projects_of, call.token.user_id)
    return collection(call, "projects", [project_json(call, item) for item in found])


async def auth_domains(call: Call) -> Reply:
    """``GET /v3/auth/domains``."""
    return collection(call, "domains", [DOMAIN_ROW] if call.is_admin else [])


_TOKENS: Final = "/identity/v3/auth/tokens"
ROUTES: list[Route] = [
    route("POST", _TOKENS, create_token, "public", body=AuthBody, status=201),
    route("GET", _TOKENS, show_token, "authenticated", query=TokenQuery),
    route("DELETE", _TOKENS, delete_token, "authenticated", status=204),
    route("GET", "/identity/v3/auth/projects", auth_projects, "authenticated"),
    route("GET", "/identity/v3/auth/domains", auth_domains, "authenticated"),
]
