"""Reading along in mariadb-backup's stream: whether it is whole, and where in the logs it belongs.

A chunk names its file, and has a place and a checksum; every file ends with a chunk that says so. The files
in which the tool says what it has done are kept; nothing else that grows with the data is.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final, Protocol

from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.place import Place

FORM: Final = "mbstream"
CHANGES: Final = "mbstream-incremental"
"""What ``Content.content`` calls a full one, and a child."""
MAGIC: Final = b"XBSTCK01"
_HEAD: Final = struct.Struct("<8sBcI")
_LENGTH: Final = struct.Struct("<I")
_PAYLOAD: Final = struct.Struct("<QQI")
PATH_MOST: Final = 512
_KEPT_MOST: Final = 64 << 10
_LSN: Final = re.compile(r"^(\w+) = (\S+)$", re.MULTILINE)
_NAMES: Final = ("xtrabackup_{}", "mariadb_backup_{}")
"""What the tool's own files are called, before and since MariaDB 11."""
OWN: Final = tuple(name.format(what) for what in ("info", "checkpoints", "binlog_info") for name in _NAMES)


class Sink(Protocol):
    """Who is told of files as they pass: their data in its order, and what becomes of them."""

    def data(self, path: str, piece: memoryview) -> None: ...

    def removed(self, path: str) -> None: ...

    def renamed(self, path: str, to: str) -> None: ...


class Tape:
    """Fed with the stream as it passes. :attr:`bad` says what is wrong with it."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.bad = ""
        self._sink = sink
        self._buffer = b""
        self._need = _HEAD.size
        self._state = "head"
        self._type = b""
        self._path = ""
        self._left = 0
        self._checksum = 0
        self._wanted = 0
        self._open: dict[str, int] = {}
        """Bytes so far of the files that have not ended."""
        self._ended = 0
        self._kept: dict[str, bytes] = {}

    def feed(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view and not self.bad:
            if self._state == "payload":
                view = self._pass(view)
                continue
            need = self._need - len(self._buffer)
            self._buffer += bytes(view[:need])
            view = view[need:]
            if len(self._buffer) == self._need:
                block, self._buffer = self._buffer, b""
                self._step(block)

    def _expect(self, state: str, need: int) -> None:
        self._state, self._need = state, need

    def _step(self, block: bytes) -> None:
        match self._state:
            case "head":
                magic, _, self._type, length = _HEAD.unpack(block)
                if magic != MAGIC or self._type not in (b"P", b"E", b"D", b"R"):
                    self.bad = "something in it is no chunk"
                elif not 0 < length <= PATH_MOST:
                    self.bad = "a chunk in it has no path"
                else:
                    self._expect("path", length)
            case "path":
                self._path = block.decode(errors="replace")
                if not is_below(self._path):
                    self.bad = f"a path climbs out of it: {self._path[:80]!r}"
                else:
                    self._chunk()
            case "where":
                self._left, offset, self._wanted = _PAYLOAD.unpack(block)
                self._checksum = 0
                if offset != self._open.get(self._path, 0):
                    self.bad = f"a piece of {self._path[:80]!r} is missing"
                elif self._left:
                    self._state = "payload"
                else:
                    self._open.setdefault(self._path, 0)
                    if self._sink is not None:
                        self._sink.data(self._path, memoryview(b""))
                    self._expect("head", _HEAD.size)
            case "renamed":
                self._expect("to", _LENGTH.unpack(block)[0])
                if not 0 < self._need <= PATH_MOST:
                    self.bad = "a chunk in it has no path"
            case "to":
                to = block.decode(errors="replace")
                if not is_below(to):
                    self.bad = "a path climbs out of it"
                elif self._sink is not None:
                    self._sink.renamed(self._path, to)
                self._expect("head", _HEAD.size)

    def _chunk(self) -> None:
        match self._type:
            case b"P":
                self._expect("where", _PAYLOAD.size)
            case b"R":
                self._expect("renamed", _LENGTH.size)
            case b"E":
                self._open.pop(self._path, None)
                self._ended += 1
                self._expect("head", _HEAD.size)
            case _:
                if self._sink is not None:
                    self._sink.removed(self._path)
                self._expect("head", _HEAD.size)

    def _pass(self, view: memoryview) -> memoryview:
        own = view[: self._left]
        self._checksum = zlib.crc32(own, self._checksum)
        self._open[self._path] = self._open.get(self._path, 0) + len(own)
        if self._sink is not None:
            self._sink.data(self._path, own)
        if self._path in OWN:
            self._kept[self._path] = (self._kept.get(self._path, b"") + bytes(own))[:_KEPT_MOST]
        self._left -= len(own)
        if self._left == 0:
            if self._checksum != self._wanted:
                self.bad = f"a piece of {self._path[:80]!r} has a wrong checksum"
            self._expect("head", _HEAD.size)
        return view[len(own) :]

    # --- once it has ended

    def check(self) -> None:
        """Raises :class:`DatastoreError` unless it is whole."""
        if self.bad or self._buffer or self._state != "head" or self._open or not self._ended:
            raise DatastoreError(f"the copy is not whole: {self.bad or 'it ends too early'}")

    def _own(self, what: str) -> str:
        for name in _NAMES:
            if (found := self._kept.get(name.format(what))) is not None:
                return found.decode(errors="replace")
        raise DatastoreError(f"the copy is not whole: it has no {what}")

    def places(self) -> tuple[int, Place]:
        """After which checkpoint it begins (0: from the very first), and where it ends. Raises
        :class:`DatastoreError`."""
        self.check()
        told = dict(_LSN.findall(self._own("checkpoints")))
        try:
            start = int(told["from_lsn"])
            place = Place(int(told["to_lsn"]), int(told["last_lsn"]), *self._binlog())
        except (KeyError, ValueError, IndexError):
            raise DatastoreError("the copy says not where it ends") from None
        if told.get("backup_type") != ("incremental" if start else "full-backuped"):
            raise DatastoreError("the copy is not of the kind that it says")
        return start, place

    def _binlog(self) -> tuple[str, int, str]:
        words = self._own("binlog_info").split("\n")[0].split("\t")
        return words[0], int(words[1]), words[2] if len(words) > 2 else ""


def is_below(path: str) -> bool:
    """Whether a file of that name lies in the folder that it is unpacked into."""
    parts = path.split("/")
    return not path.startswith("/") and ".." not in parts and "\0" not in path and parts[-1] not in ("", ".")
