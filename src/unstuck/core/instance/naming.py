"""What each datastore makes of names, hosts and passwords: the API refuses what a server would refuse, or
take for something else. Pure; the guests check again by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from unstuck.core.instance import native, scram


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """One datastore's. ``longest``: bytes of UTF-8. ``plane``: only characters of Unicode's first plane.

    ``hosts``: the form of a user's host, None where users have none. ``verifier``: what is stored of a
    password, with 16 fresh random bytes where it is salted.
    """

    longest: int
    plane: bool
    users: frozenset[str]
    user_prefixes: tuple[str, ...]
    databases: frozenset[str]
    database_prefixes: tuple[str, ...]
    hosts: str | None
    verifier: Callable[[str, bytes], str]

    def fault_of_user(self, name: str) -> str | None:
        """What is wrong with a user's name; None if nothing is."""
        lowered = name.lower()
        if lowered in self.users or lowered.startswith(self.user_prefixes):
            return f"{name!r} is the datastore's own user."
        return self._fault(name)

    def fault_of_database(self, name: str) -> str | None:
        lowered = name.lower()
        if lowered in self.databases or (
            self.database_prefixes and lowered.startswith(self.database_prefixes)
        ):
            return f"{name!r} is the datastore's own database."
        return self._fault(name)

    def _fault(self, name: str) -> str | None:
        if self.plane and any(char > "\uffff" for char in name):
            return "it must not contain characters beyond Unicode's first plane."
        return None

    def fault_of_host(self, host: str) -> str | None:
        """What is wrong with a user's host other than ``%``; None if nothing is."""
        if self.hosts is None:
            return "users have no hosts in this datastore; use the instance's access (allowed_cidrs)."
        if not re.fullmatch(self.hosts, host):
            return f"{host[:60]!r} is neither % nor an IPv4 address, like 10.0.0.7 or 10.0.%."
        return None


def _scram(password: str, salt: bytes) -> str:
    return scram.verifier(password, salt=salt)


def _native(password: str, _salt: bytes) -> str:
    return native.verifier(password)


POSTGRESQL: Final = Naming(
    longest=63,  # PostgreSQL cuts longer names off without a word
    plane=False,
    users=frozenset({"postgres", "root", "public", "none", "unstuck"}),
    user_prefixes=("pg_", "unstuck_", "unstuck-"),
    databases=frozenset({"postgres", "template0", "template1"}),
    database_prefixes=(),
    hosts=None,
    verifier=_scram,
)
MARIADB: Final = Naming(
    longest=63,
    plane=True,
    users=frozenset({
        "root", "mysql", "mariadb.sys", "public", "none", "current_user", "current_role", "event_scheduler",
        "system user",
    }),
    user_prefixes=("unstuck",),
    databases=frozenset({"information_schema", "mysql", "performance_schema", "sys", "lost+found"}),
    database_prefixes=("unstuck", "#mysql50#"),
    hosts=r"%|[0-9]{1,3}(\.([0-9]{1,3}|%)){0,3}",
    verifier=_native,
)  # fmt: skip

NAMINGS: Final = {"postgresql": POSTGRESQL, "mariadb": MARIADB}
"""By what runs the datastore (a version's ``manager``)."""
