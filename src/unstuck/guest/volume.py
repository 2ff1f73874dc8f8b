"""The volume of a database: where its data lies, whose it is, and what is only half made.

``database/`` is there whole or not at all: it is made as ``making/``, synced and renamed. Its marker says
which data it is. Everything else in a volume is nobody's business, and a reason to touch nothing (law 7).
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.server.data import Thing
from unstuck.runtime.files import sweep_halves, sync_folder, write_whole

FORMAT: Final = 1
_KNOWN: Final = frozenset({"database", "making", "log", "lost+found", "archive-gap.json"})


class Marker(msgspec.Struct, frozen=True):
    """``unstuck.json``. ``applied``: the initial databases and users are made."""

    format: int
    generation: str
    datastore: str
    version: str
    applied: bool = False


class Found(msgspec.Struct, frozen=True):
    """What is there. ``foreign``: other data than the wanted; ``reason``: why nothing can be said."""

    data: Thing
    marker: Marker | None = None
    foreign: str = ""
    reason: str = ""


class Volume:
    """``mounted``: the folder has to be a mount point, else its file system is missing. ``owner``: the
    datastore's user, who has to get at it."""

    def __init__(self, root: Path, owner: str, *, mounted: bool) -> None:
        self.root = root
        self._group = pwd.getpwnam(owner).pw_gid
        self._mounted = mounted

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def making(self) -> Path:
        return self.root / "making"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def look(self, generation: str) -> Found:
        """Whether the data of this generation is there (law 4)."""
        try:
            if self._mounted and not self.root.is_mount():
                return Found(Thing.UNKNOWN, reason="its file system is not mounted")
            names = {entry.name for entry in self.root.iterdir()}
            if "database" not in names:
                return _without(names)
            marker = read_marker(self.database)
        except (OSError, msgspec.MsgspecError) as error:
            return Found(Thing.UNKNOWN, reason=str(error))
        if marker.format != FORMAT:
            reason = f"it has format {marker.format}, this agent knows {FORMAT}"
            return Found(Thing.UNKNOWN, reason=reason)
        if marker.generation != generation:
            return Found(Thing.UNKNOWN, marker, foreign=f"data generation {marker.generation}")
        return Found(Thing.PRESENT, marker)

    def space(self) -> tuple[int, int]:
        """Bytes that are free for the datastore, and in all."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def prepare(self) -> None:
        """The agent's and the datastore's user both make things here."""
        self._share(self.root)
        self.log.mkdir(exist_ok=True)
        self._share(self.log)

    def begin(self) -> Path:
        """An empty ``making/``; what was left of another has been removed by its owner."""
        return self.shared(self.making)

    def shared(self, folder: Path) -> Path:
        """A new folder for both of them."""
        folder.mkdir()
        self._share(folder)
        return folder

    def _share(self, folder: Path) -> None:
        """Where another than us made it so already (PID 1), there is nothing to do."""
        found = folder.stat()
        if found.st_gid != self._group:
            os.chown(folder, -1, self._group)
        if found.st_mode & 0o7777 != 0o2770:
            folder.chmod(0o2770)

    def publish(self, marker: Marker) -> None:
        """From here on it is the data: one rename, after all in it is on the disk."""
        write_whole(self.making / "unstuck.json", msgspec.json.encode(marker), mode=0o640)
        sync_folder(self.making)
        self.making.rename(self.database)
        sync_folder(self.root)

    def mark(self, marker: Marker) -> None:
        path = self.database / "unstuck.json"
        sweep_halves(path)
        write_whole(path, msgspec.json.encode(marker), mode=0o640)


def read_marker(database: Path) -> Marker:
    return msgspec.json.decode((database / "unstuck.json").read_bytes(), type=Marker)


def _without(names: set[str]) -> Found:
    strange = sorted(names - _KNOWN)
    if strange:
        return Found(Thing.UNKNOWN, foreign=f"files that Unstuck did not make ({', '.join(strange[:3])})")
    return Found(Thing.ABSENT)


def rotate(log: Path, most: int) -> None:
    """Keep one old log. The server goes on writing to the same file: its descriptor appends."""
    if log.exists() and log.stat().st_size > most:
        shutil.copyfile(log, log.with_suffix(".old"))
        os.truncate(log, 0)
