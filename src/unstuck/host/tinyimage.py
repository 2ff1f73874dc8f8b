"""Builds the tiny guest: ``python -m unstuck.host.tinyimage OUTDIR``.

A kernel, an initramfs (a little shell around busybox), and a small disk that counts boots. It exists so that
tests and the demo start real servers in seconds, also where only emulation works. Everything comes from two
Debian packages that apt downloads (no root, nothing is installed): nothing else is fetched or trusted.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from unstuck.host import built, cpio, vmlinux
from unstuck.host.debian import BuildError, Package, candidate, depends, run, unpacked
from unstuck.host.modules import Modules

FORMAT = 1
NAME = "unstuck-tiny"
CMDLINE = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr cryptomgr.notests"
MIN_RAM_MB = 96  # measured: 72 boots, 64 panics
_DISK_MB = 16
_UUID = "756e7374-7563-4b00-8000-74696e790001"  # constant, so that two builds of one kernel are equal
_KERNEL_META = "linux-image-cloud-amd64"
_BUSYBOX = "busybox-static"
_MODULES = {
    "boot": ("virtio_pci", "virtio_blk", "virtio_net"),
    "late": ("button", "evdev"),
    "vfat": ("vfat", "nls_cp437", "nls_ascii", "nls_utf8"),
    "iso9660": ("isofs",),
}
_GUEST_FILES = {
    "init": ("init", 0o755),
    "service": ("bin/service", 0o755),
    "stop": ("bin/stop", 0o755),
    "button": ("bin/button", 0o755),
    "ready": ("bin/ready", 0o755),
    "inittab": ("etc/inittab", 0o644),
    "network": ("etc/network", 0o644),
    "json.awk": ("etc/json.awk", 0o644),
    "dhcp": ("etc/dhcp", 0o755),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unstuck.host.tinyimage", description=__doc__)
    parser.add_argument("outdir", type=Path)
    arguments = parser.parse_args(argv)
    try:
        made = build(arguments.outdir)
    except BuildError as error:
        print(f"tiny image: {error}", file=sys.stderr)
        return 1
    print(f"tiny image: {'built' if made else 'up to date'} in {arguments.outdir}")
    return 0


def build(outdir: Path) -> bool:
    """Makes ``outdir`` hold the current image; False if it already did. Two builders at once take turns."""
    with built.building(outdir) as outdir:
        sources = _guest_sources()
        packages = _packages()
        if _is_current(outdir, sources, packages):
            return False
        if packages is None:
            raise BuildError("apt does not know the kernel package; as root: apt-get update")
        with tempfile.TemporaryDirectory(prefix=f".{outdir.name}.new-", dir=outdir.parent) as work:
            finished = Path(work) / "image"
            _assemble(Path(work), finished, sources, packages)
            built.replace(finished, outdir)
    return True


def read_manifest(outdir: Path) -> dict[str, Any] | None:
    """The manifest of a finished image that is there and whole, else None."""
    return built.read_manifest(outdir, FORMAT)


def _is_current(outdir: Path, sources: dict[str, bytes], packages: list[Package] | None) -> bool:
    """Without apt's lists an image of the same sources counts as current: its kernel may be older."""
    manifest = read_manifest(outdir)
    if manifest is None or manifest["sources"] != _digest(sources):
        return False
    return packages is None or manifest["packages"] == {package.name: package.version for package in packages}


def _guest_sources() -> dict[str, bytes]:
    folder = importlib.resources.files("unstuck.host") / "tiny"
    return {name: (folder / name).read_bytes() for name in _GUEST_FILES}


def _digest(sources: dict[str, bytes]) -> str:
    """Over everything of ours that shapes the image, so that a change of it leads to a new one."""
    settings = repr((FORMAT, CMDLINE, _DISK_MB, MIN_RAM_MB, _MODULES, _GUEST_FILES, _UUID))
    digest = hashlib.sha512(settings.encode())
    for name in sorted(sources):
        digest.update(f"{name} {len(sources[name])}\n".encode() + sources[name])
    return digest.hexdigest()


