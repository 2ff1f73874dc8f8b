"""Unpacks a backup from its input into a folder that it makes. Run by its text, as the datastore's user.

With ``over`` as second argument the folder may be there, and files in it are replaced: the log of a child.
Else it is a base backup, and every file has to be what the manifest in it says, with a digest each. They are
taken as the bytes pass: reading all of it again would take as long as unpacking it.

Only plain files and folders, only below the folder, each once: what else a tar can hold (links, devices,
names that climb) no backup of ours has.
"""

import ctypes
import hashlib
import json
import os
import sys

BLOCK = 512
READ = 256 << 10
AHEAD = 8 << 20
"""Bytes of a file after which the disk begins to take them: it works while the next ones come."""
SYNC_FILE_RANGE_WRITE = 2
MANIFEST = "backup_manifest"


class Source:
    """The input, through one piece of memory that is used again and again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = memoryview(bytearray(READ))
        self._rest = self._memory[:0]

    def some(self, most: int) -> memoryview:
        """As much as is there, at most so much, at least one byte; it holds until the next call."""
        if not self._rest:
            got = os.readv(self._descriptor, [self._memory])
            if got == 0:
                raise ValueError("unexpected end of data")
            self._rest = self._memory[:got]
        found, self._rest = self._rest[:most], self._rest[most:]
        return found

    def block(self) -> bytes:
        found = bytes(self.some(BLOCK))
        while len(found) < BLOCK:
            found += self.some(BLOCK - len(found))
        return found

    def skip(self, left: int) -> None:
        while left:
            left -= len(self.some(left))

    def drain(self) -> None:
        """What follows the end."""
        while os.readv(self._descriptor, [self._memory]):
            pass


class Disk:
    """Lets the disk begin early. Only ever makes the sync at the end shorter."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._begin = getattr(libc, "sync_file_range", None)
        if self._begin is not None:
            self._begin.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def take(self, descriptor: int, offset: int, length: int) -> None:
        if self._begin is not None:
            self._begin(descriptor, offset, length, SYNC_FILE_RANGE_WRITE)


def parts(name: str) -> list[str]:
    found = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in found or "\0" in name:
        raise ValueError(f"a name climbs out of it: {name[:80]!r}")
    return found


def number(field: bytes) -> int:
    """Octal, or binary where that is too small (files of 8 GiB and more)."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def header(block: bytes) -> tuple[str, int, bytes]:
    """Name, size and type. Raises ValueError."""
    try:
        size, checksum = number(block[124:136]), int(block[148:156].strip(b"\0 "), 8)
    except ValueError:
        raise ValueError("a header in it cannot be read") from None
    if checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise ValueError("a header in it has a wrong checksum")
    name = block[:100].split(b"\0")[0]
    if block[257:262] == b"ustar" and block[345]:
        name = block[345:500].split(b"\0")[0] + b"/" + name
    return os.fsdecode(name), size, block[156:157]


def write(source: Source, disk: Disk, path: str, size: int) -> str:
    """The file; its digest."""
    digest, left, begun = hashlib.sha256(), size, 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
    try:
        while left:
            data = source.some(left)
            digest.update(data)
            left -= len(data)
            while data:
                data = data[os.write(descriptor, data) :]
            if size - left - begun >= AHEAD:
                disk.take(descriptor, begun, size - left - begun)
                begun = size - left
        if begun:
            disk.take(descriptor, begun, size - begun)
    finally:
        os.close(descriptor)
    source.skip(-size % BLOCK)
    return digest.hexdigest()


def unpack(target: str, over: bool) -> dict[str, str]:
    """All of it; each file's digest by its path in the folder."""
    source, disk = Source(0), Disk()
    digests: dict[str, str] = {}
    while any(block := source.block()):
        name, size, kind = header(block)
        found = parts(name)
        path = os.path.join(target, *found)
        if kind == b"5" or (kind in (b"0", b"\0") and name.endswith("/")):
            os.makedirs(path, 0o750, exist_ok=True)
        elif kind in (b"0", b"\0") and found:
            os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
            if over and os.path.lexists(path):
                os.unlink(path)
            digests["/".join(found)] = write(source, disk, path, size)
        else:
            raise ValueError(f"it holds something that is no file: {name[:80]!r}")
    source.drain()
    return digests


def compare(target: str, digests: dict[str, str]) -> None:
    """With the manifest; which other files there may be, sizes and the log are ``pg_verifybackup``'s part."""
    try:
        with open(os.path.join(target, MANIFEST), "rb") as file:
            entries = json.load(file)["Files"]
        for entry in entries:
            path = entry["Path"] if "Path" in entry else os.fsdecode(bytes.fromhex(entry["Encoded-Path"]))
            if entry.get("Checksum-Algorithm") != "SHA256":
                raise ValueError(f"its manifest has no digest of {path[:200]}")
            if digests.get(path) != entry["Checksum"]:
                raise ValueError(f"the digest of {path[:200]} is not its manifest's")
    except (OSError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read: {error}") from None


def main(target: str, over: str = "") -> int:
    os.umask(0o027)
    try:
        if over:
            os.makedirs(target, 0o750, exist_ok=True)
        else:
            os.mkdir(target, 0o750)
        digests = unpack(target, bool(over))
        if not over:
            compare(target, digests)
    except ValueError as error:
        sys.stderr.write(f"damaged: {error}\n")
        return 3
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
