"""Who may call what. Every route names one of these rules; a route without one cannot be made.

What a rule cannot say is decided where the object is looked up: through the caller's project, so that
another project's object is a 404.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.api.context import Token
from unstuck.api.errors import forbidden


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """``roles``: any of them is enough (empty: any token). ``project``: the token needs a project."""

    public: bool = False
    roles: frozenset[str] = frozenset()
    project: bool = False


RULES: Final = {
    "public": Rule(public=True),
    "authenticated": Rule(),
    "reader": Rule(roles=frozenset({"reader"}), project=True),
    "member": Rule(roles=frozenset({"member"}), project=True),
    "manager": Rule(roles=frozenset({"manager"}), project=True),
    "admin": Rule(roles=frozenset({"admin"})),
    "service": Rule(roles=frozenset({"admin", "service"})),
}


def enforce(rule: Rule, token: Token) -> None:
    """Raise 403 unless ``token`` satisfies ``rule``."""
    if rule.roles and rule.roles.isdisjoint(token.roles):
        wanted = " or ".join(sorted(rule.roles))
        raise forbidden(f"Policy does not allow this request: it needs the role {wanted}.")
    if rule.project and token.project_id is None and not token.is_admin:
        raise forbidden("Policy does not allow this request: it needs a token with a project.")
