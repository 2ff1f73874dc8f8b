"""Deadlines of a backup: the operator's, where an instance or a request says nothing else. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from unstuck.core.backup.data import STALLS, Limits, Phase

AT_LONGEST = 7 * 86400.0
"""Seconds that anybody may ask for: there is no deadline that never comes."""

Seconds = Annotated[float, msgspec.Meta(ge=1.0, le=AT_LONGEST)]


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants of the deadlines, in seconds; None: as it is."""

    claim: Seconds | None = None
    starting: Seconds | None = None
    copying: Seconds | None = None
    finishing: Seconds | None = None
    uploading: Seconds | None = None
    verify: Seconds | None = None
    unknown: Seconds | None = None
    total: Seconds | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] | None = None


def limits(*wishes: Wish | None) -> Limits:
    """The defaults, changed by each wish in turn: the operator's, the instance's, the request's."""
    found = Limits()
    for wish in wishes:
        if wish is not None:
            found = _changed(found, wish)
    return found


def _changed(old: Limits, wish: Wish) -> Limits:
    stalls = {phase: _or(getattr(wish, phase.value), old.stalls.get(phase, STALLS[phase])) for phase in Phase}
    return Limits(
        claim=_or(wish.claim, old.claim),
        stalls=stalls,
        verify=_or(wish.verify, old.verify),
        unknown=_or(wish.unknown, old.unknown),
        total=old.total if wish.total is None else wish.total,
        attempts=old.attempts if wish.attempts is None else wish.attempts,
    )


def _or(wanted: float | None, otherwise: float) -> float:
    return otherwise if wanted is None else wanted
