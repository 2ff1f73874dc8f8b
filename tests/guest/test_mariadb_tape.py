"""Reading along in a copy's stream: what is whole, and everything that is not."""

from __future__ import annotations

import struct
import zlib

import pytest

from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.place import Place, place_of
from unstuck.guest.datastores.mariadb.tape import Tape, is_below
from unstuck.guest.datastores.mariadb.words import database_of, identifier, literal, pattern

CHECKPOINTS = "backup_type = full-backuped\nfrom_lsn = 0\nto_lsn = 53064\nlast_lsn = 56393\n"


def chunk(kind: bytes, path: str) -> bytes:
    return struct.pack("<8sBcI", b"XBSTCK01", 0, kind, len(path)) + path.encode()


def piece(path: str, data: bytes, offset: int = 0) -> bytes:
    return chunk(b"P", path) + struct.pack("<QQI", len(data), offset, zlib.crc32(data)) + data


def file(path: str, data: bytes) -> bytes:
    return piece(path, data) + chunk(b"E", path)


def stream(checkpoints: str = CHECKPOINTS, prefix: str = "xtrabackup_", more: bytes = b"") -> bytes:
    return (
        file("ibdata1", bytes(1000)) + more + file(f"{prefix}checkpoints", checkpoints.encode())
        + file(f"{prefix}binlog_info", b"binlog.000002\t673\t0-77-29\n") + file(f"{prefix}info", b"x = 1\n")
    )  # fmt: skip


def read(data: bytes, step: int = 1 << 20) -> Tape:
    tape = Tape()
    for at in range(0, len(data), step):
        tape.feed(data[at : at + step])
    return tape


@pytest.mark.parametrize("prefix", ["xtrabackup_", "mariadb_backup_"])
@pytest.mark.parametrize("step", [1, 7, 4096])
def test_a_whole_copy_says_where_it_ends(prefix: str, step: int) -> None:
    start, place = read(stream(prefix=prefix), step).places()
    assert start == 0
    assert place == Place(53064, 56393, "binlog.000002", 673, "0-77-29")
    assert place_of(place.text) == place


def test_files_may_come_in_turns_and_be_renamed_and_removed() -> None:
    two = piece("a/x", b"one") + piece("a/y", b"two") + piece("a/x", b"three", 3)
    over = chunk(b"E", "a/y") + chunk(b"E", "a/x") + chunk(b"D", "a/y") + chunk(b"R", "a/x")
    renamed = struct.pack("<I", 3) + b"a/z"
    assert not read(stream(more=two + over + renamed), 5).bad
    read(stream(more=two + over + renamed), 5).check()


def test_a_copy_that_is_cut_off_anywhere_is_not_whole() -> None:
    whole = stream()
    for end in range(0, len(whole), 13):
        with pytest.raises(DatastoreError, match="not whole"):
            read(whole[:end]).places()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (piece("a", b"data")[:-1] + b"X" + chunk(b"E", "a"), "wrong checksum"),
        (piece("a", b"data", 5), "is missing"),
        (file("../a", b"data"), "climbs out"),
        (file("/etc/passwd", b"data"), "climbs out"),
        (chunk(b"E", "a")[:9] + b"?" + chunk(b"E", "a")[10:], "no chunk"),
        (b"XBSTCK02" + bytes(20), "no chunk"),
        (chunk(b"E", ""), "no path"),
        (piece("a", b"data"), "too early"),
        (chunk(b"R", "a") + struct.pack("<I", 4) + b"../b", "climbs out"),
    ],
)
def test_what_is_wrong_with_a_copy_is_named(bad: bytes, words: str) -> None:
    with pytest.raises(DatastoreError, match=words):
        read(stream(more=bad)).places()


@pytest.mark.parametrize(
    "checkpoints",
    [
        CHECKPOINTS.replace("full-backuped", "incremental"), CHECKPOINTS.replace("to_lsn", "to"),
        CHECKPOINTS.replace("from_lsn = 0", "from_lsn = 9"), "",
    ],
)  # fmt: skip
def test_a_copy_that_contradicts_itself_is_none(checkpoints: str) -> None:
    with pytest.raises(DatastoreError):
        read(stream(checkpoints)).places()


def test_names_stay_names() -> None:
    assert literal("a'b\\c") == "'a''b\\\\c'"
    assert identifier("a`b") == "`a``b`"
    for name in ("shop", "a_b", "100%", "a\\_b", "\\"):
        assert database_of(pattern(name)) == name
    assert pattern("a_b%") == "a\\_b\\%"
    assert is_below("a/b.ibd")
    assert not any(is_below(path) for path in ("/a", "../a", "a/../b", "a/", "a/."))
