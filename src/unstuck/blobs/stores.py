"""Where backups go: stores of objects by name, as the operator has set them up.

``local`` is a folder and always there. Others stand in a file (``backup-stores.json``, readable by its owner
alone because it holds credentials), which is read again when it changes: credentials may be replaced while
backups run. A store's name is what backups remember, so it must not come to mean another place.
"""

from __future__ import annotations

import re
import threading
import uuid
from pathlib import Path
from typing import Final

import msgspec

from unstuck.blobs.objects import (
    ANSWER,
    BlobError,
    FolderObjects,
    Location,
    Objects,
    Problem,
    open_objects,
)
from unstuck.core.backup.limits import Wish
from unstuck.runtime.files import private_folder, write_once, write_whole

LOCAL: Final = "local"
MARKER: Final = ".unstuck-objects"
FORMAT: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class StoresUnusable(Exception):
    """The operator's file cannot be used; why, and what helps."""


class StoresFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``backup-stores.json``. ``limits``: the operator's deadlines for backups."""

    format: int = FORMAT
    default: str = LOCAL
    stores: dict[str, Location] = {}
    limits: Wish = Wish()


class Places(msgspec.Struct, frozen=True):
    """The stores that there are, by name, and the operator's deadlines for backups."""

    names: tuple[str, ...]
    default: str
    limits: Wish = Wish()


class Stores:
    """Stores by name. Calls may come from any thread."""

    def __init__(self, folder: Path, file: Path, *, answer: float = ANSWER) -> None:
        self._folder = folder
        self._file = file
        self._answer = answer
        self.folder_id: str | None = folder_id(folder)
        """Which folder it has to be; a control plane elsewhere may have another one under the same name."""
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._known = StoresFile()
        self._open: dict[Location, Objects] = {}

    def _read(self) -> StoresFile:
        """As the file is now; one that cannot be read changes nothing about what is known."""
        try:
            info = self._file.stat()
            stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
        except FileNotFoundError:
            return self._known
        with self._lock:
            if stamp != self._stamp:
                self._known, self._stamp = read_file(self._file), stamp
            return self._known

    def places(self) -> Places:
        """All that a backup may be sent to, the default first. Raises :class:`StoresUnusable`."""
        known = self._read()
        return Places(
            tuple(dict.fromkeys([known.default, LOCAL, *known.stores])), known.default, known.limits
        )

    def location(self, name: str) -> Location:
        """Raises :class:`BlobError` for a name that the operator has taken away."""
        if name == LOCAL:
            if folder_id(self._folder) != self.folder_id:
                raise BlobError(
                    Problem.UNREACHABLE,
                    f"the folder {self._folder} is not the one that this cloud's backups are in; mount that",
                )
            return Location(self._folder.as_uri())
        try:
            found = self._read().stores.get(name)
        except StoresUnusable as error:
            raise BlobError(Problem.FAULT, str(error)) from error
        if found is None:
            reason = f"no store of objects is called {name!r} (any more): put it back into {self._file.name}"
            raise BlobError(Problem.REFUSED, reason)
        return found

    def objects(self, name: str) -> Objects:
        """Raises :class:`BlobError`."""
        where = self.location(name)
        with self._lock:
            found = self._open.get(where)
            if found is None:
                self._open = {**self._open, where: self._opened(where)}
                found = self._open[where]
        return found

    def _opened(self, where: Location) -> Objects:
        found = open_objects(where, self._answer)
        return FolderObjects(found.root, MARKER) if isinstance(found, FolderObjects) else found

    def remote(self, name: str) -> Location | None:
        """What a host needs to read and write there by itself; None: it goes through the control plane."""
        where = self.location(name)
        return None if where.url.startswith("file:") else where


def read_file(path: Path) -> StoresFile:
    """Raises :class:`StoresUnusable`. Secrets never come into the message."""
    try:
        if path.stat().st_mode & 0o077:
            raise StoresUnusable(f"{path} holds credentials and may be read by others: chmod 600 {path}")
        found = msgspec.json.decode(path.read_bytes(), type=StoresFile)
    except msgspec.ValidationError as error:
        raise StoresUnusable(f"{path}: {error}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise StoresUnusable(f"{path} cannot be read: {type(error).__name__}") from None
    if found.format != FORMAT:
        raise StoresUnusable(f"{path} has format {found.format}, this version knows {FORMAT}")
    for name, where in found.stores.items():
        check_name(name)
        check_location(where)
    if found.default != LOCAL and found.default not in found.stores:
        raise StoresUnusable(f"{path}: the default store {found.default!r} is not among its stores")
    return found


def check_name(name: str) -> None:
    if name == LOCAL or not NAME.match(name):
        raise StoresUnusable(f"{name!r} is no name for a store: letters, digits, . _ -, and not {LOCAL!r}")


def check_location(where: Location) -> None:
    try:
        open_objects(where)
    except ValueError as error:
        raise StoresUnusable(str(error)) from error
    except Exception as error:  # the library's own errors say what is wrong with an address
        raise StoresUnusable(f"{where.url} cannot be used: {str(error).splitlines()[0][:200]}") from error


def add(path: Path, name: str, where: Location) -> bool:
    """Set up a store and make it the default; False: nothing was changed. Raises :class:`StoresUnusable`."""
    check_name(name)
    check_location(where)
    old = read_file(path) if path.exists() else StoresFile()
    known = old.stores.get(name)
    if known is not None and known.url != where.url:
        raise StoresUnusable(
            f"the store {name!r} is {known.url}, and backups lie there: give {where.url} another name"
        )
    new = msgspec.structs.replace(old, default=name, stores={**old.stores, name: where})
    if new == old:
        return False
    opened = open_objects(where)
    if isinstance(opened, FolderObjects):
        make_folder(opened.root)
    write_whole(path, msgspec.json.format(msgspec.json.encode(new), indent=2) + b"\n")
    return True


def make_folder(folder: Path) -> str:
    """A store in a folder, once: one without its marker later is not mounted, and no empty store.

    Its id, which tells it from any other folder.
    """
    private_folder(folder).chmod(0o700)
    return write_once(folder / MARKER, str(uuid.uuid4()).encode()).decode(errors="replace").strip()[:64]


def folder_id(folder: Path) -> str | None:
    """The id of a store in a folder; None: it is not there."""
    try:
        return (folder / MARKER).read_text(errors="replace").strip()[:64]
    except OSError:
        return None
