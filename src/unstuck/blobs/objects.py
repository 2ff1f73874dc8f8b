"""Objects by key: a folder, or what speaks S3 and its kind. Create-only, and three-valued when looking.

An object is there whole or not at all. A look says present or certainly absent; anything else raises
:class:`BlobError` and is unknown (law 4), so that "absent" is never a guess about a store that was away.
All calls block, each under a deadline: they belong on a worker thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import obstore
from obstore import exceptions
from obstore.store import S3Store

from unstuck.blobs.digest import sha256 as sha256
from unstuck.runtime.files import sync_folder

ANSWER: Final = 60.0
"""Seconds for one answer of a remote store; what takes longer counts as no answer."""
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
_PART: Final = ".part-"


class Problem(StrEnum):
    """Why a store did not do as it was asked; each has a remedy of its own."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    FULL = "full"
    FAULT = "fault"


class BlobError(Exception):
    """The outcome is unknown, or the store said no. ``problem`` says which; the text is for people."""

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        self.reason = reason


class Conflict(Exception):
    """Another object has this key already, with other bytes: it was left alone."""


class Entry(msgspec.Struct, frozen=True):
    """An object that is there. ``size`` in bytes."""

    key: str
    size: int


class Objects(Protocol):
    """Any store of objects. Raises :class:`BlobError` where nothing can be said."""

    def put_new(self, key: str, data: bytes) -> None:
        """Store it durably; the same bytes under the same key again are success. Raises :class:`Conflict`."""

    def get(self, key: str) -> bytes | None:
        """The bytes; None if there is certainly no such object."""

    def head(self, key: str) -> Entry | None:
        """Whether it is there, and its size; None if there is certainly no such object."""

    def list(self, prefix: str) -> list[Entry]:
        """Everything below ``prefix/``, complete."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; what is not there is gone already."""


def check_key(key: str) -> str:
    """Raise ValueError unless the key is one that we make: no dots at the start, no empty parts."""
    if len(key) > 512 or not _KEY.match(key):
        raise ValueError(f"not a key of ours: {key[:80]!r}")
    return key


class FolderObjects:
    """Objects as files. Written under a temporary name, synced, then linked: linking never replaces."""

    def __init__(self, root: Path, marker: str | None = None) -> None:
        self.root = root
        self._marker = marker

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def put_new(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with _as_blob_error():
            self._mounted()
            self._make_folder(target.parent)
            part = target.with_name(f"{_PART}{secrets.token_hex(8)}")
            try:
                _write(part, data)
                os.link(part, target)
            except FileExistsError:
                if target.read_bytes() != data:
                    raise Conflict(f"{key} is there with other bytes") from None
            finally:
                part.unlink(missing_ok=True)
            sync_folder(target.parent)

    def _make_folder(self, folder: Path) -> None:
        """Each new folder's name is synced as well, or a power cut could lose what lies in it."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(mode=0o700, exist_ok=True)
            sync_folder(new.parent)

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        with _as_blob_error():
            self._mounted()
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None
        raise AssertionError("unreachable")

    def head(self, key: str) -> Entry | None:
        path = self._path(key)
        with _as_blob_error():
            self._mounted()
            try:
                return Entry(key, path.stat().st_size)
            except FileNotFoundError:
                return None
        raise AssertionError("unreachable")

    def list(self, prefix: str) -> list[Entry]:
        with _as_blob_error():
            self._mounted()
            return sorted(self._walk(self._path(prefix)), key=lambda entry: entry.key)
        raise AssertionError("unreachable")

    def _walk(self, folder: Path) -> Iterator[Entry]:
        if not folder.is_dir():
            return
        for path in folder.iterdir():
            if path.is_dir():
                yield from self._walk(path)
            elif not path.name.startswith(_PART):
                yield Entry(str(path.relative_to(self.root)), path.stat().st_size)

    def delete(self, keys: Iterable[str]) -> None:
        with _as_blob_error():
            self._mounted()
            folders = set()
            for key in keys:
                path = self._path(key)
                path.unlink(missing_ok=True)
                folders.add(path.parent)
            for folder in folders:
                self._prune(folder)

    def _prune(self, folder: Path) -> None:
        """Folders that are empty now, up to the root."""
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent

    def _mounted(self) -> None:
        """A root that is not there is no empty store: its file system is probably not mounted (law 4)."""
        # The place to mount it on is a folder too, and an empty one; the marker lies in what is mounted.
        there = self.root.is_dir() if self._marker is None else (self.root / self._marker).exists()
        if not there:
            raise BlobError(Problem.UNREACHABLE, f"the folder {self.root} is not there; is it mounted?")


class RemoteObjects:
    """Objects in S3 or what speaks like it, below a prefix."""

    def __init__(self, store: Any, prefix: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def put_new(self, key: str, data: bytes) -> None:
        with _as_blob_error():
            try:
                obstore.put(
                    self._store, self._prefix + check_key(key), data, mode="create", use_multipart=False
                )
            except exceptions.AlreadyExistsError:
                if self.get(key) != data:
                    raise Conflict(f"{key} is there with other bytes") from None

    def get(self, key: str) -> bytes | None:
        with _as_blob_error():
            try:
                return bytes(obstore.get(self._store, self._prefix + check_key(key)).bytes())
            except (exceptions.NotFoundError, FileNotFoundError):
                return None
        raise AssertionError("unreachable")

    def head(self, key: str) -> Entry | None:
        with _as_blob_error():
            try:
                return Entry(key, int(obstore.head(self._store, self._prefix + check_key(key))["size"]))
            except (exceptions.NotFoundError, FileNotFoundError):
                return None
        raise AssertionError("unreachable")

    def list(self, prefix: str) -> list[Entry]:
        with _as_blob_error():
            pages = obstore.list(self._store, self._prefix + check_key(prefix) + "/")
            found = [Entry(str(item["path"]), int(item["size"])) for page in pages for item in page]
            start = len(self._prefix)
            return sorted((Entry(e.key[start:], e.size) for e in found), key=lambda entry: entry.key)
        raise AssertionError("unreachable")

    def delete(self, keys: Iterable[str]) -> None:
        with _as_blob_error():
            for key in keys:
                try:
                    obstore.delete(self._store, self._prefix + check_key(key))
                except (exceptions.NotFoundError, FileNotFoundError):
                    continue


class Location(msgspec.Struct, frozen=True):
    """Where objects are: ``file:///path``, or ``s3://bucket/prefix`` with what is needed to enter."""

    url: str
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""


def open_objects(location: Location, answer: float = ANSWER) -> Objects:
    """Raises ValueError for an address that is none; nothing is asked of the store yet.

    ``answer``: seconds that a remote store has for one answer.
    """
    parts = urlsplit(location.url)
    match parts.scheme:
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            return FolderObjects(Path(unquote(parts.path)))
        case "s3" if parts.netloc:
            return RemoteObjects(_s3(location, parts.netloc, answer), unquote(parts.path))
        case _:
            raise ValueError("a store's address is file:///folder or s3://bucket/prefix")


def _s3(location: Location, bucket: str, answer: float) -> S3Store:
    options: Any = {"timeout": f"{answer:.0f}s", "connect_timeout": "5s"}
    if location.endpoint.startswith("http://"):
        options["allow_http"] = True
    where: Any = {"endpoint": location.endpoint} if location.endpoint else {}
    return S3Store(
        bucket, region=location.region, access_key_id=location.access_key,
        secret_access_key=location.secret_key, virtual_hosted_style_request=not location.endpoint,
        client_options=options, retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=answer)},
        **where,
    )  # fmt: skip


