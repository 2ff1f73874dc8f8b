"""The binary log: its files, their pieces as they are kept, and what of it says that nothing happened.

A piece is a part of a file that can change no more, :data:`SLICE` bytes at most. Only large transactions make
files of several pieces; all but the first begin with a copy of the file's head, so that each can be read
alone.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from unstuck.core.archive.data import Piece
from unstuck.core.archive.positions import binlog_place
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.config import BINLOG
from unstuck.guest.datastores.mariadb.session import Session
from unstuck.guest.datastores.mariadb.words import literal

SLICE: Final = 16 << 20
MAGIC: Final = b"\xfebin"
HEAD_MOST: Final = 256 << 10
"""Bytes in which a file's first two events end: what it is written in, and what went before it."""
_HEADER: Final = struct.Struct("<IBIIIH")
_QUERY: Final = 2
_QUERY_HEAD: Final = struct.Struct("<IIBHH")
"""Thread, seconds, length of the database's name, error, length of what describes the session."""
_CHECKSUM: Final = 4
_LENGTH: Final = struct.Struct("<I")
_LENGTH_AT: Final = 9
_QUIET: Final = ("Format_desc", "Gtid_list", "Binlog_checkpoint", "Start_encryption", "Rotate", "Stop")
"""Events in which nothing happens to data."""
_FIRST: Final = 16
"""Events of a file that are looked at: quiet ones stand at its beginning."""
_NAME: Final = re.compile(BINLOG + r"\.([0-9]{10})\.([0-9]{6})")


class File(msgspec.Struct, frozen=True):
    """One of the binary log's. ``size`` in bytes."""

    number: int
    size: int

    @property
    def name(self) -> str:
        return f"{BINLOG}.{self.number:06d}"

    @property
    def slices(self) -> int:
        return max(1, -(-self.size // SLICE))


class Log(msgspec.Struct, frozen=True):
    """The whole of it, the oldest file first; the last one is written to. ``offset``: up to where anything
    has happened in that, 0: nothing yet."""

    files: tuple[File, ...]
    number: int
    offset: int

    @property
    def closed(self) -> tuple[File, ...]:
        return self.files[:-1]

    @property
    def position(self) -> str:
        return binlog_place(self.number, self.offset)


def see(session: Session) -> Log:
    """What is on the disk by now: the server tells no place before it has synced what lies before it."""
    row = session.one("SHOW MASTER STATUS")
    if row is None:
        raise DatastoreError("the server writes no binary log")
    number, offset = number_of(str(row[0])), int(row[1])
    if is_quiet(session, str(row[0]), offset):
        offset = 0
    files = tuple(File(number_of(str(one[0])), int(one[1])) for one in session.ask("SHOW BINARY LOGS"))
    return Log(files, number, offset)


def is_quiet(session: Session, file: str, before: int) -> bool:
    """Whether nothing has happened in this file before this place in it."""
    rows = session.ask(f"SHOW BINLOG EVENTS IN {literal(file)} LIMIT {_FIRST}")
    return all(str(row[2]) in _QUIET for row in rows if int(row[1]) < before) and (
        len(rows) < _FIRST or int(rows[-1][1]) >= before
    )


def number_of(file: str) -> int:
    """Raises :class:`DatastoreError`."""
    number = file.rpartition(".")[2]
    if not number.isdigit():
        raise DatastoreError(f"{file[:80]!r} is no file of a binary log")
    return int(number)


def forget_before(session: Session, number: int) -> None:
    """Older files go, unless a crash now would need them."""
    session.ask(f"PURGE BINARY LOGS TO {literal(File(number, 0).name)}")


def end_file(session: Session) -> None:
    """From now on another file is written to, so that this one can be kept."""
    session.ask("FLUSH LOCAL BINARY LOGS")


# --- pieces


def name_of(number: int, index: int) -> str:
    return f"{BINLOG}.{number:010d}.{index:06d}"


def parts_of(name: str) -> tuple[int, int]:
    """The number of its file, and of the piece in it. Raises :class:`DatastoreError`."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise DatastoreError(f"{name[:80]!r} is no piece of a binary log")
    return int(found[1]), int(found[2])


def piece_of(file: File, index: int, size: int, timeline: int) -> Piece:
    """Without its digest; ``size`` with the head."""
    last = index == file.slices - 1
    return Piece(
        name=name_of(file.number, index), timeline=timeline,
        start=binlog_place(file.number, index * SLICE),
        stop=binlog_place(file.number + 1, 0) if last else binlog_place(file.number, (index + 1) * SLICE),
        size=size, digest="",
    )  # fmt: skip


def head_of(data: bytes) -> bytes:
    """A file's first two events. Raises :class:`DatastoreError`."""
    if data[: len(MAGIC)] != MAGIC:
        raise DatastoreError("a file of the binary log does not begin as one")
    at = len(MAGIC)
    for _ in range(2):
        if at + _HEADER.size > len(data):
            raise DatastoreError("a file of the binary log ends in its head")
        at += max(_LENGTH.unpack_from(data, at + _LENGTH_AT)[0], _HEADER.size)
    if at > len(data):
        raise DatastoreError("a file of the binary log ends in its head")
    return data[:at]


def whole_until(data: bytes | mmap.mmap, start: int) -> int:
    """Where the last event ends that is there whole; ``start``: where one begins. What a crash cut off was
    acknowledged to nobody."""
    at, size = max(start, len(MAGIC)), len(data)
    while at + _HEADER.size <= size:
        (length,) = _LENGTH.unpack_from(data, at + _LENGTH_AT)
        if length < _HEADER.size or at + length > size:
            break
        at += length
    return at


def statements(file: mmap.mmap, start: int, end: int) -> Iterator[tuple[str, str]]:
    """Statements in a file from where an event begins, each with its database: rows are not among them."""
    at = max(start, len(MAGIC))
    while at + _HEADER.size <= end:
        _, kind, _, length, _, _ = _HEADER.unpack_from(file, at)
        if kind == _QUERY and length > _HEADER.size + _QUERY_HEAD.size + _CHECKSUM:
            _, _, database, _, status = _QUERY_HEAD.unpack_from(file, at + _HEADER.size)
            name = at + _HEADER.size + _QUERY_HEAD.size + status
            text = name + database + 1
            yield (
                file[name : name + database].decode(errors="replace"),
                file[text : at + length - _CHECKSUM].decode(errors="replace"),
            )
        at += max(length, _HEADER.size)
