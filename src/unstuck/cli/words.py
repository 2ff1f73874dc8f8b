"""Small words of the commands."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """``1 server``, ``2 servers``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
