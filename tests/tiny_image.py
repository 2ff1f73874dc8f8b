"""A guest image of a few bytes, for guests that are files (the instant driver)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def fake_tiny(folder: Path) -> Path:
    """What `unstuck image build` leaves, with other bytes in it: enough for guests that are files."""
    folder.mkdir()
    files = {}
    for role, name, disk_format in (
        ("kernel", "vmlinux", "aki"), ("ramdisk", "initrd", "ari"), ("disk", "disk.raw", "raw"),
    ):  # fmt: skip
        data = role.encode() * 1000
        (folder / name).write_bytes(data)
        files[role] = {
            "name": name, "disk_format": disk_format, "size": len(data),
            "container_format": "bare" if disk_format == "raw" else disk_format,
            "sha512": hashlib.sha512(data).hexdigest(),
        }  # fmt: skip
    manifest = {"format": 1, "name": "x", "cmdline": "quiet", "min_ram": 64, "sources": "", "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
