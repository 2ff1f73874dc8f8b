"""The running server's variables, compared with what its file says: what differs, and what can be set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from unstuck.guest.datastores.mariadb.config import same
from unstuck.guest.datastores.mariadb.session import Session
from unstuck.guest.datastores.mariadb.words import literal

_NUMBERS: Final = ("INT", "BIGINT", "DOUBLE")


class Other(msgspec.Struct, frozen=True):
    """A variable that is not as wanted. ``wanted`` None: its default. ``fixed``: until the next start."""

    name: str
    wanted: str | None
    kind: str
    fixed: bool

    @property
    def statement(self) -> str:
        if self.wanted is None:
            value = "DEFAULT"
        elif self.kind.startswith(_NUMBERS):
            value = self.wanted if self.wanted.replace(".", "", 1).isdigit() else literal(self.wanted)
        else:
            value = literal(self.wanted)
        return f"SET GLOBAL {self.name} = {value}"


def others(session: Session, wanted: Mapping[str, str], fixed: Mapping[str, str]) -> list[Other]:
    """What is not as wanted; what nobody wants any more should be as it was from the start."""
    rows = session.ask(
        "SELECT VARIABLE_NAME, GLOBAL_VALUE, DEFAULT_VALUE, VARIABLE_TYPE, READ_ONLY FROM"
        " information_schema.SYSTEM_VARIABLES WHERE VARIABLE_NAME IN"
        f" ({', '.join(literal(name) for name in wanted)}) OR GLOBAL_VALUE_ORIGIN IN ('CONFIG', 'SQL')"
    )
    found = []
    for name, value, default, kind, read_only in rows:
        known = str(name).lower()
        if known in fixed:
            continue
        want = wanted.get(known)
        if not same(want if want is not None else str(default or ""), str(value or "")):
            found.append(Other(known, want, str(kind), read_only == "YES"))
    return found
