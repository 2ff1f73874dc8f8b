"""How a handler tells the connection below it that the caller has shown a right credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

Vouched = Literal["user", "agent"]

VOUCH: Final = "unstuck.vouch"
"""Key in the request's scope; not there where nobody counts connections."""


def vouch(scope: Mapping[str, Any], who: Vouched) -> None:
    """Say so. Only ever decides who goes first when there are too many connections."""
    tell = scope.get(VOUCH)
    if tell is not None:
        tell(who)
