"""Frames over a stream of bytes that may begin in the middle of somebody's sentence.

A virtio port keeps no connection: behind it may be a predecessor's half frame, or the rest of an answer that
nobody read. So every frame begins with a mark, and its header and its payload each have a checksum; what fits
neither is skipped, byte by byte, until the next frame. Nothing here waits, allocates by a number that came
over the wire, or raises for anything that it is fed.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

MARK: Final = b"\xa7UnS"
PAYLOAD_MAX: Final = 64 << 10
"""Bytes in one frame at most: how long a short message waits behind a long one."""
RESCANS: Final = 64
"""How often a stream's broken frames are searched for whole ones inside. Then they are skipped as they are:
a search costs as much as the longest frame, and a hostile sender could ask for one at each byte."""
NONCE: Final = 8
NOBODY: Final = bytes(NONCE)
"""The nonce of who does not know yet with whom it speaks."""

_HEADER: Final = struct.Struct(f">4sBB{NONCE}sIIIIIII")
HEADER: Final = _HEADER.size
_HEAD: Final = struct.Struct(f">4sBB{NONCE}sIIIIII")
VERSION: Final = 1
PADDING: Final = bytes(HEADER + PAYLOAD_MAX)
"""Said before the first frame where a predecessor may have left a half one: it fills any of them up."""


class Kind(IntEnum):
    """HELLO begins a session under a new nonce; ASK and ANSWER are parts of bodies; CREDIT lets the rest of a
    body come; DROP says that it will not; RESET: whoever is there, say hello."""

    HELLO = 1
    ASK = 2
    ANSWER = 3
    CREDIT = 4
    DROP = 5
    RESET = 6


_KINDS: Final = frozenset(int(kind) for kind in Kind)


class Frame(NamedTuple):
    """One frame. A body is ``message`` bytes of JSON, then ``blob`` bytes of data; ``payload`` is what of it
    lies at ``offset``."""

    kind: Kind
    nonce: bytes
    request: int
    payload: bytes | memoryview = b""
    offset: int = 0
    message: int = 0
    blob: int = 0


def encode(frame: Frame) -> tuple[bytes, bytes | memoryview]:
    """Header and payload as they go over the wire; the payload is not copied."""
    payload = frame.payload
    if len(payload) > PAYLOAD_MAX:
        raise ValueError("a frame's payload is too long")
    head = _HEAD.pack(
        MARK, VERSION, frame.kind, frame.nonce, frame.request, frame.offset, frame.message, frame.blob,
        len(payload), zlib.crc32(payload),
    )  # fmt: skip
    return head + zlib.crc32(head).to_bytes(4, "big"), payload


class Decoder:
    """Finds the frames in what it is fed. Holds less than one frame between two feeds."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.skipped = 0
        """Bytes that were part of no frame."""
        self.searches = 0
        """Payloads that were not what their header said."""

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._held)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """All frames that are complete now. Their payloads hold for as long as ``data`` does."""
        frames: list[Frame] = []
        view = memoryview(data)
        while view:
            if not self._held:
                view = view[self._straight(view, frames) :]
            need = self._missing(view)
            if need is None or need > len(view):
                # Noise, or less than a frame: it has to be kept, and perhaps searched.
                self._held += view
                self._search(frames)
                break
            if need:
                self._held += view[:need]
                view = view[need:]
                self._search(frames)
        return frames

    def _straight(self, view: memoryview, frames: list[Frame]) -> int:
        """Take whole, sound frames from the beginning without keeping anything; how far they go."""
        at = 0
        while len(view) - at >= HEADER:
            length = _length(view[at : at + HEADER])
            if length is None or len(view) - at < HEADER + length:
                break
            frame = _frame(view[at : at + HEADER + length])
            if frame is None:
                break
            frames.append(frame)
            at += HEADER + length
        return at

    def _missing(self, view: memoryview) -> int | None:
        """How many bytes of ``view`` make what is held one frame; None: that cannot be said."""
        if not self._held:
            return None if view else 0
        if len(self._held) < HEADER:
            return None
        length = _length(self._held[:HEADER])
        return None if length is None else HEADER + length - len(self._held)

    def _search(self, frames: list[Frame]) -> None:
        """Take the frames out of what is held, and skip what is none."""
        held = self._held
        at = 0
        while True:
            start = held.find(MARK, at)
            if start < 0:
                start = max(at, len(held) - len(MARK) + 1)  # a mark may be cut
                self.skipped += start - at
                at = start
                break
            self.skipped += start - at
            at = start
            if len(held) - at < HEADER:
                break
            length = _length(held[at : at + HEADER])
            if length is None:
                at += 1
                self.skipped += 1
                continue
            if len(held) - at < HEADER + length:
                break
            frame = _frame(bytes(held[at : at + HEADER + length]))
            if frame is None:
                # Not past its end: a whole frame may have come where this one was cut.
                self.searches += 1
                step = 1 if self.searches <= RESCANS else HEADER + length
                at += step
                self.skipped += step
                continue
            frames.append(frame)
            at += HEADER + length
        del held[:at]


def _length(header: bytes | bytearray | memoryview) -> int | None:
    """The length of the payload, if this is a sound header."""
    mark, version, kind, _, _, _, _, _, length, _, crc = _HEADER.unpack(header)
    if mark != MARK or version != VERSION or length > PAYLOAD_MAX or crc != zlib.crc32(header[:-4]):
        return None
    return int(length) if kind in _KINDS else None


def _frame(data: bytes | memoryview) -> Frame | None:
    """The frame, if its payload is what its header says."""
    _, _, kind, nonce, request, offset, message, blob, _, crc, _ = _HEADER.unpack_from(data)
    payload = data[HEADER:]
    if zlib.crc32(payload) != crc:
        return None
    return Frame(Kind(kind), nonce, request, payload, offset, message, blob)
