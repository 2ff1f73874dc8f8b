"""Looking into an uploaded image before it becomes active: is it what it claims, and is it safe?"""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Final

from unstuck.core.errors import Invalid

MAX_VIRTUAL: Final = 16 << 40
_MAX_L1: Final = 1 << 20
_MAX_L2_ENTRIES: Final = 4 << 20
_MAX_L1_SIZE: Final = 4 << 20
_MAX_REFCOUNTS: Final = 8 << 20
_MAX_EXTENSIONS: Final = 100
_OFFSET: Final = 0x00FFFFFFFFFFFE00
_COMPRESSED: Final = 1 << 62
_EXTENDED_L2: Final = 1 << 4
_CORRUPT: Final = 1 << 1
_EXTERNAL: Final = 1 << 2
_COMPRESSION: Final = 1 << 3
_KNOWN: Final = 1 | _CORRUPT | _EXTERNAL | _COMPRESSION | _EXTENDED_L2


def inspect_image(path: Path, disk_format: str) -> int:
    """The virtual size of an image; refused unless its content is safe and of the declared format."""
    from oslo_utils.imageutils import format_inspector  # slow to import, and needed by uploads only

    size = path.stat().st_size
    try:
        found = format_inspector.detect_file_format(str(path))
    except format_inspector.ImageFormatError as error:
        raise Invalid(f"The image's format cannot be told for sure: {error}") from None
    kind = "raw" if found is None else str(found)
    if disk_format != "qcow2":
        # A partitioned disk ("gpt", also said of an MBR or of a kernel's boot sector) is raw as well.
        if kind not in ("raw", "gpt"):
            raise Invalid(f"The image is declared as {disk_format}, but its content is {kind}.")
        return size
    if kind != "qcow2":
        raise Invalid(f"The image is declared as qcow2, but its content is {kind}.")
    _safety(format_inspector, found)
    with path.open("rb") as file:
        return check_qcow2(file, size)


def _safety(format_inspector: Any, found: Any) -> None:
    try:
        found.safety_check()
    except format_inspector.SafetyCheckFailed as error:
        reasons = "; ".join(str(failure) for failure in error.failures.values())
        raise Invalid(f"The qcow2 image is not safe: {reasons}.") from None
    except format_inspector.ImageFormatError as error:
        raise Invalid(f"The qcow2 image is broken: {error}") from None


def check_qcow2(file: BinaryIO, size: int) -> int:
    """The virtual size of a qcow2 file that stands alone and has all its tables within its end."""
    header = file.read(112).ljust(112, b"\0")
    magic, version, backing, _, cluster_bits, virtual, crypt, l1_size, l1_at, refcount_at, refcounts = (
        struct.unpack_from(">4sIQIIQIIQQI", header)
    )  # fmt: skip
    snapshots, snapshots_at = struct.unpack_from(">IQ", header, 60)
    features = struct.unpack_from(">Q", header, 72)[0] if version >= 3 else 0
    _refuse(
        size < 72 or magic != b"QFI\xfb" or version not in (2, 3), "its header is not one of version 2 or 3"
    )
    _refuse(backing != 0, "it has a backing file")
    _refuse(bool(features & _EXTERNAL), "it has an external data file")
    _refuse(bool(features & _CORRUPT), "it is marked as corrupt")
    _refuse(crypt != 0, "it is encrypted")
    _refuse(not 9 <= cluster_bits <= 21, "its cluster size is out of range")
    _refuse(not 0 < virtual <= MAX_VIRTUAL, f"its virtual size is not between 1 byte and {MAX_VIRTUAL} bytes")
    # A guest's own snapshots would be of no use here, and hide data that its owner does not know of.
    _refuse(snapshots != 0, "it has internal snapshots: convert it first (qemu-img convert -O qcow2)")
    cluster = 1 << cluster_bits
    _refuse(snapshots_at % cluster != 0 or snapshots_at > size, "its table of snapshots is misplaced")
    entry = 16 if features & _EXTENDED_L2 else 8
    tables = -(-virtual // (cluster * (cluster // entry)))
    _refuse(tables > _MAX_L1, "its clusters are too small for its virtual size")
    _refuse(l1_size < tables, "its L1 table is too small")
    _refuse(
        l1_at % cluster != 0 or l1_at == 0 or l1_at + l1_size * 8 > size, "its L1 table lies past the end"
    )
    end = refcount_at + refcounts * cluster
    _refuse(refcount_at % cluster != 0 or refcount_at == 0, "its refcount table is misplaced")
    _refuse(refcounts == 0 or end > size, "its refcount table lies past the end")
    _refuse(refcounts * cluster > _MAX_REFCOUNTS or l1_size > _MAX_L1_SIZE, "its tables are too large")
    _check_header(file, header, version, features, cluster)
    _check_tables(file, size, l1_at, int(tables), cluster, entry)
    return int(virtual)


def _check_header(file: BinaryIO, header: bytes, version: int, features: int, cluster: int) -> None:
    """What version 3 adds, and the extensions: QEMU opens no image in which one of them is wrong.

    An image that is taken here and cannot be opened there leaves a server that can never be built.
    """
    at = 72
    if version >= 3:
        _refuse(bool(features & ~_KNOWN), "it needs features that are not known here")
        order, at = struct.unpack_from(">II", header, 96)
        _refuse(order > 6, "its refcounts are too wide")
        _refuse(not 104 <= at <= cluster or at % 8 != 0, "its header is longer than a cluster, or too short")
        compression = header[104] if at > 104 else 0
        zstd = bool(features & _COMPRESSION)
        _refuse(compression != (1 if zstd else 0), "its kind of compression is not known here")
    for _ in range(_MAX_EXTENSIONS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8 or at + 8 > cluster:
            return
        kind, length = struct.unpack(">II", head)
        _refuse(at + 8 + length > cluster, "an extension of its header lies past the first cluster")
        if kind == 0:
            return
        at += 8 + -(-length // 8) * 8
    _refuse(True, "its header has too many extensions")


def _check_tables(file: BinaryIO, size: int, l1_at: int, tables: int, cluster: int, entry: int) -> None:
    """Every table and every cluster that is pointed to starts inside the file."""
    budget = _MAX_L2_ENTRIES
    for offset in {value & _OFFSET for value in _numbers(file, l1_at, tables)} - {0}:
        _refuse(
            offset % cluster != 0 or offset + cluster > size, "an L2 table lies past the end: it is cut off"
        )
        if budget <= 0:
            continue
        numbers = _numbers(file, offset, cluster // 8)[:: entry // 8]
        budget -= len(numbers)
        last = max((value & _OFFSET for value in numbers if not value & _COMPRESSED), default=0)
        _refuse(last >= size, "a data cluster lies past the end: it is cut off")


def _numbers(file: BinaryIO, at: int, count: int) -> array[int]:
    file.seek(at)
    numbers = array("Q")
    numbers.frombytes(file.read(count * 8))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _refuse(wrong: bool, reason: str) -> None:
    if wrong:
        raise Invalid(f"The qcow2 image cannot be used: {reason}.")
