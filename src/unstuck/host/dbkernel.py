"""Kernel and initramfs for databases in virtual machines: Debian's kernel, busybox, and a script of ours.

What comes from Debian is kept (``kernel-…`` beside the images); the initramfs is packed anew each time.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from unstuck.host import cpio, vmlinux
from unstuck.host.dbbase import used
from unstuck.host.debian import BuildError, Package, candidate, depends, unpacked
from unstuck.host.modules import Modules

_META: Final = "linux-image-cloud-amd64"
_BUSYBOX: Final = "busybox-static"
MODULES: Final = (
    "virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio_rng", "squashfs", "ext4", "button",
    "evdev",
)  # fmt: skip
KERNEL: Final = "vmlinux"
RAMDISK: Final = "initrd"


def script() -> bytes:
    return (importlib.resources.files("unstuck.host") / "dbvm" / "init").read_bytes()


def packages(folder: Path) -> dict[str, str]:
    """Kernel and busybox as apt would download them now; without its lists, those that are kept."""
    kernel = next((name for name in depends(_META) if name.startswith("linux-image-")), None)
    names = [kernel, _BUSYBOX] if kernel else []
    found = {name: version for name in names if (version := candidate(name))}
    if len(found) == 2:
        return found
    for kept in sorted(folder.glob("kernel-*/packages.json")):
        told: dict[str, str] = json.loads(kept.read_text())
        return told
    raise BuildError("apt does not know the kernel package; as root: apt-get update")


def write(folder: Path, wanted: dict[str, str], target: Path) -> None:
    """``vmlinux`` and ``initrd``."""
    kept = _parts(folder, wanted)
    os.link(kept / KERNEL, target / KERNEL)
    archive = cpio.Archive()
    for name in ("bin", "etc", "lib", "lib/modules", "proc", "sys", "dev", "run", "tmp", "root"):
        archive.directory(name)
    archive.device("dev/console", 5, 1)  # the kernel opens it before /init can mount devtmpfs
    archive.file("bin/busybox", (kept / "busybox").read_bytes(), 0o755)
    archive.link("bin/sh", "busybox")
    archive.file("init", script(), 0o755)
    archive.file("lib/modules/boot.list", (kept / "boot.list").read_bytes())
    for name in (kept / "boot.list").read_text().split():
        archive.file(f"lib/modules/{name}.ko", (kept / f"{name}.ko").read_bytes())
    (target / RAMDISK).write_bytes(archive.packed())


def _parts(folder: Path, wanted: dict[str, str]) -> Path:
    version = next(version for name, version in wanted.items() if name != _BUSYBOX)
    target = folder / f"kernel-{version.replace('/', '_')}"
    if _kept(target) == (wanted, list(MODULES)):
        return used(target)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=folder) as name:
        work, made = Path(name), Path(name) / "made"
        made.mkdir()
        _fill(work, made, wanted)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return used(target)


def _kept(target: Path) -> tuple[dict[str, str], list[str]] | None:
    try:
        return json.loads((target / "packages.json").read_text()), json.loads(
            (target / "modules.json").read_text()
        )
    except (OSError, ValueError):
        return None


def _fill(work: Path, made: Path, wanted: dict[str, str]) -> None:
    kernel_tree, busybox_tree = (unpacked(Package(*item), work) for item in wanted.items())
    release = next((kernel_tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    kernel = vmlinux.extract((kernel_tree / "boot" / f"vmlinuz-{release}").read_bytes())
    (made / KERNEL).write_bytes(kernel.content)
    busybox = next(
        path for path in busybox_tree.rglob("busybox") if path.is_file() and path.stat().st_mode & 1
    )
    shutil.copy(busybox, made / "busybox")
    places = (kernel_tree / "usr/lib/modules" / release, kernel_tree / "lib/modules" / release)
    modules = Modules(next(path for path in places if path.is_dir()))
    order = modules.loading_order(MODULES)
    (made / "boot.list").write_text("".join(f"{name}\n" for name in order))
    for name in order:
        (made / f"{name}.ko").write_bytes(modules.content(name))
    (made / "packages.json").write_text(json.dumps(wanted))
    (made / "modules.json").write_text(json.dumps(list(MODULES)))
