"""What MariaDB stores of a password for ``mysql_native_password``: made where it arrives, kept nowhere else.

``*`` and, in hex, the SHA-1 of its SHA-1. It opens nothing by itself: a login proves the inner one.
"""

from __future__ import annotations

import hashlib


def verifier(password: str) -> str:
    """The verifier of ``password``."""
    inner = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(inner, usedforsecurity=False).hexdigest().upper()
