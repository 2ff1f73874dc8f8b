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
from tests.guest_programs import PIECE, pieces
from tests.guest_site import server_folder

from bench.figure import Figure, figure
from unstuck.blobs.objects import FolderObjects

PIECES = 128
AT_ONCE = 2


@contextlib.contextmanager
def program(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.guest_programs", *map(str, arguments)]
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


def over(direct: bool) -> tuple[float, float, float]:
    """MB/s, and how much the memory of guest and host grew on the way, MiB."""
    with tempfile.TemporaryDirectory(prefix="unstuck-bench-") as name:
        cloud = GuestCloud(Path(name) / "objects", direct=direct)
        cloud.offer()
        folder = server_folder(Path(name) / "host")
        want = Path(name) / "want.json"
        want.write_bytes(msgspec.json.encode(cloud.want(chunk_size=PIECE)))
        with (
            served(cloud) as url,
            program("host", Path(name) / "host", want, url) as host,
            program("guest", folder / "channel" / "agent.sock", PIECES, AT_ONCE) as guest,
        ):
            before, taken = heard(host, "started")["peak"], heard(guest, "taken")["peak"]
            done = heard(guest, "finished")
            assert host.stdin is not None
            host.stdin.write("\n")
            host.stdin.flush()
            more = heard(host, "peak")["peak"] - before
            return PIECES * PIECE / 1e6 / done["finished"], done["peak"] - taken, more


def datapath() -> Iterator[Figure]:
    """The unix socket of a container; a VM's port is measured in docs/figures.md."""
    size = f"{PIECES} pieces of {PIECE >> 20} MiB, {AT_ONCE} at a time"
    alone = bare()
    yield figure("data path: into the folder, bare", alone, "MB/s", None, "one process, each synced")
    for name, direct in (("host writes itself", True), ("through the control plane", False)):
        rate, guest, host = over(direct)
        yield figure(f"data path: {name}", rate, "MB/s", None, size)
        yield figure(f"data path: {name}, over bare", rate / alone, "ratio", None, "")
        yield figure(f"data path: {name}, guest's memory", guest, "MiB more", 30.0, size)
        yield figure(f"data path: {name}, host's memory", host, "MiB more", 60.0, size)
