"""The root disk: an overlay that is whole once it has its name, and never made over another."""

from __future__ import annotations

import asyncio
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from driver_wants import SERVER, boot_image, make_spec, make_want

from unstuck.core.server.data import Flavor, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import GIB, make_disk, virtual_size
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import run
from unstuck.host.images import FolderSource, ImageCache, no_barrier

pytestmark = pytest.mark.skipif(not shutil.which("qemu-img"), reason="no qemu-img")
BASE = bytes(3 << 20)


async def ready(tmp_path: Path, **changed: object) -> tuple[ServerFolder, Want, ImageCache]:
    (tmp_path / "base").write_bytes(BASE)
    spec = make_spec(images=(boot_image("base", BASE),), **changed)
    cache = ImageCache(tmp_path / "state", FolderSource(tmp_path))
    await cache.fetch(spec.images)
    return ServerFolder(tmp_path / "state", SERVER), make_want(spec=spec), cache


def test_the_disk_is_as_large_as_the_flavor_says_or_the_image_if_that_is_larger(tmp_path: Path) -> None:
    async def scene() -> None:
        folder, want, cache = await ready(tmp_path, flavor=Flavor(1, 64, 2))
        await make_disk(folder, want, cache, no_barrier)
        assert virtual_size_of_overlay(folder.disk("n0nce")) == 2 * GIB
        _, small, _ = await ready(tmp_path, flavor=Flavor(1, 64, 0))
        folder.disk("n0nce").unlink()
        await make_disk(folder, small, cache, no_barrier)
        assert virtual_size_of_overlay(folder.disk("n0nce")) == len(BASE)
        await run(["qemu-img", "check", "-q", str(folder.disk("n0nce"))], deadline=10)

    asyncio.run(scene())


def virtual_size_of_overlay(path: Path) -> int:
    size: int = struct.unpack_from(">Q", path.read_bytes()[:80], 24)[0]
    return size


def test_a_disk_that_is_there_is_never_touched(tmp_path: Path) -> None:
    async def scene() -> None:
        folder, want, cache = await ready(tmp_path)
        folder.ensure()
        folder.disk("n0nce").write_bytes(b"precious")
        await make_disk(folder, want, cache, no_barrier)
        assert folder.disk("n0nce").read_bytes() == b"precious"
        folder.disk("n0nce").rename(folder.disk("older"))
        with pytest.raises(DriverError, match="another grant"):
            await make_disk(folder, want, cache, no_barrier)

    asyncio.run(scene())


def test_not_even_one_that_appears_meanwhile(tmp_path: Path) -> None:
    async def scene() -> None:
        folder, want, cache = await ready(tmp_path)

        async def barrier(name: str) -> None:
            assert name == "driver.disk.half"
            folder.disk("n0nce").write_bytes(b"precious")

        with pytest.raises(DriverError, match="left alone"):
            await make_disk(folder, want, cache, barrier)
        assert folder.disk("n0nce").read_bytes() == b"precious"

    asyncio.run(scene())


def test_what_a_killed_maker_left_is_no_disk_and_is_swept(tmp_path: Path) -> None:
    async def scene() -> None:
        folder, want, cache = await ready(tmp_path)

        async def die(_name: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await make_disk(folder, want, cache, die)

    asyncio.run(scene())

    async def again() -> None:
        folder, want, cache = await ready(tmp_path)
        assert folder.disks() == []
        assert list(folder.path.glob("*.part-*"))
        await make_disk(folder, want, cache, no_barrier)
        assert [p.name for p in folder.path.iterdir() if p.name != "grant.json"] == ["disk-n0nce.qcow2"]

    asyncio.run(again())


def test_an_image_that_reaches_into_the_hosts_files_is_refused(tmp_path: Path) -> None:
    evil, victim = tmp_path / "evil.qcow2", tmp_path / "victim"
    victim.write_bytes(bytes(1 << 20))
    make = ["qemu-img", "create", "-q", "-f", "qcow2"]
    subprocess.run([*make, "-F", "raw", "-b", str(victim), str(evil)], check=True)
    with pytest.raises(DriverError, match="another file"):
        virtual_size(evil, "qcow2")
    evil.unlink()
    subprocess.run([*make, "-o", f"data_file={tmp_path}/data", str(evil), "1M"], check=True)
    with pytest.raises(DriverError, match="another file"):
        virtual_size(evil, "qcow2")
    with pytest.raises(DriverError, match="not what its format says"):
        virtual_size(victim, "qcow2")
    with pytest.raises(DriverError, match="vmdk"):
        virtual_size(victim, "vmdk")
