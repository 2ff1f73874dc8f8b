"""Kernel modules of an unpacked kernel package and the order in which they must be loaded.

The package has no modules.dep (its installation makes it); each module names what it needs itself.
"""

from __future__ import annotations

import gzip
import lzma
import re
from collections.abc import Iterable
from pathlib import Path

from unstuck.host.debian import BuildError

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_SUFFIX = re.compile(r"\.ko(\.xz|\.gz)?$")


class Modules:
    def __init__(self, folder: Path) -> None:
        found = [path for path in folder.rglob("*.ko*") if _SUFFIX.search(path.name)]
        self._paths = {_name(path.name): path for path in found}
        builtin = (folder / "modules.builtin").read_text().split()
        self._builtin = {_name(Path(line).name) for line in builtin}
        self._contents: dict[str, bytes] = {}

    def loading_order(self, wanted: Iterable[str]) -> list[str]:
        """The wanted modules after all that they need; what the kernel has built in is left out."""
        order: list[str] = []
        for name in wanted:
            self._visit(name, order)
        return order

    def content(self, name: str) -> bytes:
        """Unpacked: busybox's insmod does not know every packing."""
        if name not in self._contents:
            self._contents[name] = _unpacked(self._paths[name])
        return self._contents[name]

    def _visit(self, name: str, order: list[str]) -> None:
        if name in order or name in self._builtin:
            return
        if name not in self._paths:
            message = f"the kernel has no module {name}"
            raise BuildError(message)
        match = _DEPENDS.search(b"\0" + self.content(name))
        needed = match.group(1).decode().split(",") if match else []
        for other in filter(None, needed):
            self._visit(_name(other), order)
        order.append(name)


def _name(file: str) -> str:
    """Names are the same with - and _."""
    return _SUFFIX.sub("", file).replace("-", "_")


def _unpacked(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return path.read_bytes()
