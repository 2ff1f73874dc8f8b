"""What this host has stored of one attempt, on its own disk: a restarted agent goes on with it.

One line for each piece, after its object was stored. A line that was lost with the agent costs nothing: the
guest had no answer, and asks again. The object store's own word is not enough, because the order, lengths and
digests of the plain data are in no object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.backup.content import Chunk

_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Ledger:
    """The pieces of one attempt, by index, and the manifest's digest once that is written."""

    def __init__(self, server: Path, nonce: str) -> None:
        if not _NONCE.match(nonce):
            raise ValueError("an attempt's nonce cannot name a file")
        self._path = server / f"attempt-{nonce}.log"
        self.chunks: dict[int, Chunk] = {}
        self.digest: str | None = None
        self._torn = False
        self._read()

    def add(self, chunk: Chunk) -> None:
        """Raises OSError; then the piece counts as not stored."""
        self._append(msgspec.json.encode(chunk))
        self.chunks[chunk.index] = chunk

    def finish(self, digest: str) -> None:
        """The manifest is written."""
        self._append(msgspec.json.encode(digest))
        self.digest = digest

    def begin(self) -> None:
        """Forget what is left of earlier attempts: nobody can go on with them."""
        for other in self._path.parent.glob("attempt-*.log"):
            if other != self._path:
                other.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            line = (b"\n" if self._torn else b"") + line + b"\n"
            written = os.write(opened, line)
            self._torn = written != len(line)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(opened)

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            data = self._path.read_bytes()
            self._torn = bool(data) and not data.endswith(b"\n")
            for line in data.splitlines():
                # A line that was cut says nothing: its piece is asked for again.
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    self._take(msgspec.json.decode(line, type=Chunk | str))

    def _take(self, entry: Chunk | str) -> None:
        if isinstance(entry, str):
            self.digest = entry
        else:
            self.chunks[entry.index] = entry
