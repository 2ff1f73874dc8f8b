"""Database v1.0: managed databases, as OpenStack Trove has them (docs/database.md)."""

from __future__ import annotations

from unstuck.api.database import (
    backups,
    configurations,
    databases,
    datastores,
    extensions,
    flavors,
    instances,
    limits,
    loans,
    mgmt,
    mgmt_agents,
    offered,
    retention,
    root,
    schedules,
    serverlog,
    strategies,
    users,
)
from unstuck.api.routes import Route

ROUTES: list[Route] = [
    *datastores.ROUTES,
    *flavors.ROUTES,
    *limits.ROUTES,
    *instances.ROUTES,
    *mgmt.ROUTES,
    *mgmt_agents.ROUTES,
    *databases.ROUTES,
    *users.ROUTES,
    *root.ROUTES,
    *backups.ROUTES,
    *retention.ROUTES,
    *schedules.ROUTES,
    *strategies.ROUTES,
    *configurations.ROUTES,
    *extensions.ROUTES,
    *loans.ROUTES,
    *serverlog.ROUTES,
    *offered.ROUTES,
]
