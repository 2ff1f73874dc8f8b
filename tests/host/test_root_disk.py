"""The root disk: an overlay that is whole once it has its name, and never made over another."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest
from driver_wants import SERVER, boot_image, make_spec, make_want

from unstuck.blobs.inspect import inspect_image
from unstuck.core.errors import Invalid
from unstuck.core.server.data import FetchFailed, Flavor, Gone, Missing, Ready, Thing, View, Want
from unstuck.core.server.host import Hold, plan_host
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import GIB, grow_disk, make_disk, virtual_size
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


def test_a_disk_grows_with_all_that_is_on_it_and_never_shrinks(tmp_path: Path) -> None:
    async def scene() -> None:
        folder, want, cache = await ready(tmp_path, flavor=Flavor(1, 64, 1))
        await make_disk(folder, want, cache, no_barrier)
        path = folder.disk("n0nce")
        await run(["qemu-io", "-c", "write -P 171 1M 2M", str(path)], deadline=10)
        larger = msgspec.structs.replace(
            want, spec=msgspec.structs.replace(want.spec, flavor=Flavor(1, 64, 3))
        )
        for _ in range(2):
            await grow_disk(folder, larger, no_barrier)
            assert virtual_size_of_overlay(path) == 3 * GIB
        await grow_disk(folder, want, no_barrier)
        assert virtual_size_of_overlay(path) == 3 * GIB, "never smaller"
        await run(["qemu-io", "-r", "-c", "read -P 171 1M 2M", str(path)], deadline=10)
        await run(["qemu-img", "check", "-q", str(path)], deadline=10)

    asyncio.run(scene())


def test_a_disk_that_somebody_has_open_is_not_grown(tmp_path: Path) -> None:
    """QEMU's own lock: whatever a planner thinks, a guest's disk is not changed under it."""

    async def made() -> tuple[ServerFolder, Want]:
        folder, want, cache = await ready(tmp_path, flavor=Flavor(1, 64, 1))
        await make_disk(folder, want, cache, no_barrier)
        return folder, want

    folder, want = asyncio.run(made())
    path = folder.disk("n0nce")
    larger = msgspec.structs.replace(want, spec=msgspec.structs.replace(want.spec, flavor=Flavor(1, 64, 3)))
    with subprocess.Popen(
        ["qemu-io", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("length\n")
        holder.stdin.flush()
        assert holder.stdout.readline()
        with pytest.raises(DriverError, match="lock"):
            asyncio.run(grow_disk(folder, larger, no_barrier))
        holder.communicate("quit\n", timeout=10)
    assert virtual_size_of_overlay(path) == GIB


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


def image_file(folder: Path, *changes: tuple[int, bytes]) -> bytes:
    """A qcow2 as QEMU makes it, changed in some places."""
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "made", "8M"], cwd=folder, check=True)
    data = bytearray((folder / "made").read_bytes())
    for at, new in changes:
        data[at : at + len(new)] = new
    return bytes(data)


async def on_qcow2(tmp_path: Path, data: bytes) -> tuple[ServerFolder, Want, ImageCache]:
    (tmp_path / "base").write_bytes(data)
    image = msgspec.structs.replace(boot_image("base", data), disk_format="qcow2")
    cache = ImageCache(tmp_path / "state", FolderSource(tmp_path))
    want = make_want(spec=make_spec(images=(image,)))
    await cache.fetch(want.spec.images)
    return ServerFolder(tmp_path / "state", SERVER), want, cache


SNAPSHOTS = (60, struct.pack(">I", 1_000_000))
HEADER = (100, b"\xff" * 4)


@pytest.mark.parametrize("change", [SNAPSHOTS, HEADER], ids=["snapshots", "header"])
def test_an_image_that_qemu_cannot_open_is_told_for_good(tmp_path: Path, change: tuple[int, bytes]) -> None:
    """Such an image was tried again for ever, and its servers stayed BUILD."""

    async def scene() -> None:
        folder, want, cache = await on_qcow2(tmp_path, image_file(tmp_path, change))
        with pytest.raises(DriverError, match="QEMU cannot open it") as caught:
            await make_disk(folder, want, cache, no_barrier)
        assert caught.value.lasting
        assert str(tmp_path) not in str(caught.value)
        assert not folder.disks()
        state = cache.state(want.spec.images)
        assert isinstance(state, FetchFailed)
        assert state.final
        view = View(Gone(), state, Thing.ABSENT, Thing.ABSENT, Thing.PRESENT)
        held = plan_host(want, view)
        assert isinstance(held, Hold)
        assert held.trouble is not None
        assert (held.trouble.code, held.trouble.final) == ("image-unusable", True)
        assert held.trouble.remedy == "rebuild the server from another image, or delete it"

    asyncio.run(scene())


def test_a_copy_that_rotted_is_fetched_again(tmp_path: Path) -> None:
    async def scene() -> None:
        good = image_file(tmp_path)
        folder, want, cache = await on_qcow2(tmp_path, good)
        path = cache.path(want.spec.images[0])
        path.chmod(0o600)
        path.write_bytes(image_file(tmp_path, SNAPSHOTS))
        with pytest.raises(DriverError, match="it is fetched again") as caught:
            await make_disk(folder, want, cache, no_barrier)
        assert not caught.value.lasting
        assert cache.state(want.spec.images) == Missing()
        await cache.fetch(want.spec.images)
        await make_disk(folder, want, cache, no_barrier)
        assert folder.disks()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("says", "lasting"),
    [
        ("exit status 1", True),
        ("Could not open 'x': No space left on device", False),
        ("Could not open 'x': Too many open files", False),
        ("Cannot allocate memory", False),
    ],
)
def test_what_the_host_is_short_of_is_never_the_images_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, lasting: bool
) -> None:
    real = shutil.which("qemu-img")
    fake = tmp_path / "bin" / "qemu-img"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" = info ] && exec {real} "$@"\necho "qemu-img: {says}" >&2\nexit 1\n')
    fake.chmod(0o755)

    async def scene() -> None:
        folder, want, cache = await on_qcow2(tmp_path, image_file(tmp_path))
        monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
        with pytest.raises(DriverError) as caught:
            await make_disk(folder, want, cache, no_barrier)
        assert caught.value.lasting is lasting
        assert cache.state(want.spec.images) == Ready()

    asyncio.run(scene())


def test_whatever_the_inspector_takes_qemu_opens(tmp_path: Path) -> None:
    """Every byte of the header changed: a refusal at the upload, or a disk that can be made."""
    base = image_file(tmp_path)
    taken = 0
    for at in [*range(120), *range(120, 600, 16)]:
        data = bytearray(base)
        data[at] ^= 0xFF
        (tmp_path / "changed").write_bytes(data)
        with contextlib.suppress(Invalid):
            inspect_image(tmp_path / "changed", "qcow2")
            command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "changed", "over"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (at, done.stderr)
            taken += 1
    assert taken > 10
