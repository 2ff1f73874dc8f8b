"""An initramfs archive (cpio, "newc"), written without root or tools; equal input gives equal bytes."""

from __future__ import annotations

import gzip

_DIRECTORY, _FILE, _LINK, _DEVICE = 0o040000, 0o100000, 0o120000, 0o020000


class Archive:
    """Members in the order in which they were added; owner root, no times."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0

    def directory(self, path: str) -> None:
        self._member(path, _DIRECTORY | 0o755, b"")

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._member(path, _FILE | mode, content)

    def link(self, path: str, target: str) -> None:
        self._member(path, _LINK | 0o777, target.encode())

    def device(self, path: str, major: int, minor: int) -> None:
        self._member(path, _DEVICE | 0o600, b"", (major, minor))

    def packed(self) -> bytes:
        """The archive with its trailer, compressed (the kernel's own gzip)."""
        self._member("TRAILER!!!", 0, b"")
        return gzip.compress(b"".join(self._parts), compresslevel=9, mtime=0)

    def _member(self, path: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        name = path.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self._parts += [_padded(header), _padded(content)]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
