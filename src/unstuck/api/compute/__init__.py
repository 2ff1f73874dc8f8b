"""Compute 2.1 to 2.96."""

from __future__ import annotations

from unstuck.api.compute import flavors, keypairs, servers
from unstuck.api.routes import Route

ROUTES: list[Route] = [
    *flavors.ROUTES,
    *keypairs.ROUTES,
    *servers.ROUTES,
]