def _packages() -> list[Package] | None:
    """The kernel behind the meta package, and busybox, as apt would download them now."""
    kernel = next((name for name in depends(_KERNEL_META) if name.startswith("linux-image-")), None)
    names = [kernel, _BUSYBOX] if kernel else []
    found = [Package(name, version) for name in names if (version := candidate(name))]
    return found if len(found) == 2 else None


def _assemble(work: Path, finished: Path, sources: dict[str, bytes], packages: list[Package]) -> None:
    kernel_tree, busybox_tree = (unpacked(package, work) for package in packages)
    release = next((kernel_tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    kernel = vmlinux.extract((kernel_tree / "boot" / f"vmlinuz-{release}").read_bytes())
    busybox = next(
        path for path in busybox_tree.rglob("busybox") if path.is_file() and os.access(path, os.X_OK)
    )
    finished.mkdir()
    (finished / "vmlinux").write_bytes(kernel.content)
    (finished / "initrd").write_bytes(
        _initrd(sources, busybox.read_bytes(), _module_folder(kernel_tree, release))
    )
    _make_disk(work, finished / "disk.raw")
    manifest = {
        "format": FORMAT,
        "name": NAME,
        "architecture": "x86_64",
        "kernel_version": release,
        "kernel_protocol": kernel.protocol,
        "cmdline": CMDLINE,
        "min_ram": MIN_RAM_MB,
        "sources": _digest(sources),
        "packages": {package.name: package.version for package in packages},
        "files": {
            "kernel": built.file_entry(finished / "vmlinux", "aki"),
            "ramdisk": built.file_entry(finished / "initrd", "ari"),
            "disk": built.file_entry(finished / "disk.raw", "raw"),
        },
    }
    (finished / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _module_folder(tree: Path, release: str) -> Path:
    """Debian 13 moved /lib into /usr."""
    return next(
        path for path in (tree / "usr/lib/modules" / release, tree / "lib/modules" / release) if path.is_dir()
    )


def _initrd(sources: dict[str, bytes], busybox: bytes, modules: Path) -> bytes:
    archive = cpio.Archive()
    for folder in ("bin", "etc", "lib", "lib/modules", "proc", "sys", "dev", "run", "tmp", "data", "config"):
        archive.directory(folder)
    archive.device("dev/console", 5, 1)  # the kernel opens it before /init can mount devtmpfs
    archive.file("bin/busybox", busybox, 0o755)
    for name in ("bin/sh", "bin/init"):
        archive.link(name, "busybox")
    for name, (path, mode) in _GUEST_FILES.items():
        archive.file(path, sources[name], mode)
    _add_modules(archive, modules)
    return archive.packed()


def _add_modules(archive: cpio.Archive, folder: Path) -> None:
    """One list per moment of the boot, each in loading order; what the first list loads is not repeated."""
    modules = Modules(folder)
    added: set[str] = set()
    first: list[str] = []
    for name, wanted in _MODULES.items():
        order = [module for module in modules.loading_order(wanted) if module not in first]
        archive.file(f"lib/modules/{name}.list", "".join(f"{module}\n" for module in order).encode())
        for module in order:
            if module not in added:
                archive.file(f"lib/modules/{module}.ko", modules.content(module))
                added.add(module)
        first = first or order


def _make_disk(work: Path, target: Path) -> None:
    """A journalled file system, so that a guest that is killed keeps what it had synced."""
    content = work / "content"
    content.mkdir()
    (content / "boots").write_text("0\n")
    with target.open("wb") as disk:
        disk.truncate(_DISK_MB << 20)
    options = [
        "-L",
        NAME,
        "-U",
        _UUID,
        "-E",
        f"hash_seed={_UUID},root_owner=0:0",
        "-m",
        "0",
        "-O",
        "^resize_inode",
    ]
    run(
        ["mke2fs", "-q", "-F", "-t", "ext4", *options, "-d", str(content), str(target)],
        extra={"E2FSPROGS_FAKE_TIME": "1", "SOURCE_DATE_EPOCH": "1"},
    )


if __name__ == "__main__":
    sys.exit(main())
