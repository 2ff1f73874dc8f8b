"""What PostgreSQL stores of a password (RFC 5802, RFC 7677): made where it arrives, kept nowhere else.

Format: ``SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>``, all base64, as in ``pg_authid``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import stringprep
import unicodedata
from typing import Final

ITERATIONS: Final = 4096
"""The server's own default (``scram_iterations``)."""

_PROHIBITED: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9, stringprep.in_table_a1,
)  # fmt: skip


def verifier(password: str, *, salt: bytes, iterations: int = ITERATIONS) -> str:
    """The verifier of ``password``. ``salt``: 16 fresh random bytes."""
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    return f"SCRAM-SHA-256${iterations}:{_text(salt)}${_text(stored_key)}:{_text(server_key)}"


def prepared(password: str) -> bytes:
    """The password's bytes after SASLprep (RFC 4013); as it is where that forbids it, as libpq does."""
    if password.isascii():
        return password.encode()
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in password
        if not stringprep.in_table_b1(char)
    )
    normal = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not normal or any(table(char) for char in normal for table in _PROHIBITED) or not _one_way(normal):
        return password.encode()
    return normal.encode()


def _one_way(text: str) -> bool:
    """Right-to-left text has no left-to-right letters in it, and begins and ends with its own (RFC 3454)."""
    if not any(stringprep.in_table_d1(char) for char in text):
        return True
    if any(stringprep.in_table_d2(char) for char in text):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
