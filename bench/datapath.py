"""How fast, and with how much memory, pieces go from a guest over its channel and its host into a folder."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.guest_cloud import GuestCloud
from tests.guest_http import served
from tests.guest_sender import PIECE, pieces
from tests.guest_site import server_folder
from tests.guest_vm import built_image, machine

from bench.figure import Figure, figure
from unstuck.blobs.objects import FolderObjects
from unstuck.core.server.data import Machine

PIECES = 128
PIECES_OF_MACHINE = 48
AT_ONCE = 2


@contextlib.contextmanager
def program(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", f"tests.{name}", *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait(10.0)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()


def heard(child: subprocess.Popen[str], word: str) -> dict[str, float]:
    """The next line with this word in it."""
    assert child.stdout is not None
    for line in child.stdout:
        said: dict[str, float] = msgspec.json.decode(line) if line.startswith("{") else {}  # else a log's
        if word in said:
            return said
    raise RuntimeError(f"the process ended before it said {word!r}")


def bare() -> float:
    """MB/s of the same pieces written into a folder by one process, synced each."""
    with tempfile.TemporaryDirectory(prefix="unstuck-bench-") as name:
        objects = FolderObjects(Path(name))
        made = pieces(PIECES)
        began = time.monotonic()
        for chunk, sealed in made:
            objects.put_new(f"backups/{chunk.index:08d}", sealed)
        return PIECES * PIECE / 1e6 / (time.monotonic() - began)


@contextlib.contextmanager
def host_end(direct: bool, kind: Machine) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """The server's folder, and the process of its host's agent."""
    with tempfile.TemporaryDirectory(prefix="unstuck-bench-") as name:
        cloud = GuestCloud(Path(name) / "objects", direct=direct)
        cloud.offer()
        folder = server_folder(Path(name) / "host")
        wanted = cloud.want(chunk_size=PIECE)
        spec = msgspec.structs.replace(wanted.spec, machine=kind)
        want = Path(name) / "want.json"
        want.write_bytes(msgspec.json.encode(msgspec.structs.replace(wanted, spec=spec)))
        with served(cloud) as url, program("guest_host", Path(name) / "host", want, url) as host:
            yield folder, host


def over(direct: bool) -> tuple[float, float, float]:
    """MB/s, and how much the memory of guest and host grew on the way, MiB."""
    with (
        host_end(direct, Machine.CONTAINER) as (folder, host),
        program("guest_sender", folder / "channel" / "agent.sock", PIECES, AT_ONCE) as guest,
    ):
        before, taken = heard(host, "started")["peak"], heard(guest, "taken")["peak"]
        done = heard(guest, "finished")
        assert host.stdin is not None
        host.stdin.write("\n")
        host.stdin.flush()
        more = heard(host, "peak")["peak"] - before
        return PIECES * PIECE / 1e6 / done["finished"], done["peak"] - taken, more


def port() -> Iterator[Figure]:
    """A machine's virtio port, where the database image was built."""
    image, name = built_image(), "data path: over a machine's virtio port"
    if image is None:
        yield Figure(name, None, "MB/s", note="skipped: the database image is not built")
        return
    with (
        host_end(True, Machine.VM) as (folder, _),
        machine(image, folder, f"( send {PIECES_OF_MACHINE} {AT_ONCE} n1 2 )") as guest,
    ):
        taken = guest.heard("taken", 120.0)["peak"]
        done = guest.heard("finished", 300.0)
    size = f"{PIECES_OF_MACHINE} pieces of {PIECE >> 20} MiB, {AT_ONCE} at a time"
    yield figure(name, PIECES_OF_MACHINE * PIECE / 1e6 / done["finished"], "MB/s", None, f"TCG, {size}")
    yield figure(f"{name}, guest's memory", done["peak"] - taken, "MiB more", 30.0, size)


def datapath() -> Iterator[Figure]:
    """From a container's unix socket, and from a machine's port."""
    size = f"{PIECES} pieces of {PIECE >> 20} MiB, {AT_ONCE} at a time"
    alone = bare()
    yield figure("data path: into the folder, bare", alone, "MB/s", None, "one process, each synced")
    for name, direct in (("host writes itself", True), ("through the control plane", False)):
        rate, guest, host = over(direct)
        yield figure(f"data path: {name}", rate, "MB/s", None, size)
        yield figure(f"data path: {name}, over bare", rate / alone, "ratio", None, "")
        yield figure(f"data path: {name}, guest's memory", guest, "MiB more", 30.0, size)
        yield figure(f"data path: {name}, host's memory", host, "MiB more", 60.0, size)
    yield from port()
