"""Which names a tenant may use, and which passwords' forms are taken."""

from __future__ import annotations

import re
from typing import Final

from unstuck.core.instance.requests import Failed
from unstuck.core.instance.want import WantedDatabase, WantedUser

ROOT: Final = "root"
LONGEST: Final = 63
"""Bytes of UTF-8 (NAMEDATALEN - 1): PostgreSQL would cut a longer name off without an error."""
_SYSTEM: Final = frozenset({"postgres", "template0", "template1"})
_OF_USERS: Final = frozenset({"postgres", ROOT, "public", "none", "current_user", "session_user"})
_FORM: Final = re.compile(
    r"SCRAM-SHA-256\$\d{4,7}:[A-Za-z0-9+/]+={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}="
)


def bad_database(name: str, field: str) -> Failed | None:
    return _bad(name, field, _SYSTEM, "a database")


def bad_user(name: str, field: str) -> Failed | None:
    return _bad(name, field, _OF_USERS, "a user")


def _bad(name: str, field: str, reserved: frozenset[str], what: str) -> Failed | None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= LONGEST:
        return Failed("invalid", f"The name of {what} has 1 to {LONGEST} bytes of UTF-8.", field)
    if not name.isprintable() or name != name.strip():
        return Failed("invalid", f"The name of {what} has only printable characters.", field)
    if name.lower() in reserved or name.lower().startswith(("pg_", "unstuck_")):
        return Failed("invalid", f"{name} is a reserved name.", field)
    return None


def bad_verifier(verifier: str, field: str) -> Failed | None:
    """Anything else PostgreSQL would take for a password and hash once more."""
    if _FORM.fullmatch(verifier):
        return None
    return Failed("invalid", "It is not a SCRAM-SHA-256 verifier.", field)


def bad_wanted_user(user: WantedUser) -> Failed | None:
    if user.host not in ("", "%"):
        return Failed("invalid", "PostgreSQL's users are not bound to hosts; use the access rules.", "host")
    return bad_user(user.name, "name") or bad_verifier(user.verifier, "password") or bad_names(user.databases)


def bad_names(databases: tuple[str, ...]) -> Failed | None:
    found = (bad_database(name, "databases") for name in databases)
    return next((failed for failed in found if failed is not None), None)


def twice(names: list[str], field: str) -> Failed | None:
    double = next((name for name in names if names.count(name) > 1), None)
    return None if double is None else Failed("invalid", f"{double} is named twice.", field)


def bad_databases(databases: tuple[WantedDatabase, ...]) -> Failed | None:
    found = (bad_database(database.name, "name") for database in databases)
    first = next((failed for failed in found if failed is not None), None)
    return first or twice([database.name for database in databases], "name")
