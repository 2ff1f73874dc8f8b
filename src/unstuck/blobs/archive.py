"""Pieces of an archived log in a store of objects: their names, and the signed manifest of each.

A piece lies in a folder of its own for each try: its parts as a backup's pieces, and last ``piece.json``,
which makes it one. From the bucket and the recovery file alone the log can be listed and read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.blobs import keys
from unstuck.blobs.manifest import ManifestError, Signed
from unstuck.blobs.objects import Entry
from unstuck.core.archive.data import Kept

FORMAT: Final = 1
NAME: Final = "piece.json"
ROOT: Final = "archives"


def prefix_of(instance_id: str, number: int, nonce: str) -> str:
    """All objects of one archive generation, and of no other."""
    return f"{ROOT}/{instance_id}/{number:04d}-{nonce}"


def folder_of(prefix: str, name: str, tag: str) -> str:
    """One try at one piece."""
    return f"{prefix}/{name}/{tag}"


def part_key(folder: str, index: int) -> str:
    return f"{folder}/{index:08d}.zst.age"


def manifest_key(folder: str) -> str:
    return f"{folder}/{NAME}"


def sign(kept: Kept, signer: keys.Signer, certificate: keys.Certificate) -> bytes:
    """The object to be written. Raises :class:`ManifestError` for one that is not sound in itself."""
    _check_sound(kept)
    text = msgspec.json.encode(kept)
    return msgspec.json.encode(Signed(FORMAT, text.decode(), signer.sign(text), certificate))


def read(data: bytes, cloud_key: str, folder: str) -> Kept:
    """The manifest in ``folder``, believed only if the cloud's key vouches for it and it belongs there."""
    try:
        signed = msgspec.json.decode(data, type=Signed)
        text = signed.manifest.encode()
        keys.check_certificate(signed.signer, cloud_key)
        keys.check(text, signed.signature, signed.signer.public)
        kept = msgspec.json.decode(text, type=Kept)
    except keys.BadKey as error:
        raise ManifestError(f"it is not signed by this cloud: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ManifestError(f"it cannot be read: {error}") from error
    if signed.format != FORMAT:
        raise ManifestError(f"it has format {signed.format}, this version knows {FORMAT}")
    if kept.prefix != folder:
        raise ManifestError("it is another piece's")
    _check_sound(kept)
    return kept


def _check_sound(kept: Kept) -> None:
    if [chunk.index for chunk in kept.chunks] != list(range(len(kept.chunks))):
        raise ManifestError("its parts are not 0, 1, 2 …")
    if not kept.chunks or sum(chunk.length for chunk in kept.chunks) != kept.piece.size:
        raise ManifestError("its parts are not as long as the whole")


def missing(kept: Kept, found: list[Entry]) -> list[str]:
    """What a complete listing lacks of it."""
    sizes = {entry.key: entry.size for entry in found}
    wanted = [(part_key(kept.prefix, chunk.index), chunk.sealed_length) for chunk in kept.chunks]
    return [key for key, length in wanted if sizes.get(key) != length]
