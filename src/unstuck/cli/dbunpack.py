"""A recovered backup's pieces become files: by the form that their manifest says, and only below a folder.

What comes out is what the datastore's own tools take: a base backup of PostgreSQL with the log for it, or a
copy of MariaDB with the changes since, both as far as they were when they were backed up.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from unstuck.blobs.manifest import Manifest
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb.tape import CHANGES, FORM, Tape

LOG: Final = "wal"
RESTORED_LOG: Final = "restored-log"
RESTORED_CHANGES: Final = "restored-changes"
_FORMS: Final = (("tar", LOG), (FORM, CHANGES))


class Unfit(Exception):
    """It is not the archive that it says. ``str`` says why."""


def fault_of(chain: Sequence[Manifest]) -> str | None:
    """Why it cannot be unpacked here; None: it can."""
    for full, child in _FORMS:
        if chain[0].content == full:
            strange = [link for link in chain[1:] if link.content != child]
            return f"backup {strange[0].backup_id} holds {strange[0].content}" if strange else None
    return f"backup {chain[0].backup_id} holds {chain[0].content}, which this version cannot unpack"


def unpack(manifest: Manifest, number: int, pieces: Iterator[bytes], folder: Path) -> None:
    """One of a chain. All pieces are read to the end: what lies behind the archive's end is checked as well.

    Raises :class:`Unfit`, :class:`OSError`.
    """
    if manifest.content in (FORM, CHANGES):
        target = folder / RESTORED_CHANGES / str(number) if number else folder
        target.mkdir(parents=True, exist_ok=True)
        _unpack_stream(pieces, target)
    else:
        target = folder / RESTORED_LOG if number else folder
        target.mkdir(exist_ok=True)
        _unpack_tar(pieces, target, over=number > 0)
    os.sync()


def add_log(folder: Path, name: str, data: bytes) -> None:
    """A segment of the log for the server to replay, in the place of one that is there (the same, longer)."""
    if "/" in name or name.startswith("."):
        raise Unfit(f"a piece of the log is called {name!r}")
    target = folder / RESTORED_LOG
    target.mkdir(exist_ok=True)
    (target / name).write_bytes(data)


def finish(
    chain: Sequence[Manifest], folder: Path, target: Path, *, upto: str | None = None, log: bool = False
) -> list[str]:
    """What is left to be done, in sentences; what can be is."""
    made = chain[-1].datastore
    if chain[0].content == FORM:
        steps = [f"mariadb-backup --prepare --target-dir={target}"]
        steps += [
            f"{steps[0]} --incremental-dir={target / RESTORED_CHANGES / str(number)}"
            for number in range(1, len(chain))
        ]
        return [
            f"Make it data of one moment with the tools of {made.type} {made.server_version}, in this order:",
            *(f"  {step}" for step in steps),
            "Then a server of that version can be started on it.",
        ]
    words = [f"A server of that version can be started on it: {made.type} {made.server_version}."]
    if len(chain) > 1 or log:
        _replay(folder, upto)
        words.append(f"At its start it replays the log in {RESTORED_LOG}, which can be removed after that.")
    if upto is not None:
        words.append(
            "Should it end with 'recovery ended before configured recovery target was reached', nothing was "
            "written behind that moment: take recovery_target_lsn out of postgresql.auto.conf."
        )
    return words


def _replay(folder: Path, upto: str | None) -> None:
    """The server reads the log at its first start, to its end or ``upto`` an LSN, and goes on by itself."""
    settings = (
        f"restore_command = 'cp {RESTORED_LOG}/%f %p'\n"
        "recovery_target_timeline = 'current'\nrecovery_target_action = 'promote'\nhot_standby = off\n"
    )
    if upto is not None:
        settings += f"recovery_target_lsn = '{upto}'\nrecovery_target_inclusive = off\n"
    with (folder / "postgresql.auto.conf").open("a") as file:
        file.write(settings)
    (folder / "recovery.signal").touch()


# --- MariaDB


class _Files:
    """Files below ``folder``, for their owner only. They come one beside the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[str, IO[bytes]] | None = None

    def data(self, path: str, piece: memoryview) -> None:
        if self._last is None or self._last[0] != path:
            self.close()
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._last = path, target.open("ab")
        self._last[1].write(piece)

    def removed(self, path: str) -> None:
        self.close()
        (self._folder / path).unlink(missing_ok=True)

    def renamed(self, path: str, to: str) -> None:
        self.close()
        target = self._folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / path).rename(target)

    def close(self) -> None:
        if self._last is not None:
            self._last[1].close()
            self._last = None


def _unpack_stream(pieces: Iterator[bytes], folder: Path) -> None:
    files = _Files(folder)
    tape = Tape(files)
    try:
        for piece in pieces:
            tape.feed(piece)
    finally:
        files.close()
    try:
        tape.places()
    except DatastoreError as error:
        raise Unfit(error.reason) from None


# --- PostgreSQL


def _unpack_tar(pieces: Iterator[bytes], folder: Path, *, over: bool) -> None:
    from unstuck.blobs.restore import PiecesFile

    try:
        with tarfile.open(fileobj=PiecesFile(pieces), mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                _unpack_one(archive, member, folder, over=over)
    except tarfile.TarError as error:
        raise Unfit(str(error)) from None
    for _ in pieces:
        pass


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, *, over: bool) -> None:
    """Files and folders below ``folder``, for their owner only; a base backup holds nothing else.

    ``over``: in the place of files that are there, which are segments of the same log.
    """
    parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise tarfile.TarError(f"it names {member.name!r}, which lies outside")
    path = folder.joinpath(*parts)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    data = archive.extractfile(member) if member.isreg() else None
    if data is None:
        raise tarfile.TarError(f"{member.name!r} is neither a file nor a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if over else "xb") as file:
        shutil.copyfileobj(data, file, 1 << 20)
