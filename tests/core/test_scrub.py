"""Reading stored backups again: what each look comes to."""

from __future__ import annotations

from unstuck.core.backup.scrub import (
    AWAY_MOST,
    DAMAGED,
    DOUBT,
    EVERY,
    FOUND,
    Away,
    Next,
    Right,
    Scrub,
    Wrong,
    begun,
    cleared,
    read,
)
from unstuck.core.time import Now

NOW = Now(wall=1000.0, lease=10.0)


def look(before: Scrub, said: Right | Wrong | Away) -> Next:
    return read(before, said, NOW, EVERY, "b")


def test_a_pass_goes_on_where_it_was_left_and_ends_with_the_last_piece() -> None:
    part = look(Scrub(), Right(3, 8))
    assert (part.after, part.whole, begun(part.scrub), part.scrub.since) == (0.0, False, 3, 1000.0)
    end = look(part.scrub, Right(8, 8))
    assert (end.after, end.whole, end.scrub.whole, begun(end.scrub)) == (EVERY, True, 1000.0, 0)


def test_what_is_bad_is_read_a_second_time_before_it_counts() -> None:
    bad = Wrong(3, 8, "piece 3 is missing")
    once = look(Scrub(), bad)
    assert (once.damaged, once.after, begun(once.scrub)) == (None, DOUBT, 3)
    twice = look(once.scrub, bad)
    assert (twice.damaged, twice.after) == (f"{FOUND}piece 3 is missing", DAMAGED)
    assert begun(twice.scrub) == 0
    assert look(once.scrub, Wrong(5, 8, "piece 5 is missing")).damaged is None
    healed = look(once.scrub, Right(8, 8))
    assert healed.whole
    assert healed.scrub.doubt == ""


def test_a_store_that_does_not_answer_says_nothing_and_costs_no_progress() -> None:
    before = look(Scrub(), Right(3, 8)).scrub
    once = look(before, Away("503"))
    assert (once.damaged, once.whole, begun(once.scrub), once.scrub.trouble) == (None, False, 3, "503")
    for _ in range(20):
        once = look(once.scrub, Away("503"))
    assert 0.7 * AWAY_MOST <= once.after <= AWAY_MOST
    doubted = look(look(before, Wrong(3, 8, "piece 3 is missing")).scrub, Away("503")).scrub
    assert look(doubted, Wrong(3, 8, "piece 3 is missing")).damaged is not None


def test_a_whole_pass_ends_only_the_damage_that_reading_has_found() -> None:
    assert cleared(f"{FOUND}piece 3 is missing")
    assert not cleared("verified by a restore: a table is missing")
    assert not cleared(None)
