"""The ledger of an archive: what it says can be restored can be, and everything else is refused with why."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstuck.core.archive.data import Archive, Base, Closed, LogSeen, Mark
from unstuck.core.archive.ledger import (
    EVERYTHING,
    SLACK,
    Not,
    Restorable,
    Window,
    not_needed_below,
    resolve,
    thinned,
    windows,
)
from unstuck.core.archive.marks import marked
from unstuck.core.archive.positions import binlog_of, binlog_place, lsn_of, lsn_place, place_of
from unstuck.core.backup.content import Position


def place(number: int) -> str:
    return f"{number:016X}"


@st.composite
def archives(draw: st.DrawFn) -> list[Archive]:
    """Generations of one log after each other; time and position only ever go on."""
    made, wall = [], 1000.0
    for number in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 40))
        stop = start + draw(st.integers(0, 60))
        marks, position = [], draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 12))):
            wall += draw(st.integers(1, 50))
            position += draw(st.integers(0, 15))
            if not marks or marks[-1].position < place(position):
                held = draw(st.one_of(st.none(), st.integers(-60, 60)))
                marks.append(Mark(wall, 1, place(position), None if held is None else wall + held))
        ends = draw(st.lists(st.integers(0, 80), max_size=3))
        bases = tuple(
            Base(f"b{number}-{end}", 1, place(end), wall, damaged=draw(st.booleans())) for end in ends
        )
        last = number == 2 or draw(st.booleans())
        wall += 10
        made.append(
            Archive(
                id=f"a{number}", opened_wall=wall, timeline=1, start=place(start) if stop > start else "",
                stop=place(stop) if stop > start else "", closed=None if last else Closed.GAP,
                closed_wall=None if last else wall, bases=bases, marks=tuple(marks),
            )
        )  # fmt: skip
        wall += draw(st.integers(1, 100))
        if last:
            break
    return made


@given(archives(), st.floats(900, 3500), st.one_of(st.none(), st.floats(900, 3500)))
def test_what_is_said_to_be_restorable_is_there_without_a_gap(
    found: list[Archive], at: float, idle: float | None
) -> None:
    said = resolve(found, at, idle)
    claimed = [each for one in found for each in windows(one, idle if one is found[-1] else None)]
    inside = [each for each in claimed if each.earliest <= at <= each.latest]
    if isinstance(said, Not):
        assert not inside
        assert said.reason
        return
    assert isinstance(said, Restorable)
    archive = next(one for one in found if one.id == said.point.archive_id)
    assert archive.id in [each.archive_id for each in inside]
    assert said.base in archive.bases
    assert not said.base.damaged
    assert said.base.stop <= said.point.position
    if said.base.stop < said.point.position:
        assert archive.start <= said.base.stop
        assert said.point.position <= archive.stop
    # The greatest position that was known by then, and none that became known later.
    known = [mark for mark in archive.marks if mark.wall <= at]
    assert said.point.position == known[-1].position
    # And nothing else can have happened since, as far as it is known.
    if known[-1].held is not None:
        assert at <= max(known[-1].wall, known[-1].held)
        assert known[-1].held >= known[-1].wall - SLACK


@given(archives(), st.floats(900, 3500), st.floats(0, 2000))
def test_a_later_moment_never_restores_less(found: list[Archive], at: float, more: float) -> None:
    before, after = resolve(found, at), resolve(found, at + more)
    if isinstance(before, Restorable) and isinstance(after, Restorable):
        first, second = before.point, after.point
        assert (first.archive_id, first.position) <= (second.archive_id, second.position)


@given(archives(), st.lists(st.integers(0, 80), max_size=2), st.booleans(), st.booleans())
def test_nothing_is_trimmed_that_a_base_or_a_reader_needs(
    found: list[Archive], readers: list[int], removed: bool, live: bool
) -> None:
    for archive in found:
        reads = [place(one) for one in readers]
        below = not_needed_below(archive, removed=removed, reads_from=reads, live=live)
        assert all(below <= one for one in reads)
        if not removed:
            assert all(below <= base.stop for base in archive.bases)
        if removed and not reads:
            assert below == EVERYTHING
        if live and not archive.bases and not reads and not removed:
            assert below == ""


@given(archives(), st.floats(0, 300), st.floats(1, 100))
def test_thinned_marks_still_answer_within_their_coarseness(
    found: list[Archive], fine: float, coarse: float
) -> None:
    for archive in found:
        if not archive.marks:
            continue
        now = archive.marks[-1].wall
        gone = thinned(archive.marks, now, fine, coarse)
        left = [mark for mark in archive.marks if mark not in gone]
        assert left[-1] == archive.marks[-1]
        assert all(mark.wall < now - fine for mark in gone)
        for mark in gone:  # another of its time stands for it, and it is not far behind
            later = [one for one in left if one.wall >= mark.wall]
            assert later[0].wall - mark.wall <= coarse


def test_moments_in_a_gap_are_refused_and_the_gap_is_named() -> None:
    first = Archive(
        id="a1", opened_wall=0.0, timeline=1, start=place(0), stop=place(10), closed=Closed.GAP,
        closed_wall=150.0, bases=(Base("b1", 1, place(2), 50.0),),
        marks=(Mark(60.0, 1, place(3)), Mark(100.0, 1, place(9)), Mark(140.0, 1, place(15))),
    )  # fmt: skip
    second = Archive(
        id="a2", opened_wall=150.0, timeline=1, start=place(20), stop=place(40),
        bases=(Base("b2", 1, place(21), 200.0),), marks=(Mark(210.0, 1, place(22)),),
    )  # fmt: skip
    said = resolve([first, second], 145.0)
    assert isinstance(said, Not)
    assert "gap" in said.reason
    assert "1970-01-01T00:02:19Z to 1970-01-01T00:03:30Z" in said.reason
    assert isinstance(resolve([first, second], 100.0), Restorable)
    assert isinstance(resolve([first, second], 210.0), Restorable)
    # At rest: what was known last is the answer for as long as nothing can have happened.
    assert isinstance(resolve([first, second], 300.0), Not)
    idle = resolve([first, second], 300.0, 310.0)
    assert isinstance(idle, Restorable)
    assert idle.point.position == place(22)


def test_the_newest_base_that_reaches_the_moment_is_taken() -> None:
    archive = Archive(
        id="a1", opened_wall=0.0, timeline=2, start=place(0), stop=place(50),
        bases=(
            Base("old", 2, place(5), 1.0), Base("new", 2, place(20), 2.0), Base("other", 1, place(1), 3.0),
        ),
        marks=(Mark(10.0, 2, place(10)), Mark(20.0, 2, place(30))),
    )  # fmt: skip
    early, late = resolve([archive], 10.0), resolve([archive], 20.0)
    assert isinstance(early, Restorable)
    assert isinstance(late, Restorable)
    assert (early.base.backup_id, late.base.backup_id) == ("old", "new")
    behind = msgspec.structs.replace(archive, start=place(10))
    assert isinstance(resolve([behind], 10.0), Not)


@given(st.integers(0, 2**64 - 1))
def test_places_of_lsns_sort_as_the_log_does(number: int) -> None:
    lsn = f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
    assert int(lsn_place(lsn), 16) == number
    assert lsn_of(lsn_place(lsn)) == lsn


def test_a_silence_is_a_hole_and_is_named() -> None:
    archive = Archive(
        id="a1", opened_wall=0.0, timeline=1, start=place(0), stop=place(30),
        bases=(Base("b1", 1, place(2), 50.0),),
        marks=(
            Mark(60.0, 1, place(3)), Mark(100.0, 1, place(9), 120.0), Mark(300.0, 1, place(15)),
            Mark(310.0, 1, place(17), 200.0), Mark(400.0, 1, place(19)),
        ),
    )  # fmt: skip
    assert windows(archive, 500.0) == [
        Window("a1", 60.0, 120.0), Window("a1", 300.0, 309.999), Window("a1", 400.0, 500.0),
    ]  # fmt: skip
    said = resolve([archive], 200.0)
    assert isinstance(said, Not)
    assert "nothing was heard of the database" in said.reason
    assert isinstance(found := resolve([archive], 119.0), Restorable)
    assert found.point.position == place(9)


NOW = 1000.0
OLD = Mark(500.0, 1, place(5))


def seen(position: int, first: float, last: float) -> LogSeen:
    return LogSeen(1, place(position), first, last)


def test_what_is_told_of_a_log_that_was_watched_all_the_time_has_no_hole() -> None:
    told = [seen(5, 500.0, 12.0), seen(6, 10.0, 7.0), seen(8, 5.0, 5.0)]
    assert marked(OLD, None, told, NOW) == [OLD, Mark(990.0, 1, place(6)), Mark(995.0, 1, place(8))]


def test_a_position_of_which_is_known_only_for_how_long_it_held_says_so() -> None:
    [old, new] = marked(OLD, None, [seen(5, 500.0, 200.0), seen(8, 3.0, 90.0)], NOW)
    assert (old.held, new.held) == (800.0, 910.0)
    # It is asked again, and nothing has happened.
    assert marked(new, new.held, [seen(8, 50.0, 4.0)], 1050.0) == [msgspec.structs.replace(new, held=None)]


def test_a_host_that_does_not_know_what_was_before_does_not_say_that_it_was_so() -> None:
    [old, _] = marked(OLD, 700.0, [seen(8, 1.0, 1.0)], NOW)
    assert old.held == 700.0
    [old, _] = marked(OLD, None, [seen(8, 1.0, 1.0)], NOW)
    assert old.held == 500.0


def test_what_went_back_is_no_mark_and_a_clock_that_was_set_back_changes_no_order() -> None:
    assert marked(OLD, None, [seen(4, 1.0, 1.0)], NOW) == [msgspec.structs.replace(OLD, held=500.0)]
    later = marked(OLD, None, [seen(5, 50.0, 3.0), seen(7, 2.0, 2.0), seen(9, 1.0, 1.0)], 100.0)
    assert [(round(mark.wall, 3), mark.held) for mark in later] == [
        (500.0, None), (500.001, None), (500.002, None),
    ]  # fmt: skip


def test_places_in_a_binary_log_sort_as_they_follow_one_another() -> None:
    places = [(1, 0), (1, 4), (1, 99), (1, 100), (2, 0), (9, 4), (10, 4), (999_999, 16 << 20), (1_000_000, 0)]
    texts = [binlog_place(*place) for place in places]
    assert texts == sorted(texts)
    assert [binlog_of(text) for text in texts] == places
    for wrong in ("", "1:4", "0000000001:4", "0000000000001000", "0000000001:000000000004 "):
        with pytest.raises(ValueError, match="binary log"):
            binlog_of(wrong)


def test_a_backup_of_mariadb_says_where_its_binary_log_goes_on() -> None:
    found = place_of("mariadb", Position(7, "46590,47002,binlog.000012:1178,0-77-5"))
    assert found == binlog_place(12, 1178)
    assert place_of("mariadb", Position(7, "46590,47002,binlog.000012:0,")) == binlog_place(12, 0)
    for wrong in ("46590,47002,:0,", "0/16B3748", "", "1,2,binlog.x:4,"):
        with pytest.raises(ValueError, match="binary log"):
            place_of("mariadb", Position(7, wrong))
    with pytest.raises(ValueError, match="not kept"):
        place_of("another", Position(7, "1"))
