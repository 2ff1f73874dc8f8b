"""The files of images: ``<state>/blobs/images/<image id>.<nonce>``, complete or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from unstuck.runtime.files import sync_folder

CHUNK: Final = 1 << 20
_PART: Final = ".part"
_NAME: Final = re.compile(r"([0-9a-f-]{36})\.([0-9a-f]{32})(\.part)?")


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    size: int
    md5: str
    sha512: str


def folder(state_dir: Path) -> Path:
    """The folder of images."""
    return state_dir / "blobs" / "images"


def data_name(image_id: str, nonce: str) -> str:
    """The file name of an image's data: known before a byte is written."""
    return f"{image_id}.{nonce}"


def open_path(state_dir: Path, name: str) -> Path:
    """The path of a data file by its recorded name."""
    if _NAME.fullmatch(name) is None or name.endswith(_PART):
        raise ValueError(f"not the name of an image file: {name!r}")
    return folder(state_dir) / name


def free_bytes(state_dir: Path) -> int:
    """What the disk has left for images."""
    folder(state_dir).mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder(state_dir)).free


class Writer:
    """Writes one upload to a temporary file, hashing on the way. Blocking: not for the event loop."""

    def __init__(self, state_dir: Path, image_id: str, nonce: str) -> None:
        self.target = open_path(state_dir, data_name(image_id, nonce))
        self.part = self.target.with_name(self.target.name + _PART)
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha512 = hashlib.sha512()
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        """Append; the file is made with the first bytes."""
        if self._file is None:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._md5.update(data)
        self._sha512.update(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self.size += len(data)

    def sync(self) -> Written:
        """Make the bytes durable, still under the temporary name."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        return Written(size=self.size, md5=self._md5.hexdigest(), sha512=self._sha512.hexdigest())

    def keep(self) -> None:
        """Give the file its final name, durably."""
        self.part.rename(self.target)
        sync_folder(self.target.parent)

    def close(self) -> None:
        """Let go of the file and leave it to the sweep."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def drop(self) -> None:
        """Remove what this upload has written, under either name. Nobody else's: the nonce is ours."""
        self.close()
        self.part.unlink(missing_ok=True)
        self.target.unlink(missing_ok=True)


def read_range(path: Path, start: int, length: int) -> Iterator[bytes]:
    """Chunks of a file. The file is opened with the first one; a delete meanwhile does not matter."""
    with path.open("rb") as file:
        file.seek(start)
        while length > 0:
            data = file.read(min(CHUNK, length))
            if not data:
                raise OSError(f"{path.name} is shorter than recorded")
            length -= len(data)
            yield data


def remove(state_dir: Path, name: str) -> None:
    """Remove a data file that no row names any more."""
    with contextlib.suppress(FileNotFoundError):
        open_path(state_dir, name).unlink()


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did: files removed, and files that belong to no image known here."""

    removed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def sweep(
    state_dir: Path, needed: Callable[[Sequence[str]], Mapping[str, str | None]], limit: int = 1000
) -> Swept:
    """Remove files of images that we know, and whose nonce nobody needs.

    ``needed`` gives for known image ids the nonce in use; it is asked after the folder was listed, so a
    file that appears later is not judged. Files of images that the store does not know are never
    removed, only reported: the store may be an older copy. ``limit``: how many are removed at most.
    """
    place = folder(state_dir)
    if not place.is_dir():
        return Swept()
    found = [(path, match) for path in sorted(place.iterdir()) if (match := _NAME.fullmatch(path.name))]
    known = needed(sorted({match[1] for _, match in found})) if found else {}
    removed: list[str] = []
    unknown: list[str] = []
    for path, match in found:
        if match[1] not in known:
            unknown.append(path.name)
        elif known[match[1]] != match[2] and len(removed) < limit:
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return Swept(removed=tuple(removed), unknown=tuple(unknown))


class Disputed(msgspec.Struct, frozen=True, kw_only=True):
    """After the store was set back. ``files``: whole files that no image names. ``missing``: ids of images
    whose recorded file is not there."""

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def disputed(state_dir: Path, used: Mapping[str, str]) -> Disputed:
    """Compare the folder with the names in use (name to image id). Uploads that were cut off are no data."""
    place = folder(state_dir)
    whole = {path.name for path in place.iterdir()} if place.is_dir() else set()
    whole = {name for name in whole if _NAME.fullmatch(name) and not name.endswith(_PART)}
    missing = {image_id for name, image_id in used.items() if name not in whole and image_id}
    return Disputed(files=tuple(sorted(whole - used.keys())), missing=tuple(sorted(missing)))


def set_aside(state_dir: Path, name: str) -> None:
    """Move a file that no image names out of the way of every sweep; it is kept."""
    path = open_path(state_dir, name)
    aside = path.parent.with_name("set-aside")
    aside.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside / name)
    sync_folder(aside)
    sync_folder(path.parent)
