"""Compute 2.1 to 2.96."""

from __future__ import annotations

from unstuck.api.compute import (
    actions,
    capture,
    consoles,
    extras,
    flavors,
    hosts,
    instance_actions,
    keypairs,
    limits,
    parts,
    quotas,
    rebuild,
    resize,
    servers,
    shelve,
)
from unstuck.api.routes import Route

ROUTES: list[Route] = [
    *flavors.ROUTES,
    *keypairs.ROUTES,
    *servers.ROUTES,
    *actions.ROUTES,
    *rebuild.ROUTES,
    *resize.ROUTES,
    *capture.ROUTES,
    *consoles.ROUTES,
    *shelve.ROUTES,
    *parts.ROUTES,
    *instance_actions.ROUTES,
    *hosts.ROUTES,
    *quotas.ROUTES,
    *limits.ROUTES,
    *extras.ROUTES,
]
