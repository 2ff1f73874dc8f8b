"""The manifest: written last and only once, it makes an attempt's objects a backup.

It says by itself what the backup is and how to read it, and it is signed: from the bucket and the recovery
file alone everything can be listed, checked and restored.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.blobs import keys
from unstuck.blobs.chunks import Chunk, chunk_key, prefix_of
from unstuck.blobs.objects import Entry, sha256
from unstuck.core.backup.content import Content, Datastore, Parent, Position

FORMAT: Final = 1
NAME: Final = "manifest.json"


class ManifestError(Exception):
    """A manifest that must not be believed: damaged, forged, of another backup or of an unknown format."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is. Sizes in bytes, times wall time in seconds."""

    format: int = FORMAT
    cloud_id: str
    project_id: str
    instance_id: str
    instance_name: str
    backup_id: str
    backup_name: str
    attempt: int
    nonce: str
    datastore: Datastore
    system_identifier: str
    start: Position
    stop: Position
    parent: Parent | None = None
    """The backup that has to be restored before this one."""
    generation: str = ""
    """Names the data that it is of; a parent's is the same."""
    archive: str = ""
    """The archive whose log goes on from its end; empty: none, or made before that was written down."""
    content: str = "tar"
    compression: str = "zstd"
    encryption: str = "age"
    chunk_size: int
    size: int
    taken_at: float
    recipients: tuple[str, ...]
    """Who can open ``key``: the project's key, the recovery key."""
    key: str
    """The private half of the backup's own key, wrapped to ``recipients``."""
    chunks: tuple[Chunk, ...]

    @property
    def prefix(self) -> str:
        return prefix_of(self.backup_id, self.attempt, self.nonce)


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object: the manifest as the text that was signed, so that nobody has to write it again alike."""

    format: int
    manifest: str
    signature: str
    signer: keys.Certificate


def manifest_key(prefix: str) -> str:
    return f"{prefix}/{NAME}"


def sign(manifest: Manifest, signer: keys.Signer, certificate: keys.Certificate) -> bytes:
    """The object to be written. Raises :class:`ManifestError` for one that is not sound in itself."""
    _check_sound(manifest)
    text = msgspec.json.encode(manifest)
    return msgspec.json.encode(Signed(FORMAT, text.decode(), signer.sign(text), certificate))


def digest(data: bytes) -> str:
    """What the backup's row keeps of it."""
    return sha256(data)


def read(data: bytes, cloud_key: str, prefix: str) -> Manifest:
    """The manifest at ``prefix``, believed only if the cloud's key vouches for it and it belongs there."""
    try:
        signed = msgspec.json.decode(data, type=Signed)
        text = signed.manifest.encode()
        keys.check_certificate(signed.signer, cloud_key)
        keys.check(text, signed.signature, signed.signer.public)
        manifest = msgspec.json.decode(text, type=Manifest)
    except keys.BadKey as error:
        raise ManifestError(f"the manifest is not signed by this cloud: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ManifestError(f"the manifest cannot be read: {error}") from error
    if signed.format != FORMAT or manifest.format != FORMAT:
        raise ManifestError(f"the manifest has format {manifest.format}, this version knows {FORMAT}")
    if manifest.prefix != prefix:
        raise ManifestError("the manifest is another backup's")
    _check_sound(manifest)
    return manifest


def content(manifest: Manifest) -> Content:
    """What a restore needs of it."""
    return Content(
        datastore=manifest.datastore, system_identifier=manifest.system_identifier, start=manifest.start,
        stop=manifest.stop, chunk_size=manifest.chunk_size, size=manifest.size, chunks=manifest.chunks,
        content=manifest.content, parent=manifest.parent, generation=manifest.generation,
    )  # fmt: skip


def in_short(manifest: Manifest) -> str:
    """What a backup's row keeps of it, as JSON: all but the pieces and the keys."""
    says = {
        "datastore": manifest.datastore, "system_identifier": manifest.system_identifier,
        "start": manifest.start, "stop": manifest.stop, "chunks": len(manifest.chunks),
        "stored": sum(chunk.sealed_length for chunk in manifest.chunks), "taken_at": manifest.taken_at,
        "chunk_size": manifest.chunk_size, "content": manifest.content, "parent": manifest.parent,
        "generation": manifest.generation,
    }  # fmt: skip
    return msgspec.json.encode(says).decode()


def signer(data: bytes) -> keys.Certificate:
    """Who signed the object; of one that :func:`read` has believed."""
    return msgspec.json.decode(data, type=Signed).signer


def _check_sound(manifest: Manifest) -> None:
    if [chunk.index for chunk in manifest.chunks] != list(range(len(manifest.chunks))):
        raise ManifestError("the manifest's pieces are not 0, 1, 2 …")
    if not manifest.chunks or sum(chunk.length for chunk in manifest.chunks) != manifest.size:
        raise ManifestError("the manifest's pieces are not as long as the whole")
    if any(chunk.length != manifest.chunk_size for chunk in manifest.chunks[:-1]):
        raise ManifestError("a piece of the manifest is not full")


def missing(manifest: Manifest, found: list[Entry]) -> list[str]:
    """What a complete listing of the prefix lacks: a key that is absent or of another size."""
    sizes = {entry.key: entry.size for entry in found}
    wanted = [(chunk_key(manifest.prefix, chunk.index), chunk.sealed_length) for chunk in manifest.chunks]
    return [key for key, length in wanted if sizes.get(key) != length]
