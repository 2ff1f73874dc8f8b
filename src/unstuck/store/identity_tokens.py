"""What makes a token valid: the signing key, the user's epoch, revocations, and roles looked up fresh."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, NotFound, Unauthenticated
from unstuck.core.roles import implied
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.identity import (
    Project,
    Role,
    User,
    changed,
    get_project,
    get_user,
    user_from,
)
from unstuck.store.roles import get_role, held_in, list_assignments, list_roles
from unstuck.store.schema.identity import (
    app_credentials,
    identity_state,
    projects,
    token_revocations,
    users,
)


class AppCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A user's credential for programs, bound to one project and some of the user's roles."""

    id: str
    user_id: str
    project_id: str
    name: str
    description: str | None
    secret_hash: str
    unrestricted: bool
    expires_at: float | None
    role_ids: list[str]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may act in, and with which roles, implied ones included."""

    project: Project | None
    roles: list[Role]


def state(tx: Tx) -> tuple[int, float]:
    """The version that cached tokens must have been verified at, and the wall time."""
    version = tx.execute(sa.select(identity_state.c.version)).scalar_one()
    return version, tx.wall()


def token_key(tx: Tx) -> bytes:
    """The key that signs tokens."""
    return bytes(tx.execute(sa.select(identity_state.c.token_key)).scalar_one())


def find_user(tx: Tx, *, user_id: str | None, name: str | None) -> User | None:
    """The user that wants to log in, by id or by name."""
    condition = users.c.id == user_id if user_id is not None else users.c.name == name
    row = tx.execute(sa.select(users).where(condition)).first()
    return None if row is None else user_from(row)


def _named(tx: Tx, names: tuple[str, ...]) -> list[Role]:
    return [role for role in list_roles(tx) if role.name in names]


def effective_roles(tx: Tx, user_id: str, project_id: str) -> list[Role]:
    """The roles of a user in a project, implied ones included."""
    return _named(tx, implied(role.name for role in held_in(tx, user_id, project_id)))


def project_scope(tx: Tx, user_id: str, *, project_id: str | None, name: str | None) -> Scope:
    """The scope of a project, given by id or by name; 401 unless the user has a role there."""
    condition = projects.c.id == project_id if project_id is not None else projects.c.name == name
    found = tx.execute(sa.select(projects.c.id).where(condition, projects.c.enabled)).scalar()
    held = effective_roles(tx, user_id, found) if found is not None else []
    if found is None or not held:
        raise Unauthenticated("The user has no access to the requested project.")
    return Scope(project=get_project(tx, found), roles=held)


def domain_scope(tx: Tx, user_id: str) -> Scope:
    """The scope of the domain: for who is an administrator in some project."""
    if not any(a.role.name == "admin" for a in list_assignments(tx, user_id=user_id, effective=True)):
        raise Unauthenticated("The user has no access to the requested domain.")
    return Scope(project=None, roles=_named(tx, implied({"admin"})))


def credential_scope(tx: Tx, credential_id: str) -> tuple[AppCredential, Scope]:
    """What a credential allows now: its roles, as far as its user still has them."""
    try:
        credential = get_credential(tx, credential_id)
    except NotFound:
        raise Unauthenticated("The application credential is not valid.") from None
    if credential.expires_at is not None and credential.expires_at <= tx.wall():
        raise Unauthenticated("The application credential has expired.")
    scope = project_scope(tx, credential.user_id, project_id=credential.project_id, name=None)
    kept = {role.name for role in scope.roles if role.id in credential.role_ids}
    if not kept:
        raise Unauthenticated("The application credential has no roles any more.")
    return credential, Scope(project=scope.project, roles=_named(tx, implied(kept)))


def active_user(tx: Tx, user_id: str, epoch: int) -> User:
    """The user behind a token, unless disabled, deleted, or with a new password since."""
    try:
        user = get_user(tx, user_id)
    except NotFound:
        raise Unauthenticated("The token is not valid.") from None
    if not user.enabled or user.epoch != epoch:
        raise Unauthenticated("The token is not valid.")
    return user


def is_revoked(tx: Tx, audit_id: str) -> bool:
    """Whether this very token was revoked."""
    query = sa.select(token_revocations.c.audit_id).where(token_revocations.c.audit_id == audit_id)
    return tx.execute(query).first() is not None


def revoke_token(tx: Tx, audit_id: str, expires_at: float) -> None:
    """End a token before its time; forgets revocations of tokens that are over anyway."""
    tx.execute(sa.delete(token_revocations).where(token_revocations.c.expires_at < tx.wall() - 60))
    if not is_revoked(tx, audit_id):
        tx.execute(sa.insert(token_revocations).values(audit_id=audit_id, expires_at=expires_at))
        changed(tx)


_role_ids = msgspec.json.Decoder(tuple[str, ...])


def _credential(row: Any) -> AppCredential:
    values = dict(row._mapping)
    values["role_ids"] = readable.read(_role_ids, row.role_ids, ())  # unreadable: no role at all
    return AppCredential(**values)


def create_credential(tx: Tx, credential: AppCredential) -> list[Role]:
    """Add a credential; its roles must be among the user's. Returns the roles."""
    held = {role.id for role in effective_roles(tx, credential.user_id, credential.project_id)}
    missing = set(credential.role_ids) - held
    if missing or not credential.role_ids:
        raise NotFound(f"The user has no such role in the project: {', '.join(sorted(missing)) or 'none'}.")
    same = sa.select(app_credentials.c.id).where(
        app_credentials.c.user_id == credential.user_id, app_credentials.c.name == credential.name
    )
    if tx.execute(same).first() is not None:
        raise Conflict(f"There is an application credential with the name {credential.name!r} already.")
    values = msgspec.structs.asdict(credential)
    values["role_ids"] = msgspec.json.encode(credential.role_ids).decode()
    tx.execute(sa.insert(app_credentials).values(values))
    return [get_role(tx, role_id) for role_id in credential.role_ids]


def find_credential(tx: Tx, credential_id: str) -> AppCredential | None:
    """A credential by id, if there is one."""
    row = tx.execute(sa.select(app_credentials).where(app_credentials.c.id == credential_id)).first()
    return None if row is None else _credential(row)


def get_credential(tx: Tx, credential_id: str) -> AppCredential:
    """A credential by id."""
    found = find_credential(tx, credential_id)
    if found is None:
        raise NotFound(f"Could not find Application Credential: {credential_id}.")
    return found


def list_credentials(tx: Tx, user_id: str, *, name: str | None = None) -> list[AppCredential]:
    """A user's credentials, by name."""
    query = sa.select(app_credentials).where(app_credentials.c.user_id == user_id)
    if name is not None:
        query = query.where(app_credentials.c.name == name)
    return [_credential(row) for row in tx.execute(query.order_by(app_credentials.c.name))]


def delete_credential(tx: Tx, user_id: str, credential_id: str) -> None:
    """Delete a credential; tokens made with it end at once."""
    if get_credential(tx, credential_id).user_id != user_id:
        raise NotFound(f"Could not find Application Credential: {credential_id}.")
    tx.execute(sa.delete(app_credentials).where(app_credentials.c.id == credential_id))
    changed(tx)
