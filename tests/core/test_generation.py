"""What marks say of a store, and when time may destroy something: every cell has an expected answer."""

from __future__ import annotations

import msgspec
import pytest

from unstuck.core.generation import Mark, Relation, further, relation
from unstuck.core.guard import AGREE, CALM_TICKS, Allowed, Guard, Suspended, destruction

STORE = Mark(2, "b", 100, version=10, incarnation=3)


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (Mark(2, "b", 100, 10, 3), Relation.FITS),
        (Mark(2, "b", 99), Relation.FITS),
        (Mark(2, "b", 101), Relation.BEHIND),
        (Mark(2, "b", 100, version=11), Relation.BEHIND),
        (Mark(2, "b", 100, incarnation=4), Relation.BEHIND),
        (Mark(3, "c", 1), Relation.BEHIND),
        (Mark(2, "other", 1), Relation.DIFFERENT),
        (Mark(1, "a", 10_000, 99, 99), Relation.FITS),
    ],
)
def test_what_was_heard_is_compared_with_the_store(heard: Mark, expected: Relation) -> None:
    assert relation(STORE, heard) is expected


def test_a_listener_keeps_the_furthest_of_everything() -> None:
    assert further(None, STORE) == STORE
    assert further(STORE, Mark(2, "b", 101)) == Mark(2, "b", 101, 10, 3)
    assert further(STORE, Mark(3, "c", 1)) == Mark(3, "c", 1)
    assert further(STORE, Mark(1, "a", 500, 500)) == STORE
    assert further(STORE, Mark(2, "other", 500)) == STORE, "of two histories the one that was known"


CALM = Guard(tick=200, gap_tick=100, allowed=0, limit=7, skews=(1.0, -2.0, 900.0))


@pytest.mark.parametrize(
    ("guard", "allowed"),
    [
        (CALM, True),
        (msgspec.structs.replace(CALM, gap_tick=0, tick=1, skews=()), True),
        (msgspec.structs.replace(CALM, tick=100 + CALM_TICKS - 1), False),
        (msgspec.structs.replace(CALM, tick=100 + CALM_TICKS), True),
        (msgspec.structs.replace(CALM, skews=()), False),
        (msgspec.structs.replace(CALM, skews=(1.0, 900.0)), False),
        (msgspec.structs.replace(CALM, skews=(AGREE, -AGREE)), True),
        (msgspec.structs.replace(CALM, skews=(3600.0,), allowed=100), True),
        (msgspec.structs.replace(CALM, tick=101, allowed=99), False),
        (msgspec.structs.replace(CALM, tick=101, allowed=100), True),
    ],
)
def test_time_destroys_only_after_calm_and_with_witnesses(guard: Guard, allowed: bool) -> None:
    found = destruction(guard)
    assert isinstance(found, Allowed) is allowed
    if isinstance(found, Allowed):
        assert found.limit == guard.limit
    else:
        assert isinstance(found, Suspended)
        assert found.reason
