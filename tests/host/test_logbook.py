"""What a host says of a guest's log: never more than it can know, whatever waited on its way."""

from __future__ import annotations

from itertools import pairwise

import pytest

from unstuck.core.archive.data import LogView
from unstuck.host.logbook import MOST, LogBook


class Guest:
    """An agent that looks, and tells what it saw; and the clock of its host."""

    def __init__(self) -> None:
        self.book = LogBook()
        self.now = 100.0
        self.words = 0
        self.answered = 0
        self.book.greet(self.now, anew=True)

    def looks(self, position: int | None) -> tuple[int | None, int, int]:
        self.words += 1
        return position, self.words, self.answered

    def tells(self, word: tuple[int | None, int, int], *, stands: bool = False) -> None:
        position, number, after = word
        log = None if position is None else LogView(timeline=1, position=f"{position:016X}")
        assert not self.book.is_late(number)
        self.book.see(log, stands=stands, number=number, after=after, now=self.now)
        self.answered = number

    def known(self) -> list[tuple[int, float, float]]:
        """Position, since when it is known, and up to when it is certain that it was no further."""
        word = self.book.word(self.now)
        return [(int(one.position, 16), self.now - one.first, self.now - one.last) for one in word]


def test_a_position_is_certain_up_to_the_answer_before_the_look_and_no_further() -> None:
    guest = Guest()
    guest.tells(guest.looks(5))
    guest.now = 105.0
    guest.tells(guest.looks(5))
    guest.now = 110.0
    guest.tells(guest.looks(7))
    assert guest.known() == [(5, 100.0, 100.0), (7, 110.0, 105.0)]


def test_a_word_that_waited_for_long_confirms_nothing() -> None:
    guest = Guest()
    guest.tells(guest.looks(5))
    first, second = guest.looks(5), guest.looks(9)
    guest.now = 160.0  # the host stood still, and both lay in its socket
    guest.tells(first)
    guest.tells(second)
    assert guest.known() == [(5, 100.0, 100.0), (9, 160.0, 100.0)]
    assert guest.book.is_stale(guest.now)


def test_a_late_copy_is_told_from_a_new_word() -> None:
    guest = Guest()
    guest.tells(guest.looks(5))
    guest.tells(guest.looks(6))
    assert guest.book.is_late(1)
    assert guest.book.is_late(2)
    assert not guest.book.is_late(3)
    guest.book.greet(guest.now, anew=True)
    assert not guest.book.is_late(1), "another process counts from the beginning"


def test_an_agent_that_counts_nothing_is_taken_at_its_word() -> None:
    book = LogBook()
    for now in (100.0, 105.0):
        assert not book.is_late(0)
        book.see(LogView(timeline=1, position="A"), stands=False, number=0, after=0, now=now)
    [only] = book.word(110.0)
    assert (only.first, only.last) == (10.0, 5.0)


def test_the_log_of_a_server_that_does_not_run_stands_still_unless_nobody_had_looked_before() -> None:
    guest = Guest()
    guest.tells(guest.looks(5))
    guest.now = 110.0
    guest.tells(guest.looks(5))
    guest.now = 120.0
    guest.tells(guest.looks(None), stands=True)
    assert guest.known()[-1][2] == 110.0
    guest.now = 200.0
    guest.tells(guest.looks(None), stands=True)
    guest.now = 210.0
    guest.tells(guest.looks(None), stands=True)
    assert guest.known()[-1][2] == 120.0, "it may have been written to before it ended"


def test_what_the_store_has_taken_is_told_no_more_but_where_it_went_on_from() -> None:
    guest = Guest()
    for position in (5, 6, 7):
        guest.tells(guest.looks(position))
    word = guest.book.word(guest.now)
    guest.tells(guest.looks(8))
    guest.book.taken(word)
    assert [position for position, _, _ in guest.known()] == [7, 8]


@pytest.mark.parametrize("count", [MOST, MOST + 1, 5 * MOST + 3])
def test_of_many_positions_some_are_remembered_without_a_hole(count: int) -> None:
    guest = Guest()
    for position in range(count):
        guest.now += 5.0
        guest.tells(guest.looks(position))
    known = guest.known()
    assert len(known) <= MOST + 1
    assert known[0][0] == 0
    assert known[-1][0] == count - 1
    spacing = 10.0 * 2 ** (count // MOST)
    assert all(after[1] - before[2] <= spacing + 5.0 for before, after in pairwise(known))
