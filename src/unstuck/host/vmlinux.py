"""The kernel inside a bzImage, unpacked: QEMU enters it directly (PVH), which spares a TCG guest a second."""

from __future__ import annotations

import lzma
import struct
import subprocess
from dataclasses import dataclass

_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248
_LZ4_LEGACY, _XZ, _ZSTD = b"\x02\x21\x4c\x18", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_PVH_NOTE = struct.pack("<III", 4, 4, 18) + b"Xen\0"
_PVH_NOTE_LONG = struct.pack("<III", 4, 8, 18) + b"Xen\0"
_TOOL_SECONDS = 60


@dataclass(frozen=True)
class Kernel:
    """For QEMU's ``-kernel``; ``protocol`` is ``pvh`` or, if it could not be unpacked, ``bzimage``."""

    content: bytes
    protocol: str


def extract(bzimage: bytes) -> Kernel:
    """The unpacked kernel, or the bzImage itself when its packing is unknown or it has no PVH entry."""
    content = _unpack(_payload(bzimage))
    if content.startswith(b"\x7fELF") and (_PVH_NOTE in content or _PVH_NOTE_LONG in content):
        return Kernel(content, "pvh")
    return Kernel(bzimage, "bzimage")


def _payload(bzimage: bytes) -> bytes:
    if len(bzimage) < 0x260 or bzimage[0x202:0x206] != b"HdrS":
        message = "not a bzImage: its boot header is missing"
        raise ValueError(message)
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD)
    start = (bzimage[_SETUP_SECTORS] + 1) * 512 + offset
    return bzimage[start : start + length]


def _unpack(payload: bytes) -> bytes:
    """The last four bytes of a payload are its unpacked size and belong to none of the formats."""
    data = payload[:-4]
    if payload.startswith(_LZ4_LEGACY):
        return _tool(["lz4", "-d", "-q", "-c"], data)
    if payload.startswith(_ZSTD):
        return _tool(["zstd", "-d", "-q", "-c"], data)
    if payload.startswith(_XZ):
        try:
            return lzma.decompress(data)
        except lzma.LZMAError:
            return b""
    return b""


def _tool(command: list[str], data: bytes) -> bytes:
    """Empty when the tool is missing or fails: the caller then keeps the bzImage."""
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""
