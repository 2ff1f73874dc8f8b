"""What makes backups, as their rows name it."""

from __future__ import annotations

from typing import Final

USER: Final = "user"
"""``made_by`` of a backup that somebody asked for."""
