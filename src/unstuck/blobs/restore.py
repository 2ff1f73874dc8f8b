"""Backups out of a store of objects and the recovery file alone: what there is, and its data again.

Nothing is believed that this cloud's key does not vouch for, and every piece is checked all the way.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import msgspec

from unstuck.blobs import keys
from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import chunk_key, open_chunk
from unstuck.blobs.manifest import Manifest, ManifestError
from unstuck.blobs.objects import Entry, Objects
from unstuck.blobs.verify import MANIFEST_LARGEST
from unstuck.core.backup.chain import LONGEST, fault_of
from unstuck.core.backup.content import Parent


class Listed(msgspec.Struct, frozen=True):
    """A manifest in the store. ``fault``: why it cannot be restored. ``manifest`` None: it cannot be read."""

    prefix: str
    manifest: Manifest | None
    fault: str | None
    digest: str = ""


class Broken(Exception):
    """A backup that cannot be restored from what is in the store; why."""


class Lost(Exception):
    """A piece is not there, or is not what was backed up."""


def list_backups(objects: Objects, cloud_key: str) -> list[Listed]:
    """All manifests in the store, the newest first. Raises BlobError."""
    entries = objects.list("backups")
    of_prefix: dict[str, list[Entry]] = {}
    for entry in entries:
        of_prefix.setdefault(entry.key.rpartition("/")[0], []).append(entry)
    suffix = f"/{manifests.NAME}"
    found = [_one(objects, entry, cloud_key, of_prefix) for entry in entries if entry.key.endswith(suffix)]
    return sorted(found, key=lambda item: item.manifest.taken_at if item.manifest else 0.0, reverse=True)


def _one(objects: Objects, entry: Entry, cloud_key: str, of_prefix: dict[str, list[Entry]]) -> Listed:
    prefix = entry.key.rpartition("/")[0]
    if entry.size > MANIFEST_LARGEST:
        return Listed(prefix, None, f"the manifest has {entry.size} bytes, which is none of ours")
    data = objects.get(entry.key)
    if data is None:
        return Listed(prefix, None, "the manifest has gone")
    try:
        manifest = manifests.read(data, cloud_key, prefix)
    except ManifestError as error:
        return Listed(prefix, None, str(error))
    lacking = manifests.missing(manifest, of_prefix[prefix])
    fault = f"{len(lacking)} of its pieces are missing or of another length" if lacking else None
    return Listed(prefix, manifest, fault, manifests.digest(data))


def chain_of(found: list[Listed], backup_id: str) -> list[Manifest]:
    """A backup and all that have to be restored before it, the full one first. Raises :class:`Broken`."""
    chain: list[Manifest] = []
    wanted: Parent | None = Parent(backup_id, "")
    while wanted is not None:
        mine = [item for item in found if item.prefix.split("/")[1] == wanted.id]
        good = [item for item in mine if item.manifest is not None and item.fault is None]
        if wanted.digest:  # a parent is one attempt's manifest and no other's
            good = [item for item in good if item.digest == wanted.digest]
        if not good or good[0].manifest is None:
            why = "; ".join(item.fault for item in mine if item.fault) or "there is no manifest of it"
            raise Broken(f"{'backup' if not chain else 'its parent'} {wanted.id}: {why}")
        chain.insert(0, good[0].manifest)
        wanted = good[0].manifest.parent
        if len(chain) > LONGEST + 1:
            raise Broken("its chain of parents has no end")
    fault = fault_of([manifests.content(manifest) for manifest in chain])
    if fault is not None:
        raise Broken(f"its chain does not hold together: {fault}")
    return chain


def plain_pieces(objects: Objects, manifest: Manifest, identity: str) -> Iterator[bytes]:
    """The data as it went in, piece after piece; ``identity`` opens the backup's key.

    Raises BlobError, :class:`Lost`, :class:`unstuck.blobs.chunks.Damaged` and :class:`keys.BadKey`.
    """
    key = keys.unwrap(manifest.key, identity)
    for chunk in manifest.chunks:
        sealed = objects.get(chunk_key(manifest.prefix, chunk.index))
        if sealed is None:
            raise Lost(f"piece {chunk.index} is not in the store")
        yield open_chunk(chunk, sealed, key)


class PiecesFile(io.RawIOBase):
    """Pieces as a file that is read once, from its beginning to its end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
