"""Files that are there as a whole or not at all, and that nobody else can read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace a file: a crash leaves the old one or the new one."""
    part = path.with_name(f".{path.name}.part-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sweep_halves(path: Path) -> None:
    """Remove what writers of this file left when they were killed. Only who alone writes it may ask."""
    for part in path.parent.glob(f".{path.name}.part-*"):
        part.unlink(missing_ok=True)


def write_once(path: Path, data: bytes) -> bytes:
    """Create a file unless it is there; returns what it holds now, whoever made it."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    part = path.with_name(f".{path.name}.part-{secrets.token_hex(4)}")
    write_whole(part, data)
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return path.read_bytes()
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)
    return data


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    """A folder that only its owner may enter."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
