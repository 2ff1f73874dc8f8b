"""Identity v3."""

from __future__ import annotations

from unstuck.api.identity import auth_tokens, catalog, credentials, groups, projects, roles, tags, users
from unstuck.api.routes import Route

ROUTES: list[Route] = [
    *auth_tokens.ROUTES, *catalog.ROUTES, *projects.ROUTES, *users.ROUTES, *groups.ROUTES, *roles.ROUTES,
    *tags.ROUTES, *credentials.ROUTES,
]  # fmt: skip
