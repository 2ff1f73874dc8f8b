"""Image v2."""

from __future__ import annotations

from unstuck.api.image import images, members
from unstuck.api.routes import Route

ROUTES: list[Route] = [*images.ROUTES, *members.ROUTES]
