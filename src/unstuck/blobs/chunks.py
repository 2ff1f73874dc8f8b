"""A backup's data in pieces: each compressed, encrypted, and named before it is made.

Stock tools undo it: ``age -d -i KEY NAME | zstd -d``, piece after piece, is the stream that went in.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import zstandard

from unstuck.blobs.age import BadKey, seal, unseal
from unstuck.blobs.digest import sha256
from unstuck.core.backup.content import Chunk

__all__ = [
    "CHUNK_SIZE", "Chunk", "Damaged", "chunk_key", "make_chunk", "open_chunk", "open_into", "prefix_of",
]  # fmt: skip

CHUNK_SIZE: Final = 4 << 20
"""Bytes of plain data in a piece; the last one is shorter. An agent holds a few of them."""
LEVEL: Final = 3
_NO_LARGER: Final = CHUNK_SIZE * 4
_packers: deque[zstandard.ZstdCompressor] = deque()
"""Those that nobody uses now: as many as there were at once. A new one costs a megabyte of fresh memory."""


class Damaged(Exception):
    """A piece is not what its manifest says."""


def prefix_of(backup_id: str, attempt: int, nonce: str) -> str:
    """All objects of one attempt, and of no other: two runs of a backup tool differ."""
    return f"backups/{backup_id}/{attempt:04d}-{nonce}"


def chunk_key(prefix: str, index: int) -> str:
    return f"{prefix}/{index:08d}.zst.age"


def make_chunk(index: int, plain: bytes | memoryview, recipient: str) -> tuple[Chunk, bytes]:
    """The piece's entry in the manifest, and its object."""
    sealed = seal(_packed(plain), [recipient])
    return Chunk(index, len(plain), sha256(plain), len(sealed), sha256(sealed)), sealed


def _packed(plain: bytes | memoryview) -> bytes:
    try:
        packer = _packers.pop()
    except IndexError:
        packer = zstandard.ZstdCompressor(level=LEVEL)
    packed = packer.compress(plain)
    _packers.append(packer)  # not after an error: who knows what state it is in
    return packed


def open_chunk(chunk: Chunk, sealed: bytes, identity: str) -> bytes:
    """The plain data, checked all the way. Raises :class:`Damaged`."""
    packed = _opened(chunk, sealed, identity)
    try:
        # The limit holds only for a frame that does not say its size itself; the others have been looked at.
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_NO_LARGER)
    except zstandard.ZstdError as error:
        raise Damaged(f"piece {chunk.index} cannot be decompressed") from error
    _check(chunk, plain)
    return plain


def open_into(chunk: Chunk, sealed: bytes, identity: str, into: bytearray) -> memoryview:
    """The same, into memory that is used again; a view of it. Raises :class:`Damaged`."""
    if not 0 <= chunk.length <= len(into):
        return memoryview(open_chunk(chunk, sealed, identity))
    view, filled = memoryview(into)[: chunk.length], 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(_opened(chunk, sealed, identity)) as reader:
            while filled < chunk.length and (got := reader.readinto(view[filled:])):
                filled += got
            more = reader.read(1)
    except zstandard.ZstdError as error:
        raise Damaged(f"piece {chunk.index} cannot be decompressed") from error
    if more:
        raise Damaged(f"piece {chunk.index} holds more than was backed up")
    _check(chunk, view[:filled])
    return view


def _opened(chunk: Chunk, sealed: bytes, identity: str) -> bytes:
    where = f"piece {chunk.index}"
    if len(sealed) != chunk.sealed_length or sha256(sealed) != chunk.sealed_digest:
        raise Damaged(f"{where} is not the object that was written")
    try:
        packed = unseal(sealed, identity)
        if zstandard.frame_content_size(packed) > _NO_LARGER:
            raise Damaged(f"{where} is larger than a piece can be")
    except BadKey as error:
        raise Damaged(f"{where}: {error}") from error
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be decompressed") from error
    return packed


def _check(chunk: Chunk, plain: bytes | memoryview) -> None:
    if len(plain) != chunk.length or sha256(plain) != chunk.digest:
        raise Damaged(f"piece {chunk.index} does not hold the data that was backed up")
