"""What the identity calls share: how projects, users and roles are written and read."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.errors import bad_request, forbidden, not_found
from unstuck.api.identity.auth import Authenticator
from unstuck.api.identity.passwords import MAX_LENGTH
from unstuck.api.routes import Call
from unstuck.store.groups import Group
from unstuck.store.identity import Project, Role, User

DOMAIN: Final = "default"
DOMAIN_ROW: Final[dict[str, Any]] = {
    "id": DOMAIN, "name": "Default", "description": "The default domain", "enabled": True,
    "tags": [], "options": {}, "links": {},
}  # fmt: skip
_MAX_EXTRA: Final = 64


def authenticator(call: Call) -> Authenticator:
    """This process's verifier of passwords and tokens."""
    found: Authenticator = call.app.extra["identity"]
    return found


def _links(call: Call, path: str) -> dict[str, str]:
    return {"self": call.url(f"/identity/v3/{path}")}


def domain_json(call: Call) -> dict[str, Any]:
    """The one domain."""
    return {**DOMAIN_ROW, "links": _links(call, f"domains/{DOMAIN}")}


def project_json(call: Call, project: Project) -> dict[str, Any]:
    """A project as keystone writes it."""
    return {
        "tags": [], "options": {}, **project.extra,
        "id": project.id, "name": project.name, "description": project.description,
        "enabled": project.enabled, "domain_id": DOMAIN, "parent_id": DOMAIN, "is_domain": False,
        "links": _links(call, f"projects/{project.id}"),
    }  # fmt: skip


def user_json(call: Call, user: User) -> dict[str, Any]:
    """A user as keystone writes it."""
    body = {
        "options": {}, **user.extra,
        "id": user.id, "name": user.name, "enabled": user.enabled, "domain_id": DOMAIN,
        "password_expires_at": None, "links": _links(call, f"users/{user.id}"),
    }  # fmt: skip
    if user.default_project_id is not None:
        body["default_project_id"] = user.default_project_id
    return body


def group_json(call: Call, group: Group) -> dict[str, Any]:
    """A group as keystone writes it."""
    return {
        "id": group.id, "name": group.name, "description": group.description, "domain_id": DOMAIN,
        "links": _links(call, f"groups/{group.id}"),
    }  # fmt: skip


def role_json(call: Call, role: Role) -> dict[str, Any]:
    """A role as keystone writes it."""
    return {
        "id": role.id, "name": role.name, "domain_id": None, "description": role.description, "options": {},
        "links": _links(call, f"roles/{role.id}"),
    }  # fmt: skip


def self_or_admin(call: Call, user_id: str) -> None:
    """403 unless the caller is that user, or an administrator."""
    if call.token.user_id != user_id and not call.is_admin:
        raise forbidden()


def check_name(kind: str, name: str, longest: int) -> str:
    """A usable name, or 400."""
    if not name.strip() or len(name) > longest:
        raise bad_request(f"{kind}.name must have 1 to {longest} characters and not only spaces.")
    return name


def check_password(password: str) -> str:
    """A usable password, or 400."""
    if not password or len(password) > MAX_LENGTH:
        raise bad_request(f"user.password must have 1 to {MAX_LENGTH} characters.")
    return password


def check_domain(domain_id: str | None) -> None:
    """404 unless it is the one domain."""
    if domain_id not in (None, DOMAIN):
        raise not_found(f"Could not find domain: {domain_id}.")


def extras(given: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """The keys that keystone keeps without knowing them."""
    found = {key: value for key, value in given.items() if key not in known}
    if len(found) > _MAX_EXTRA:
        raise bad_request(f"There are more than {_MAX_EXTRA} further attributes.")
    return found
