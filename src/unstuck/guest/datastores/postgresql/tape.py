"""Reading along in a base backup's tar: whether it is whole, and where in the log it belongs.

Only headers are looked at, beside two files: ``backup_label``, which comes first, and ``backup_manifest``,
which comes last and holds its own digest. Nothing is kept that grows with the data.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

from unstuck.core.backup.content import Position
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.postgresql.segments import number_of

BLOCK: Final = 512
_LABEL_MOST: Final = 64 << 10
_CHECKSUM: Final = re.compile(rb'"Manifest-Checksum": "([0-9a-f]{64})"\}\n\Z')
_CHECKSUM_LENGTH: Final = len('"Manifest-Checksum": "') + 64 + len('"}\n')
_RANGES_MOST: Final = 64 << 10
_START: Final = re.compile(r"^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) ", re.MULTILINE)
_TIMELINE: Final = re.compile(r"^START TIMELINE: (\d+)$", re.MULTILINE)


class Tape:
    """Fed with the stream as it passes."""

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0
        """Bytes of the present file that are still to pass, with what fills its last block up."""
        self._left = 0
        """Bytes of it that are its own."""
        self._name = ""
        self._label = b""
        self._tail = b""
        self._digest = hashlib.sha256()
        self._manifest = False
        self._zeros = 0
        self._bad = ""

    def feed(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view and not self._bad:
            if self._skip:
                view = self._pass(view)
                continue
            need = BLOCK - len(self._head)
            self._head += bytes(view[:need])
            view = view[need:]
            if len(self._head) == BLOCK:
                self._header(self._head)
                self._head = b""

    def _pass(self, view: memoryview) -> memoryview:
        own = min(self._left, len(view))
        if own and self._name == "backup_label":
            self._label = (self._label + bytes(view[:own]))[:_LABEL_MOST]
        elif own and self._name == "backup_manifest":
            self._hold(bytes(view[:own]))
        self._left -= own
        gone = min(self._skip, len(view))
        self._skip -= gone
        return view[gone:]

    def _hold(self, data: bytes) -> None:
        """The digest is of all before the digest: that much is held back."""
        data = self._tail + data
        cut = max(0, len(data) - _RANGES_MOST)
        self._digest.update(data[:cut])
        self._tail = data[cut:]

    def _header(self, block: bytes) -> None:
        if not any(block):
            self._zeros += 1
            return
        if self._zeros:
            self._bad = "something follows its end"
            return
        try:
            size = _number(block[124:136])
            checksum = int(block[148:156].strip(b"\0 "), 8)
        except ValueError:
            self._bad = "a header in it cannot be read"
            return
        if checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            self._bad = "a header in it has a wrong checksum"
            return
        self._name = block[:100].rstrip(b"\0").decode(errors="replace").removeprefix("./")
        if self._manifest:
            self._bad = "a file follows its manifest"
        self._manifest = self._name == "backup_manifest"
        self._left = size
        self._skip = -(-size // BLOCK) * BLOCK

    def positions(self) -> tuple[Position, Position]:
        """Where the copy begins and where its log has to be read to. Raises :class:`DatastoreError`."""
        if self._bad or self._head or self._skip or self._zeros < 2 or not self._manifest:
            raise DatastoreError(f"the copy is not whole: {self._bad or 'it ends too early'}")
        found = _CHECKSUM.search(self._tail)
        if found is None:
            raise DatastoreError("the copy's manifest is not whole")
        self._digest.update(self._tail[:-_CHECKSUM_LENGTH])
        if self._digest.hexdigest() != found[1].decode():
            raise DatastoreError("the copy's manifest is damaged")
        return self._start(), self._stop()

    def _start(self) -> Position:
        label = self._label.decode(errors="replace")
        lsn, timeline = _START.search(label), _TIMELINE.search(label)
        if lsn is None or timeline is None:
            raise DatastoreError("the copy says not where it begins")
        return Position(int(timeline[1]), lsn[1])

    def _stop(self) -> Position:
        text = self._tail.decode(errors="replace")
        at = text.rfind('"WAL-Ranges"')
        try:
            ranges: list[dict[str, Any]] = json.loads("{" + text[at:])["WAL-Ranges"]
            last = max(ranges, key=lambda entry: number_of(str(entry["End-LSN"])))
            return Position(int(last["Timeline"]), str(last["End-LSN"]))
        except (ValueError, KeyError, TypeError):
            raise DatastoreError("the copy says not where it ends") from None


def _number(field: bytes) -> int:
    """Octal, or binary where that is too small (files of 8 GiB and more)."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)
