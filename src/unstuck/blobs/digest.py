"""The one digest of objects and of what is in them."""

from __future__ import annotations

import hashlib


def sha256(data: bytes | bytearray | memoryview) -> str:
    """In hex."""
    return hashlib.sha256(data).hexdigest()
