"""All tables. Each area has a module of its own; the CHECKs are the laws in the schema's words."""

from __future__ import annotations

from unstuck.store.schema import archive, clock, compute, database, identity, images, network, schedules
from unstuck.store.schema.base import metadata

__all__ = [
    "archive",
    "clock",
    "compute",
    "database",
    "identity",
    "images",
    "metadata",
    "network",
    "schedules",
]
