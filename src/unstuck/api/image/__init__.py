"""Image v2."""

from __future__ import annotations

from unstuck.api.image.images import ROUTES

__all__ = ["ROUTES"]
