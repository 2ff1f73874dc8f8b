"""Builds the guest image of a datastore: ``python -m unstuck.host.dbimage [--datastore NAME] OUTDIR``.

A read-only system tree, packed as squashfs, for containers and virtual machines alike: Debian's packages of
this machine's own release, the few Python packages that the guest agent needs, and the agent. What comes from
Debian is made once for a list of packages and kept (``base-…`` beside the image), so that a change of our own
code costs seconds. Two builds of the same parts are equal to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from unstuck.host import built, dbbase, dbkernel
from unstuck.host.dbkinds import KINDS, POSTGRESQL, WHEELS, Kind
from unstuck.host.debian import BuildError, run

FORMAT: Final = 1
FILE: Final = "root.squashfs"
EPOCH: Final = "1700000000"
"""The time of every file in it, so that the day of the build does not show."""
PACKAGES: Final = ("blobs", "core", "guest", "runtime")
HOME: Final = Path("usr/lib/unstuck")
_CODE = HOME / "python"
_INIT = """#!/bin/sh
# Process 1 of a database's guest. The agent's way to its host: a folder in containers, a port in machines.
export PYTHONPATH=/{code} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
channel=/run/unstuck-host/agent.sock
[ -e /dev/virtio-ports/unstuck.channel.0 ] && channel=/dev/virtio-ports/unstuck.channel.0
exec /usr/bin/python3 -m unstuck.guest.init --volume /var/lib/unstuck --agent-user unstuck --user {user} \\
    --stop {stop} -- /usr/bin/python3 -m unstuck.guest --datastore {name} --user {user} --mounted \\
    --channel "$channel"
"""


def _init(kind: Kind) -> str:
    return _INIT.format(code=_CODE, user=kind.user[0], stop=kind.stop, name=kind.name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unstuck.host.dbimage", description=__doc__)
    parser.add_argument("--datastore", choices=KINDS, default=POSTGRESQL.name)
    parser.add_argument("outdir", type=Path)
    arguments = parser.parse_args(argv)
    name = arguments.datastore
    try:
        made = build(arguments.outdir, name)
    except BuildError as error:
        print(f"{name} image: {error}", file=sys.stderr)
        return 1
    print(f"{name} image: {'built' if made else 'up to date'} in {arguments.outdir}")
    return 0


def default_folder(datastore: str = POSTGRESQL.name) -> Path:
    """Where it is built and looked for unless it is said otherwise."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "unstuck" / "images" / datastore


def build(outdir: Path, datastore: str = POSTGRESQL.name) -> bool:
    """Makes ``outdir`` hold the current image; False if it already did. Two builders at once take turns."""
    kind = KINDS[datastore]
    with built.building(outdir) as outdir:
        os.umask(0o022)  # a guest's users have to read what is made here
        sources = _sources()
        wheels = _wheels(kind)
        base = dbbase.ensure(outdir.parent, kind)
        kernel = dbkernel.packages(outdir.parent)
        wanted = {
            "sources": _digest(kind, sources), "wheels": wheels, "packages": base.packages, "kernel": kernel,
        }  # fmt: skip
        found = read_manifest(outdir)
        if found is not None and all(found.get(name) == value for name, value in wanted.items()):
            return False
        with tempfile.TemporaryDirectory(prefix=f".{outdir.name}.new-", dir=outdir.parent) as work:
            finished = Path(work) / "image"
            finished.mkdir()
            site = dbbase.python_packages(outdir.parent, wheels, base.python)
            dbkernel.write(outdir.parent, kernel, finished)
            _pack(kind, base.tree, site, sources, Path(work) / "tree", finished / FILE)
            manifest = {
                "format": FORMAT, "name": kind.name, "datastore": kind.name, "version": base.version,
                "release": base.release, "architecture": "x86_64", **wanted,
                "files": {
                    "root": built.file_entry(finished / FILE, "raw"),
                    "kernel": built.file_entry(finished / dbkernel.KERNEL, "aki"),
                    "ramdisk": built.file_entry(finished / dbkernel.RAMDISK, "ari"),
                },
            }  # fmt: skip
            (finished / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
            built.replace(finished, outdir)
    return True


def read_manifest(outdir: Path) -> dict[str, Any] | None:
    """The manifest of a finished image that is there and whole, else None."""
    return built.read_manifest(outdir, FORMAT)


def _sources() -> dict[str, bytes]:
    """Our own code that runs in the guest, by its path below the package."""
    top = Path(__file__).parents[1]
    files = [top / "__init__.py"]
    for package in PACKAGES:
        files += sorted(path for path in (top / package).rglob("*.py") if path.is_file())
    return {str(path.relative_to(top.parent)): path.read_bytes() for path in files}


def _wheels(kind: Kind) -> dict[str, str]:
    """The versions that this very program runs with."""
    found, wanted = {}, (*WHEELS, *kind.wheels)
    for name in wanted:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    missing = set(wanted) - found.keys() - {"typing-extensions"}
    if missing:
        raise BuildError(f"{', '.join(sorted(missing))} not installed here: run scripts/setup")
    return found


def _digest(kind: Kind, sources: dict[str, bytes]) -> str:
    settings = repr((FORMAT, kind.name, EPOCH, _init(kind), dbbase.settings(kind), dbkernel.MODULES))
    # How it is made is part of what it is.
    digest = hashlib.sha512(settings.encode() + dbkernel.script() + Path(__file__).read_bytes())
    for name in sorted(sources):
        digest.update(f"{name} {len(sources[name])}\n".encode() + sources[name])
    return digest.hexdigest()


def _pack(kind: Kind, base: Path, site: Path, sources: dict[str, bytes], tree: Path, target: Path) -> None:
    """The base by hard links (nothing of it is changed), what is ours beside it, all of it in one file."""
    run(["cp", "-al", str(base), str(tree)])
    (tree / HOME).mkdir()
    run(["cp", "-a", str(site), str(tree / _CODE)])
    for name, content in sources.items():
        path = tree / _CODE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    init = tree / HOME / "init"
    init.write_text(_init(kind))
    init.chmod(0o755)
    (tree / "var/lib/unstuck").mkdir(parents=True, exist_ok=True)
    # The tree is read-only and all times are the same: compiled files that check neither are used.
    run([
        *("chroot", str(tree), "/usr/bin/python3", "-m", "compileall", "-q", "-j", "0"),
        *("--invalidation-mode", "unchecked-hash", f"/{_CODE}"),
    ])  # fmt: skip
    run(["chmod", "-R", "u=rwX,go=rX", str(tree / HOME)])
    for name in ("tmp", "var/tmp"):  # a runtime gives what it mounts there the folder's mode
        (tree / name).mkdir(exist_ok=True)
        (tree / name).chmod(0o1777)
    pack(tree, target)


def pack(tree: Path, target: Path) -> None:
    """A squashfs of a tree; the same tree gives the same bytes."""
    run([
        *("mksquashfs", str(tree), str(target), "-noappend", "-no-progress", "-quiet", "-no-xattrs"),
        *("-comp", "zstd", "-Xcompression-level", "3", "-b", "128K", "-mkfs-time", EPOCH, "-all-time", EPOCH),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
