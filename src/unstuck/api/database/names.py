"""Names within a database server, and passwords: refused here if a datastore would refuse them."""

from __future__ import annotations

import re
import secrets
from typing import Final

from unstuck.api.database.common import invalid
from unstuck.core.instance.naming import Naming

PASSWORD_MAX: Final = 1024
ANYWHERE: Final = "%"
_LOCALE: Final = re.compile(r"[A-Za-z0-9_.@-]{1,63}")


def database_name(name: str, field: str, naming: Naming) -> str:
    """A database's name: letters of any script, digits and signs, not one of the datastore's own."""
    _identifier(name, field, naming)
    if (fault := naming.fault_of_database(name)) is not None:
        invalid(field, fault)
    return name


def user_name(name: str, field: str, naming: Naming) -> str:
    """A user's name; not one of the datastore's own or ours."""
    _identifier(name, field, naming)
    if (fault := naming.fault_of_user(name)) is not None:
        invalid(field, fault)
    if "@" in name:
        invalid(field, "a user's name must not contain @: the part after it would be a host.")
    return name


def _identifier(name: str, field: str, naming: Naming) -> None:
    if not name or len(name.encode()) > naming.longest or not name.isprintable() or name != name.strip():
        invalid(
            field,
            f"it must be 1 to {naming.longest} bytes of printable characters without spaces around them.",
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


def host_of(value: str | None, field: str, naming: Naming) -> str:
    """The host that a user comes from: any, unless another is named and the datastore knows hosts."""
    if value in (None, "", ANYWHERE):
        return ANYWHERE
    if (fault := naming.fault_of_host(value)) is not None:
        invalid(field, fault)
    return value


def password_verifier(password: str, field: str, naming: Naming) -> str:
    """What the datastore stores of a password; the password itself is forgotten here."""
    if not password or len(password.encode()) > PASSWORD_MAX:
        invalid(field, f"it must be 1 to {PASSWORD_MAX} bytes long.")
    return naming.verifier(password, secrets.token_bytes(16))