@contextlib.contextmanager
def _as_blob_error() -> Iterator[None]:
    """Errors of the system and of the library, as what they mean to us."""
    try:
        yield
    except exceptions.BaseError as error:
        raise _remote_error(error) from error
    except PermissionError as error:
        raise BlobError(Problem.REFUSED, error.strerror or str(error)) from error
    except OSError as error:
        if error.errno is None:  # one of the library's
            raise _remote_error(error) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = Problem.FULL if full else Problem.FAULT
        raise BlobError(problem, error.strerror or str(error)) from error


_STATUS: Final = re.compile(r"status code: (\d{3})([^:\n]*):? ?([^\n]*)")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientStorage", "InsufficientCapacity"})
_OWN_WORDS: Final = re.compile(r"retry_timeout: \S+")
_LONGEST: Final = 300
_NO_ANSWER: Final = re.compile(r"HTTP error|error sending request|timed? ?out|connect|\bdns\b", re.IGNORECASE)


def _remote_error(error: Exception) -> BlobError:
    """What a store of the network said. The library has the status in its text only, which goes on with what
    it prints of itself: numbers and words there say nothing."""
    text, line = str(error), _first_line(error, 2000)
    refused = isinstance(error, exceptions.UnauthenticatedError | exceptions.PermissionDeniedError)
    answer = _STATUS.search(line)
    if answer is None:
        problem = Problem.UNREACHABLE if _NO_ANSWER.search(_OWN_WORDS.sub("", line)) else Problem.FAULT
        return BlobError(Problem.REFUSED if refused else problem, line[:_LONGEST])
    code = _CODE.search(text)
    said = f"it answered {answer[1]}{answer[2].rstrip()}"
    if code is not None:
        said += f" ({code[1]})"
    elif answer[3].strip() and not answer[3].startswith("<"):
        said += f": {answer[3].strip()}"
    if refused or answer[1] in ("401", "403"):
        return BlobError(Problem.REFUSED, said[:_LONGEST])
    full = answer[1] == "507" or (code is not None and code[1] in _FULL)
    return BlobError(Problem.FULL if full else Problem.FAULT, said[:_LONGEST])


def _first_line(error: Exception, most: int) -> str:
    """Without what a library prints of itself below the first line; never longer than a message."""
    return str(error).strip().splitlines()[0][:most] if str(error).strip() else type(error).__name__


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
