"""Which names a tenant may use, and which passwords' forms are taken."""

from __future__ import annotations

import re
from typing import Final

from unstuck.core.instance.requests import Failed
from unstuck.core.instance.want import WantedDatabase, WantedUser

ROOT: Final = "root"
ANYWHERE: Final = "%"
LONGEST: Final = 64
"""Characters of a database's name."""
LONGEST_USER: Final = 80
SYSTEM: Final = ("information_schema", "mysql", "performance_schema", "sys")
_OURS: Final = frozenset({*SYSTEM, "lost+found"})
_OF_USERS: Final = frozenset({
    ROOT, "mysql", "mariadb.sys", "public", "none", "current_user", "current_role", "event_scheduler",
    "system user",
})  # fmt: skip
_FORM: Final = re.compile(r"\*[0-9A-F]{40}")
_HOST: Final = re.compile(r"%|[0-9]{1,3}(\.([0-9]{1,3}|%)){0,3}")


def bad_database(name: str, field: str) -> Failed | None:
    return _bad(name, field, _OURS, "a database", LONGEST)


def bad_user(name: str, field: str) -> Failed | None:
    return _bad(name, field, _OF_USERS, "a user", LONGEST_USER)


def _bad(name: str, field: str, reserved: frozenset[str], what: str, longest: int) -> Failed | None:
    if not 0 < len(name) <= longest or any(char > "\uffff" or "\ud800" <= char <= "\udfff" for char in name):
        words = f"The name of {what} has 1 to {longest} characters of Unicode's first plane."
        return Failed("invalid", words, field)
    if not name.isprintable() or name != name.strip():
        return Failed("invalid", f"The name of {what} has only printable characters.", field)
    if name.lower() in reserved or name.lower().startswith(("unstuck", "#mysql50#")):
        return Failed("invalid", f"{name} is a reserved name.", field)
    return None


def bad_host(host: str, field: str = "host") -> Failed | None:
    """From where: anywhere, or an IPv4 address whose last parts may be left open."""
    if _HOST.fullmatch(host):
        return None
    return Failed("invalid", "A user's host is % or an IPv4 address, like 10.0.0.7 or 10.0.%.", field)


def bad_verifier(verifier: str, field: str) -> Failed | None:
    if _FORM.fullmatch(verifier):
        return None
    return Failed("invalid", "It is not a mysql_native_password verifier.", field)


def bad_account(name: str, host: str) -> Failed | None:
    return bad_user(name, "name") or bad_host(host)


def bad_wanted_user(user: WantedUser) -> Failed | None:
    return (
        bad_account(user.name, user.host or ANYWHERE)
        or bad_verifier(user.verifier, "password")
        or bad_names(user.databases)
    )


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
