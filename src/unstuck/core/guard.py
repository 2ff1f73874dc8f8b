"""Whether time may destroy anything now (law 9). Pure; its state is a part of the store's clock row.

A clock that jumped makes everything look old at once. So after a jump nothing is destroyed because of its
age until the clock has gone on steadily and the hosts' own clocks say the same, or until an operator
says so; and one pass never destroys more than a limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

CALM_TICKS = 60
"""Ticks without a gap after which the clock is trusted again."""
AGREE = 300.0
"""Seconds by which an agent's wall clock may differ from the store's."""
LIMIT = 100
"""How much one pass may destroy, unless the row says otherwise."""


class Guard(msgspec.Struct, frozen=True):
    """``gap_tick``: the tick at which the last gap was found, 0 for none. ``allowed``: the gap that an
    operator has looked at. ``skews``: by how much the wall clocks of the hosts heard lately differ, in
    seconds."""

    tick: int
    gap_tick: int
    allowed: int
    limit: int
    skews: tuple[float, ...]


class Suspended(msgspec.Struct, frozen=True):
    """Nothing may be destroyed now; why, and what ends it."""

    reason: str


class Allowed(msgspec.Struct, frozen=True):
    """Up to ``limit`` things may be destroyed in this pass."""

    limit: int


def destruction(guard: Guard) -> Allowed | Suspended:
    """Whether what is destroyed because of its age may be destroyed now."""
    if guard.gap_tick == 0 or guard.allowed >= guard.gap_tick:
        return Allowed(guard.limit)
    calm = guard.tick - guard.gap_tick
    if calm < CALM_TICKS:
        return Suspended(
            f"the clock jumped or stood still {calm} ticks ago; {CALM_TICKS} must pass without that"
        )
    if not agree(guard.skews):
        return Suspended(
            "the clock jumped or stood still, and most hosts' clocks do not confirm it; "
            "set the clocks right, or let an operator allow it"
        )
    return Allowed(guard.limit)


def agree(skews: Sequence[float]) -> bool:
    """Most of the hosts' clocks confirm the store's. Nobody confirms nothing."""
    near = sum(1 for skew in skews if abs(skew) <= AGREE)
    return 2 * near > len(skews)
