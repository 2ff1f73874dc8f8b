"""Roles that imply others: admin > manager > member > reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

IMPLIED: Final = {"admin": "manager", "manager": "member", "member": "reader"}


def implied(names: Iterable[str]) -> tuple[str, ...]:
    """The given roles and those they imply, sorted."""
    effective = set(names)
    for name in tuple(effective):
        following = IMPLIED.get(name)
        while following is not None and following not in effective:
            effective.add(following)
            following = IMPLIED.get(following)
    return tuple(sorted(effective))
