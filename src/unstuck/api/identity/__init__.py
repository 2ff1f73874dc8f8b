"""Identity v3."""

from __future__ import annotations

from unstuck.api.routes import Route

ROUTES: list[Route] = []
