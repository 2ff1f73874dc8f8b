"""One host with containers of a tiny system tree, and what must not outlive a test."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from unstuck.core.server.data import (
    BootImage,
    Fence,
    Flavor,
    ImageRole,
    Machine,
    Nic,
    Power,
    Spec,
    Want,
)
from unstuck.host.driver import Driver
from unstuck.host.drivers.folder import ServerFolder, write_identity
from unstuck.host.drivers.podman import cgroups, mounts
from unstuck.host.drivers.podman.driver import PodmanDriver
from unstuck.host.drivers.podman.engine import unfit
from unstuck.host.images import FolderSource, ImageCache
from unstuck.host.networks import netns
from unstuck.host.networks.bridge import Bridges
from unstuck.runtime.state import State

INIT = """#!/bin/sh
# A guest's process 1: counts its starts on the volume, answers on port 5432, ends in order.
exec 2>&1
cd /var/lib/unstuck || exit 3
echo $(( $(cat starts 2>/dev/null || echo 0) + 1 )) > starts; sync
while :; do nc -l -p 5432 -e /bin/echo datastore; done &
while :; do nc -l -p 5433 -e /bin/echo other; done &
port=/dev/virtio-ports/unstuck.channel.0
[ -e $port ] && (echo hello from the guest > $port) &
trap 'echo ended in order; echo yes > orderly; sync; exit 0' TERM
[ -e fail ] && echo cannot go on && exit 7
echo ready: start $(cat starts) as $(id -u)
while :; do sleep 1 & wait $!; done
"""
NETWORK = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
COMMANDS = ("sh", "sleep", "echo", "id", "cat", "nc", "sync", "dd", "ls", "touch", "mount", "rm", "ps")


def build_tree(folder: Path) -> Path:
    """A squashfs with busybox and our process 1."""
    tree = folder / "tree"
    for name in ("bin", "proc", "sys", "dev", "run", "tmp", "etc", "usr/lib/unstuck"):
        (tree / name).mkdir(parents=True)
    for name in ("var/lib/unstuck", "var/tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", tree / "bin/busybox")
    for name in COMMANDS:
        (tree / "bin" / name).symlink_to("busybox")
    for name in ("hosts", "hostname", "resolv.conf"):
        (tree / "etc" / name).touch()
    (tree / "etc/mtab").symlink_to("/proc/mounts")
    init = tree / "usr/lib/unstuck/init"
    init.write_text(INIT)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    (tree / "tmp").chmod(0o1777)  # what is mounted there gets its mode from it
    image = folder / "root.squashfs"
    subprocess.run(
        ["mksquashfs", tree, image, "-all-root", "-noappend", "-quiet", "-no-progress", "-comp", "lz4"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(tree)
    return image


def why_not() -> str:
    """Why there are no containers here; empty where there are."""
    if shutil.which("mksquashfs") is None:
        return "no mksquashfs"
    return unfit()


class Stage:
    """One host: its folder, its drivers, and what must not outlive the test."""

    def __init__(self, root: Path, image: Path) -> None:
        self.host_id = str(uuid.uuid4())
        self.state = State(root / "a state folder")
        self.dir = self.state.host
        write_identity(self.dir, self.host_id)
        content = image.read_bytes()
        digest = hashlib.sha512(content).hexdigest()
        self.image = BootImage(image.name, ImageRole.ROOT, digest, len(content), "raw")
        self.source = FolderSource(image.parent)
        self.events: list[str] = []
        self.wants: dict[str, Want] = {}
        self._drivers: list[PodmanDriver] = []

    def driver(self, **options: Any) -> PodmanDriver:
        """What a new agent would have."""
        made = PodmanDriver(
            self.dir, self.host_id, ImageCache(self.dir, self.source), Bridges(self.host_id),
            on_event=self.events.append, **options,
        )  # fmt: skip
        self._drivers.append(made)
        return made

    def want(self, nics: tuple[Nic, ...] = (), **changed: Any) -> Want:
        spec = Spec(
            "db", "db", "p", "nova", Flavor(1, 128, 1), (self.image,), nics, machine=Machine.CONTAINER,
            data=True,
        )  # fmt: skip
        fields: dict[str, Any] = {
            "server_id": str(uuid.uuid4()), "fence": Fence(1, 1), "nonce": uuid.uuid4().hex, "version": 1,
            "intent": 1, "power": Power.ON, "edge": 1, "soft": False, "patience": 0.0, "gone": False,
            "disk_recorded": False, "spec": spec,
        }  # fmt: skip
        want = Want(**{**fields, **changed})
        self.wants[want.server_id] = want
        return want

    def folder(self, want: Want) -> ServerFolder:
        return ServerFolder(self.dir, want.server_id)

    def left_over(self, driver: PodmanDriver) -> list[str]:
        """Everything of this host's guests that is on this machine, the folders' content aside."""
        places = driver.places
        found = [str(point) for point in mounts.mounted_below(places.guests)]
        found += [f"group {name}" for name in cgroups.servers(places.group)]
        found += [f"process {pid}" for pid in cgroups.living(places.group)]
        found += [f"place {path}" for path in places.guests.iterdir()]
        for server_id in self.wants:
            found += [f"netns {server_id}"] if netns.is_named(server_id) else []
        loops = subprocess.run(
            ["losetup", "-n", "-O", "BACK-FILE"], capture_output=True, text=True, check=True
        )
        found += [line for line in loops.stdout.splitlines() if str(self.dir) in line]
        records = places.podman / "root/vfs-containers"
        found += [f"podman {path.name}" for path in records.iterdir() if path.is_dir()]
        found += [f"runtime {path.name}" for path in (places.podman / "runtime").iterdir()]
        return found

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()
        last = self.driver()
        for want in self.wants.values():
            await last.quit(want)
            await last.remove_nics(want)
        await last.close()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(last.places.path)


@contextlib.asynccontextmanager
async def staged(root: Path, image: Path) -> AsyncIterator[Stage]:
    stage = Stage(root, image)
    try:
        yield stage
    finally:
        await stage.close()


async def said(driver: Driver, want: Want, text: str, seconds: float = 20.0) -> str:
    """Until the guest's console says it."""
    end = time.monotonic() + seconds
    while text not in (console := await driver.console(want.server_id, None)):
        assert time.monotonic() < end, console
        await asyncio.sleep(0.02)
    return console


def inside(pid: int, *command: str) -> str:
    """Run a command of the guest's own tree where the guest is, as its root."""
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-U", "-m", "-p", "-n", "--", "/bin/busybox", *command],
        capture_output=True, text=True, check=False, timeout=30, cwd="/",
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    return done.stdout + done.stderr


def nic(index: int) -> Nic:
    """A port on the one network of these tests."""
    mac, address = f"52:54:00:00:00:{index:02x}", f"10.97.0.{index}"
    return Nic(f"port-{index}", NETWORK, mac, address, 24, "10.97.0.1", 1450)


def reached(address: str, port: int, *, namespace: str | None = None, seconds: float = 1.0) -> bool:
    """Whether who is on the host, or in a namespace, gets an answer of the service."""
    words = ["busybox", "timeout", f"{seconds:g}", "busybox", "nc", address, str(port)]
    prefix = [] if namespace is None else ["ip", "netns", "exec", namespace]
    done = subprocess.run(
        [*prefix, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=30
    )
    return done.stdout in ("datastore\n", "other\n")
