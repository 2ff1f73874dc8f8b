"""Files of a binary log as bytes: their heads, where the last whole event ends, and their pieces."""

from __future__ import annotations

import struct

import pytest

from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.binlog import (
    MAGIC,
    SLICE,
    File,
    head_of,
    name_of,
    parts_of,
    piece_of,
    whole_until,
)
from unstuck.guest.datastores.mariadb.scheduled import Scheduled


def event(size: int, kind: int = 15) -> bytes:
    """Of this many bytes, its header among them."""
    return struct.pack("<IBIIIH", 0, kind, 7, size, 0, 0) + bytes(size - 19)


HEAD = MAGIC + event(252) + event(43, 163)


def test_the_head_of_a_file_is_its_first_two_events() -> None:
    assert head_of(HEAD + event(99, 2)) == HEAD
    for wrong in (b"", HEAD[:-1], HEAD[: 4 + 252 + 10], b"\0" + HEAD):
        with pytest.raises(DatastoreError):
            head_of(wrong)


def test_what_a_crash_cut_off_is_not_part_of_a_file() -> None:
    whole = HEAD + event(100) + event(200)
    assert whole_until(whole, 0) == len(whole)
    for torn in range(1, 200):
        assert whole_until(whole[:-torn], 0) == len(HEAD) + 100
    assert whole_until(whole, len(HEAD)) == len(whole)
    # A length that is none ends it as well: nothing goes round in circles.
    assert whole_until(HEAD + bytes(50), 0) == len(HEAD)


@pytest.mark.parametrize("size", [1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE, 3 * SLICE + 5])
def test_pieces_of_a_file_follow_one_another_and_the_next_file_follows_the_last(size: int) -> None:
    file = File(12, size)
    pieces = [piece_of(file, index, 1, 7) for index in range(file.slices)]
    after = piece_of(File(13, 1), 0, 1, 7)
    for one, following in zip(pieces, [*pieces[1:], after], strict=True):
        assert one.start < one.stop == following.start
        assert one.name < following.name
    assert [parts_of(piece.name) for piece in pieces] == [(12, index) for index in range(file.slices)]


def test_names_sort_as_the_log_does() -> None:
    names = [name_of(*one) for one in [(1, 0), (9, 12), (10, 0), (10, 2), (999_999, 0), (1_000_000, 0)]]
    assert names == sorted(names)
    for wrong in ("binlog.000001", "binlog.0000000001.000000/..", "0" * 24):
        with pytest.raises(DatastoreError):
            parts_of(wrong)


def test_scheduled_events_are_as_their_statements_said() -> None:
    said = Scheduled()
    for text in (
        "CREATE EVENT plain ON SCHEDULE EVERY 1 HOUR DO SELECT 1",
        "CREATE DEFINER=`anna`@`%` EVENT `of``f` ON SCHEDULE EVERY 1 DAY DISABLE COMMENT 'ENABLE DO'"
        " DO BEGIN END",
        "/* a note */ create or replace event if not exists other.e ON SCHEDULE EVERY 1 DAY COMMENT 'DISABLE'"
        " DO UPDATE t SET note = 'DISABLE'",
        "CREATE EVENT first ON SCHEDULE EVERY 1 DAY DISABLE ON SLAVE DO SELECT 1",
        "ALTER EVENT plain RENAME TO later",
        "ALTER EVENT first RENAME TO shop.second ENABLE",
        "ALTER DEFINER = CURRENT_USER() EVENT unheard COMMENT 'x'",
        "ALTER EVENT known DISABLE",
        "CREATE TABLE event (n int)",
        "DROP EVENT known",
        "/**/" * 5000 + "none of these",
    ):
        said.heard("shop", text)
    assert said.runs == {
        ("shop", "later"): True, ("shop", "of`f"): False, ("other", "e"): True, ("shop", "second"): True,
        ("shop", "known"): False,
    }  # fmt: skip
