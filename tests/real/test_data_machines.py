"""A database's machine on the real thing: kernel and initramfs of the datastore's image, a tiny system tree,
a raw volume, and a channel over virtio-serial."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from tests.real.container_stage import build_tree, nic, reached
from tests.real.driving import settle, until
from tests.real.test_qemu_driver import powered_off
from unstuck.core.server.data import (
    Access,
    BootImage,
    Fence,
    Flavor,
    ImageRole,
    Machine,
    Power,
    Running,
    Spec,
    Step,
    Want,
)
from unstuck.host import dbimage
from unstuck.host.drivers.folder import ServerFolder, write_identity
from unstuck.host.drivers.qemu import QemuDriver
from unstuck.host.drivers.volume import volume_size
from unstuck.host.images import FolderSource
from unstuck.host.networks.bridge import Bridges

IMAGE = dbimage.default_folder()
HOST = "host-1"
SERVER = "abababab-2222-4333-8444-555555555555"
pytestmark = [
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
    pytest.mark.skipif(dbimage.read_manifest(IMAGE) is None, reason="set-up built no database image here"),
]


def boot_images(folder: Path) -> tuple[BootImage, ...]:
    tree = build_tree(folder)
    found = []
    for role, path in (
        (ImageRole.ROOT, tree),
        (ImageRole.KERNEL, IMAGE / "vmlinux"),
        (ImageRole.RAMDISK, IMAGE / "initrd"),
    ):
        content = path.read_bytes()
        (folder / role.value).write_bytes(content)
        digest = hashlib.sha512(content).hexdigest()
        found.append(BootImage(role.value, role, digest, len(content), "raw"))
    return tuple(found)


async def said(driver: QemuDriver, want: Want, text: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while text not in (console := await driver.console(want.server_id, None)):
        assert time.monotonic() < end, console
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("namespace")
def test_a_database_boots_keeps_its_data_and_ends_in_order(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    state = tmp_path / "state"
    write_identity(state, HOST)
    spec = Spec(
        "db", "db", "p", "nova", Flavor(1, 192, 1), boot_images(images), (nic(10),), machine=Machine.VM,
        data=True, access=Access((5432,), ("10.97.0.1",)),
    )  # fmt: skip
    want = Want(SERVER, Fence(1, 1), "n1", 1, 1, Power.ON, 1, False, 0.0, False, False, spec)
    folder = ServerFolder(state, SERVER)

    async def scene() -> None:
        driver = QemuDriver(state, HOST, "tcg", FolderSource(images), networks=Bridges(HOST))
        try:
            assert await settle(driver, want) is Step.AT_REST
            handle = os.open(folder.channel, os.O_PATH)  # the path is too long for a socket's address
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{handle}/vm.sock")
            os.close(handle)
            assert await asyncio.wait_for(reader.readline(), 90.0) == b"hello from the guest\n"
            writer.close()
            await said(driver, want, "ready: start 1")
            assert await asyncio.to_thread(reached, "10.97.0.10", 5432, seconds=5)
            assert not await asyncio.to_thread(reached, "10.97.0.10", 5433, seconds=2)
            await powered_off(driver, want)
            await said(driver, want, "ended in order")
            await driver.quit(want)
            larger = msgspec.structs.replace(spec, flavor=Flavor(1, 192, 2))
            again = msgspec.structs.replace(want, edge=2, disk_recorded=True, spec=larger)
            assert await settle(driver, again) is Step.AT_REST
            await said(driver, again, "ready: start 2")
            assert await until(driver, again, Running) == Running(2)
            assert volume_size(folder.disk_of(again)) == 2 << 30
            gone = msgspec.structs.replace(again, gone=True)
            assert await settle(driver, gone) is Step.REMOVED
        finally:
            await driver.quit(want)
            await driver.close()

    asyncio.run(scene())
