"""What the blob store says of a backup: is there a manifest, is all there that it names, is nothing left.

Manifests are untrusted input: one is believed only if this cloud's key vouches for its signer, and if it is
the one of this very backup. All of it blocks; it belongs on a worker thread.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from unstuck.blobs import manifest as manifests
from unstuck.blobs.manifest import Manifest, ManifestError, manifest_key
from unstuck.blobs.objects import Entry, Objects
from unstuck.core.backup.content import Parent
from unstuck.core.backup.data import Rotten

MANIFEST_LARGEST: Final = 64 << 20
"""Bytes of a manifest that is read at all: half a million pieces."""
_PREFIX: Final = re.compile(r"backups/[^/]+/(\d{4,6})-([0-9A-Za-z]+)\Z")
_SHOWN: Final = 3


class Found(msgspec.Struct, frozen=True):
    """A manifest: of this attempt, with this digest."""

    attempt: int
    prefix: str
    digest: str


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of the backup, and its manifest has to say as well. ``host_id`` None: not known.
    ``digest`` None: whatever it is."""

    cloud_id: str
    cloud_key: str
    project_id: str
    instance_id: str
    backup_id: str
    recipients: tuple[str, ...]
    key: str
    attempt: int
    parent: Parent | None = None
    generation: str = ""
    host_id: str | None = None
    digest: str | None = None


class Sound(msgspec.Struct, frozen=True):
    """It is what it says, and everything that it names is there."""

    prefix: str
    digest: str
    manifest: Manifest


def root_of(backup_id: str) -> str:
    """Above all attempts of a backup."""
    return f"backups/{backup_id}"


def look(objects: Objects, backup_id: str, cloud_key: str) -> Found | None:
    """The newest manifest that can be believed; else the newest one, whose fault is told when it is
    verified; None: certainly none. Raises BlobError."""
    doubtful: Found | None = None
    for attempt, prefix in _with_manifest(objects.list(root_of(backup_id))):
        data = objects.get(manifest_key(prefix))
        if data is None:
            continue
        found = Found(attempt, prefix, manifests.digest(data))
        try:
            manifests.read(data, cloud_key, prefix)
        except ManifestError:
            doubtful = doubtful or found
            continue
        return found
    return doubtful


def _with_manifest(entries: list[Entry]) -> list[tuple[int, str]]:
    """Attempts whose manifest is there and no larger than one can be; the newest first."""
    out = []
    for entry in entries:
        prefix, _, name = entry.key.rpartition("/")
        match = _PREFIX.match(prefix)
        if name == manifests.NAME and match is not None and entry.size <= MANIFEST_LARGEST:
            out.append((int(match[1]), prefix))
    return sorted(out, reverse=True)


def verify(objects: Objects, prefix: str, expected: Expected) -> Sound | Rotten:
    """Read the manifest and list all objects beside it. Raises BlobError where nothing can be said."""
    there = objects.head(manifest_key(prefix))
    if there is None:
        return Rotten("its manifest is not in the blob store")
    if there.size > MANIFEST_LARGEST:
        return Rotten(f"its manifest has {there.size} bytes, which is none of ours")
    data = objects.get(manifest_key(prefix))
    if data is None:
        return Rotten("its manifest is not in the blob store")
    digest = manifests.digest(data)
    try:
        found = manifests.read(data, expected.cloud_key, prefix)
        signer = manifests.signer(data)
    except ManifestError as error:
        return Rotten(str(error))
    if expected.digest is not None and digest != expected.digest:
        return Rotten("its manifest is not the one that its host has written")
    if expected.host_id is not None and signer.host_id != expected.host_id:
        return Rotten(f"its manifest is signed by host {signer.host_id}, and host {expected.host_id} ran it")
    wrong = _contradiction(found, expected)
    if wrong is not None:
        return Rotten(f"its manifest has another {wrong} than the backup")
    lacking = manifests.missing(found, objects.list(prefix))
    if lacking:
        names = ", ".join(key.rpartition("/")[2] for key in lacking[:_SHOWN])
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        return Rotten(f"pieces are missing or of another length: {names}{more}")
    return Sound(prefix, digest, found)


def read_whole(objects: Objects, prefix: str, cloud_key: str) -> Sound | Rotten:
    """The backup at this prefix, whichever it is, if this cloud has signed it and all of it is there.
    Raises BlobError."""
    there = objects.head(manifest_key(prefix))
    if there is None or there.size > MANIFEST_LARGEST:
        return Rotten("there is no manifest of a backup")
    data = objects.get(manifest_key(prefix))
    if data is None:
        return Rotten("there is no manifest of a backup")
    try:
        found = manifests.read(data, cloud_key, prefix)
    except ManifestError as error:
        return Rotten(str(error))
    lacking = manifests.missing(found, objects.list(prefix))
    if lacking:
        return Rotten(f"{len(lacking)} of its pieces are missing or of another length")
    return Sound(prefix, manifests.digest(data), found)


def _contradiction(found: Manifest, expected: Expected) -> str | None:
    for name in (
        "cloud_id", "project_id", "instance_id", "backup_id", "attempt", "recipients", "key", "parent",
    ):  # fmt: skip
        if getattr(found, name) != getattr(expected, name):
            return name
    if found.generation not in ("", expected.generation):
        return "generation"
    return None


def prefix_with(objects: Objects, backup_id: str, attempt: int, digest: str) -> str | None:
    """Where the manifest of this attempt with this digest lies; None: certainly nowhere."""
    for number, prefix in _with_manifest(objects.list(root_of(backup_id))):
        if number == attempt:
            data = objects.get(manifest_key(prefix))
            if data is not None and manifests.digest(data) == digest:
                return prefix
    return None


def remove(objects: Objects, backup_id: str, keep: str | None) -> int:
    """Remove all objects of a backup but those of the attempt at ``keep``; how many are left all the same,
    by a second, complete listing. The manifest goes first: what is half removed is no backup any more."""
    litter = _litter(objects, backup_id, keep)
    litter.sort(key=lambda key: not key.endswith(f"/{manifests.NAME}"))
    if litter:
        objects.delete(litter)
        return len(_litter(objects, backup_id, keep))
    return 0


def _litter(objects: Objects, backup_id: str, keep: str | None) -> list[str]:
    kept = None if keep is None else f"{keep}/"
    entries = objects.list(root_of(backup_id))
    return [entry.key for entry in entries if kept is None or not entry.key.startswith(kept)]
