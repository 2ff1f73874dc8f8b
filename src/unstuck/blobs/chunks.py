"""A backup's data in pieces: each compressed, encrypted, and named before it is made.

Stock tools undo it: ``age -d -i KEY NAME | zstd -d``, piece after piece, is the stream that went in.
"""

from __future__ import annotations

from typing import Final

import zstandard

from unstuck.blobs.age import BadKey, seal, unseal
from unstuck.blobs.digest import sha256
from unstuck.core.backup.content import Chunk

__all__ = ["CHUNK_SIZE", "Chunk", "Damaged", "chunk_key", "make_chunk", "open_chunk", "prefix_of"]

CHUNK_SIZE: Final = 4 << 20
"""Bytes of plain data in a piece; the last one is shorter. An agent holds a few of them."""
LEVEL: Final = 3
_NO_LARGER: Final = CHUNK_SIZE * 4


class Damaged(Exception):
    """A piece is not what its manifest says."""


def prefix_of(backup_id: str, attempt: int, nonce: str) -> str:
    """All objects of one attempt, and of no other: two runs of a backup tool differ."""
    return f"backups/{backup_id}/{attempt:04d}-{nonce}"


def chunk_key(prefix: str, index: int) -> str:
    return f"{prefix}/{index:08d}.zst.age"


def make_chunk(index: int, plain: bytes, recipient: str) -> tuple[Chunk, bytes]:
    """The piece's entry in the manifest, and its object."""
    sealed = seal(zstandard.ZstdCompressor(level=LEVEL).compress(plain), [recipient])
    return Chunk(index, len(plain), sha256(plain), len(sealed), sha256(sealed)), sealed


def open_chunk(chunk: Chunk, sealed: bytes, identity: str) -> bytes:
    """The plain data, checked all the way. Raises :class:`Damaged`."""
    where = f"piece {chunk.index}"
    if len(sealed) != chunk.sealed_length or sha256(sealed) != chunk.sealed_digest:
        raise Damaged(f"{where} is not the object that was written")
    try:
        packed = unseal(sealed, identity)
        # The limit below holds only for a frame that does not say its size itself.
        if zstandard.frame_content_size(packed) > _NO_LARGER:
            raise Damaged(f"{where} is larger than a piece can be")
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_NO_LARGER)
    except BadKey as error:
        raise Damaged(f"{where}: {error}") from error
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be decompressed") from error
    if len(plain) != chunk.length or sha256(plain) != chunk.digest:
        raise Damaged(f"{where} does not hold the data that was backed up")
    return plain
