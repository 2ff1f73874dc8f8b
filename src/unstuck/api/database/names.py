"""Names within a database server, and passwords: refused here if a datastore would refuse them."""

from __future__ import annotations

import re
import secrets
from typing import Final

from unstuck.api.database.common import invalid
from unstuck.core.instance.scram import verifier

NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names off without a word."""
PASSWORD_MAX: Final = 1024
RESERVED_USERS: Final = frozenset({"postgres", "root", "public", "none", "unstuck"})
RESERVED_DATABASES: Final = frozenset({"postgres", "template0", "template1"})
_LOCALE: Final = re.compile(r"[A-Za-z0-9_.@-]{1,63}")


def database_name(name: str, field: str) -> str:
    """A database's name: letters of any script, digits and signs, not one of the datastore's own."""
    _identifier(name, field)
    if name.lower() in RESERVED_DATABASES:
        invalid(field, f"{name!r} is the datastore's own database.")
    return name


def user_name(name: str, field: str) -> str:
    """A user's name; not one of the datastore's own or ours."""
    _identifier(name, field)
    if name.lower() in RESERVED_USERS or name.lower().startswith(("pg_", "unstuck_", "unstuck-")):
        invalid(field, f"{name!r} is the datastore's own user.")
    if "@" in name:
        invalid(field, "a user's name must not contain @: the part after it would be a host.")
    return name


def _identifier(name: str, field: str) -> None:
    if not name or len(name.encode()) > NAME_BYTES or not name.isprintable() or name != name.strip():
        invalid(
            field,
            f"it must be 1 to {NAME_BYTES} bytes of printable characters without spaces around them.",
        )
    if any(char in "/\\\"'`;,?#" for char in name):
        invalid(field, "it must not contain quotes, slashes, semicolons, commas, question marks or hashes.")


def locale_word(value: str | None, field: str) -> str:
    """A character set or collation; empty is the datastore's default."""
    if value in (None, ""):
        return ""
    if not _LOCALE.fullmatch(value):
        invalid(field, f"{value[:60]!r} is not the name of a character set or collation.")
    return value


def host_of(value: str | None, field: str) -> str:
    """The host of a user: any. PostgreSQL's users have none; who may come in is the instance's access."""
    if value not in (None, "", "%"):
        invalid(field, "users have no hosts in this datastore; use the instance's access (allowed_cidrs).")
    return "%"


def password_verifier(password: str, field: str) -> str:
    """What the datastore stores of a password; the password itself is forgotten here."""
    if not password or len(password.encode()) > PASSWORD_MAX:
        invalid(field, f"it must be 1 to {PASSWORD_MAX} bytes long.")
    return verifier(password, salt=secrets.token_bytes(16))
