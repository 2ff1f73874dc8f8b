"""Identity v3."""

from __future__ import annotations

from unstuck.api.identity import auth_tokens, catalog, credentials, projects, users
from unstuck.api.routes import Route

ROUTES: list[Route] = [
    *auth_tokens.ROUTES, *catalog.ROUTES, *projects.ROUTES, *users.ROUTES, *credentials.ROUTES,
]  # fmt: skip
