"""Databases' backups: an agent's rate beside the bare tool's with the same packing, restore, start, memory.

The agent's host is the tests' double over a folder, so that what is measured is the guest's side.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.guest.guest import Guest, anna, folder
from tests.postgres import programs

from bench.figure import Figure, figure
from unstuck.blobs.age import new_identity, recipient_of
from unstuck.blobs.chunks import chunk_key, make_chunk, open_chunk
from unstuck.blobs.objects import FolderObjects
from unstuck.core.backup.content import Chunk
from unstuck.core.instance.want import Origin, WantedDatabase

SIZE_MB = int(os.environ.get("UNSTUCK_BENCH_DATABASE_MB", "1100"))
PIECE = 4 << 20
SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


def backups() -> Iterator[Figure]:
    """One database of about a gigabyte: made, backed up, restored."""
    with folder() as root, tempfile.TemporaryDirectory(prefix="unstuck-bench-") as store:
        objects = FolderObjects(Path(store))
        guest = _guest(root, "one", objects)
        began = time.monotonic()
        guest.host.wants(guest.want(origin=SHOP))
        guest.start()
        guest.ready()
        yield figure("database: from the agent's start to its first user", time.monotonic() - began, "s")
        _fill(guest)
        rest = _rss(guest)
        size, seconds, most = _back_up(guest)
        yield figure("backup: agent", size / seconds, "MB/s", None, f"{size:.0f} MB")
        bare = _bare(guest, Path(store) / "bare")
        yield figure("backup: agent over the bare tool, packed alike", bare / seconds, "of its rate", 0.8,
                     f"bare {size / bare:.0f} MB/s", least=True)  # fmt: skip
        yield _beside_pgbackrest(guest, root / "pgbackrest", size / seconds)
        yield figure("agent's memory at rest", rest, "MiB")
        yield figure("agent's memory while a gigabyte streams", most, "MiB", 80)
        other = _guest(root, "two", objects)
        other.host.source = guest.source("bench")
        guest.end()
        began = time.monotonic()
        other.host.wants(other.want(generation="g2", origin=Origin(backup_id="backup-1")))
        other.start()
        with _watched(other) as peak:
            other.ready(600)
        seconds = time.monotonic() - began
        unpacked = _unpack(guest, objects, root / "plain")
        yield figure(
            "restore: agent, to the first connection", size / seconds, "MB/s", None, f"{seconds:.1f} s"
        )
        yield figure("restore: agent over plain unpacking", unpacked / seconds, "of its rate", 0.9,
                     f"bare, synced: {size / unpacked:.0f} MB/s, {unpacked:.1f} s", least=True)  # fmt: skip
        yield figure("agent's memory while a restore streams", peak[0], "MiB", 80)
        other.end()


def _guest(root: Path, name: str, objects: FolderObjects) -> Guest:
    (root / name).mkdir()
    guest = Guest(root / name, objects)
    guest.host.heartbeat = 5.0
    return guest


def _fill(guest: Guest) -> None:
    rows = SIZE_MB * 1000
    with guest.connect() as connection:
        connection.execute(
            "CREATE UNLOGGED TABLE t AS SELECT n, repeat(md5(n::text), 28) AS x"
            f" FROM generate_series(1, {rows}) n WHERE false"
        )
        connection.execute("ALTER TABLE t ALTER x SET STORAGE PLAIN; ALTER TABLE t SET LOGGED")
        connection.execute(
            "INSERT INTO t SELECT n, md5(n::text) || repeat(md5((n / 8)::text), 27)"
            f" FROM generate_series(1, {rows}) n"
        )


def _back_up(guest: Guest) -> tuple[float, float, float]:
    """MB, seconds, and the most memory that the agent had, MiB."""
    began = time.monotonic()
    with _watched(guest) as peak:
        content = guest.back_up("bench", 600)
    return content.size / 1e6, time.monotonic() - began, peak[0]


def _bare(guest: Guest, target: Path) -> float:
    """Seconds of pg_basebackup, its stream packed by two threads and written as the double writes it."""
    found = programs()
    assert found is not None
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    where = f"host={guest.run / 'pg'} port={guest.port} user=postgres"
    command = [*user, found / "pg_basebackup", "-d", where, "-D", "-", "-Ft", "-X", "fetch", "-c", "fast",
               "--manifest-checksums=SHA256"]  # fmt: skip
    recipient, store = recipient_of(new_identity()), FolderObjects(target)
    target.mkdir()
    began = time.monotonic()
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/")
    assert tool.stdout is not None
    free = threading.Semaphore(4)

    def pack(index: int, plain: bytes) -> None:
        _, sealed = make_chunk(index, plain, recipient)
        store.put_new(f"bare/{index:08d}", sealed)
        free.release()

    with ThreadPoolExecutor(2) as pool:
        index = 0
        while plain := tool.stdout.read(PIECE):
            free.acquire()
            pool.submit(pack, index, plain)
            index += 1
    assert tool.wait() == 0
    return time.monotonic() - began


def _unpack(guest: Guest, objects: FolderObjects, target: Path) -> float:
    """Seconds: the same pieces are read and opened by two threads, tar writes them out, all is synced."""
    prefix, content, key = guest.source("bench")
    target.mkdir()

    def opened(chunk: Chunk) -> bytes:
        sealed = objects.get(chunk_key(prefix, chunk.index))
        assert sealed is not None
        return open_chunk(chunk, sealed, key)

    began = time.monotonic()
    tar = subprocess.Popen(["tar", "-x", "-C", target], stdin=subprocess.PIPE)
    assert tar.stdin is not None
    with ThreadPoolExecutor(2) as pool:
        ahead: deque[Future[bytes]] = deque()
        for chunk in content.chunks:
            ahead.append(pool.submit(opened, chunk))
            if len(ahead) == 4:
                tar.stdin.write(ahead.popleft().result())
        while ahead:
            tar.stdin.write(ahead.popleft().result())
    tar.stdin.close()
    assert tar.wait() == 0
    subprocess.run(["sync", "-f", target], check=True)
    return time.monotonic() - began


def _beside_pgbackrest(guest: Guest, folder: Path, rate: float) -> Figure:
    """Its full backup of the same server, packed and encrypted by two processes as we pack by two threads."""
    name = "backup: agent over pgBackRest with two processes"
    tool = shutil.which("pgbackrest")
    if tool is None:
        return Figure(name, None, "skipped", note="pgbackrest is not installed (Debian: pgbackrest)")
    folder.mkdir()
    data = guest.volume / "database" / "pg"
    config = folder / "pgbackrest.conf"
    config.write_text(
        f"[global]\nrepo1-path={folder}/repo\nlog-path={folder}\nlock-path={folder}\nspool-path={folder}\n"
        "repo1-cipher-type=aes-256-cbc\nrepo1-cipher-pass=of-the-bench-alone\ncompress-type=zst\n"
        "compress-level=3\nprocess-max=2\nstart-fast=y\narchive-check=n\narchive-copy=n\nlog-level-file=off\n"
        f"[bench]\npg1-path={data}\npg1-port={guest.port}\npg1-socket-path={guest.run / 'pg'}\n"
        "pg1-user=postgres\n"
    )
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(folder, "postgres", "postgres")
    command = [*user, tool, f"--config={config}", "--stanza=bench"]
    for word in ("stanza-create", "backup"):
        began = time.monotonic()
        done = subprocess.run(
            [*command, *(["--type=full"] if word == "backup" else []), word],
            capture_output=True, text=True, cwd="/", check=False,
        )  # fmt: skip
        if done.returncode:
            return Figure(name, None, "skipped", note=f"{word}: {(done.stdout + done.stderr).strip()[-200:]}")
    seconds = time.monotonic() - began
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file()) / 1e6
    theirs = size / seconds
    packed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    return figure(name, rate / theirs, "of its rate", None, f"its {theirs:.0f} MB/s, {packed:.0f} MB packed")


def _rss(guest: Guest) -> float:
    assert guest.agent is not None
    status = Path(f"/proc/{guest.agent.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def _watched(guest: Guest) -> Iterator[list[float]]:
    """The most memory that the agent has meanwhile."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], _rss(guest))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    from bench.figure import row

    for item in backups():
        print(row(item), flush=True)
