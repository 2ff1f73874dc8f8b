"""What a long simulation has tried, so that it goes on where it was ended.

A file of JSON lines: the first names the code that was tried, each of the others a schedule and what came
of it. Of other code nothing is known: the file begins anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

import unstuck
from unstuck.runtime.files import write_whole
from unstuck.runtime.locks import FileLock


class Tried(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schedule that was run to its end; or ``schedules`` of them under one name, and ``pruned`` more
    that did not have to be."""

    name: str
    effects: int
    violations: tuple[str, ...] = ()
    schedules: int = 1
    pruned: int = 0


class Head(msgspec.Struct, frozen=True):
    code: str


def code_digest() -> str:
    """Of every module of the product: what any of them does may matter to a schedule."""
    digest = hashlib.sha256()
    root = Path(unstuck.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


class Journal:
    """Schedules that were tried with this code. One run writes a journal at a time.

    Raises :class:`~unstuck.runtime.locks.Held` while another one does, ``OSError`` if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._lock.acquire()
        head = msgspec.json.encode(Head(code_digest())) + b"\n"
        kept = list(_whole_lines(path))
        if not kept or kept[0] != head:
            kept = [head]
        self.known: dict[str, Tried] = {}
        for line in kept[1:]:
            tried = msgspec.json.decode(line, type=Tried)
            self.known[tried.name] = tried
        write_whole(path, b"".join(kept))
        self._file = path.open("ab")

    def add(self, tried: Tried) -> None:
        """Remember it; a cut-off last line is forgotten."""
        self._file.write(msgspec.json.encode(tried) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._lock.release()


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    yield from (line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))
