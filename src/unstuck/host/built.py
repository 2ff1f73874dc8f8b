"""Folders of images that were built here: made whole or not at all, and known again by their manifest."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unstuck.host.debian import BuildError


@contextlib.contextmanager
def building(outdir: Path) -> Iterator[Path]:
    """``outdir`` as an absolute path, for one builder at a time. Raises :class:`BuildError`."""
    if platform.machine() != "x86_64":
        raise BuildError(f"only built for x86_64, this machine is {platform.machine()}")
    outdir = outdir.absolute()
    outdir.parent.mkdir(parents=True, exist_ok=True)
    with (outdir.parent / f".{outdir.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield outdir


def read_manifest(outdir: Path, wanted: int) -> dict[str, Any] | None:
    """The manifest of an image of the ``wanted`` format whose files are all there and whole, else None."""
    try:
        manifest: dict[str, Any] = json.loads((outdir / "manifest.json").read_text())
        if manifest["format"] != wanted:
            return None
        for entry in manifest["files"].values():
            if _sha512(outdir / entry["name"]) != entry["sha512"]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest


def file_entry(path: Path, disk_format: str) -> dict[str, Any]:
    """What a manifest says of a file; ``disk_format`` in the image API's words."""
    return {
        "name": path.name,
        "disk_format": disk_format,
        "container_format": "bare" if disk_format == "raw" else disk_format,
        "size": path.stat().st_size,
        "sha512": _sha512(path),
    }


def replace(finished: Path, outdir: Path) -> None:
    """Two renames; a death between them leaves no image, and the next build makes it."""
    old = finished.parent / "old"
    for path in finished.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if outdir.exists():
        outdir.rename(old)
    finished.rename(outdir)
    if old.exists():
        shutil.rmtree(old)


def _sha512(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha512").hexdigest()
