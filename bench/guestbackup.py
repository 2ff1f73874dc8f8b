"""Databases' backups: an agent's rate beside the bare tool's with the same packing, restore, start, memory.

The agent speaks to a host's agent over its channel, both as in a cloud; objects lie in a folder. Whatever is
compared is measured turn about. What a backup or a restore costs however small the database is (starts, a
checkpoint) is measured on an empty one and told apart: rates are of the whole, and of what comes on top.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec
import pyrage
import zstandard
from tests.guest.guest import anna, folder
from tests.postgres import programs

from bench.figure import Figure, figure
from bench.house import PIECE, House, worked
from bench.pgbackrest import PgBackRest, Unusable
from unstuck.blobs.age import recipient_of
from unstuck.blobs.chunks import LEVEL, chunk_key, make_chunk
from unstuck.blobs.manifest import Manifest
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.want import Origin, WantedDatabase

SIZE_MB = int(os.environ.get("UNSTUCK_BENCH_DATABASE_MB", "1100"))
ROUNDS = int(os.environ.get("UNSTUCK_BENCH_ROUNDS", "3"))
SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
GOAL = 0.9
PATIENCE = 600 + SIZE_MB
"""Seconds."""


class Cost(msgspec.Struct, frozen=True):
    """Of one run: MB of the backup's stream, seconds, and seconds of processor time."""

    size: float
    seconds: float
    work: float


class Pair(msgspec.Struct):
    """Ours and the plain way's, turn about; ``checked``: the plain way with our digests."""

    ours: list[Cost] = []
    plain: list[Cost] = []
    checked: list[Cost] = []


def backups() -> Iterator[Figure]:
    """A database, backed up and restored while it is empty and when it is large."""
    with folder() as root, tempfile.TemporaryDirectory(prefix="unstuck-bench-") as store:
        began = time.monotonic()
        with House(root / "one", Path(store), origin=SHOP).open() as one:
            one.start()
            one.ready()
            yield figure("database: from the agent's start to its first user", time.monotonic() - began, "s")
            bench = Bench(root, Path(store), one, PostgreSQL())
            empty = bench.back_up(), bench.restore()
            rest = one.memory()
            fill(one)
            bench.grown.clear()
            copied = bench.back_up()
            yield from rates("backup", "the bare tool, packed alike", empty[0], copied)
            digests = median(b.seconds / a.seconds for a, b in zip(copied.ours, copied.checked, strict=True))
            work = _middle(copied.ours).work / _middle(copied.checked).work
            yield figure("backup: agent over the same, with digests and pieces", digests, "of its rate",
                         None, f"processor time {work:.2f}")  # fmt: skip
            size, packed = copied.ours[0].size, bench.packed
            yield Figure("backup: of so much", round(size), "MB", note=f"{packed:.0f} MB packed")
            yield bench.beside_pgbackrest()
            restored = bench.restore()
        yield from rates("restore", "plain opening and unpacking, synced", empty[1], restored)
        yield figure("agent's memory at rest", rest, "MiB")
        for what, found in bench.grown.items():
            quarter = len(found) // 4 or 1
            early, late = max(found[: 2 * quarter]), max(found[-2 * quarter :])
            yield figure(f"agent's memory, {what}", max(found), "MiB", 80,
                         f"first half {early:.0f}, second {late:.0f}; {len(found)} looks")  # fmt: skip


def rates(name: str, than: str, empty: Pair, full: Pair) -> Iterator[Figure]:
    """Of the whole, without what an empty one costs, and by processor time."""
    ours, plain = _middle(full.ours), _middle(full.plain)
    note = "; ".join(
        f"{a.seconds:.1f} to {b.seconds:.1f}" for a, b in zip(full.ours, full.plain, strict=True)
    )
    yield figure(
        f"{name}: agent",
        ours.size / ours.seconds,
        "MB/s",
        None,
        f"{ours.size:.0f} MB in {ours.seconds:.1f} s",
    )
    yield figure(f"{name}: {than}", plain.size / plain.seconds, "MB/s", None, f"{plain.seconds:.1f} s")
    whole = median(b.seconds / a.seconds for a, b in zip(full.ours, full.plain, strict=True))
    yield figure(f"{name}: agent over {than}", whole, "of its rate", GOAL, f"seconds: {note}", least=True)
    small, bare = _middle(empty.ours), _middle(empty.plain)
    slope = (plain.seconds - bare.seconds) / (ours.seconds - small.seconds)
    yield figure(f"{name}: the same, without what an empty one costs", slope, "of its rate", GOAL,
                 f"empty: {small.seconds:.2f} s, plain {bare.seconds:.2f} s", least=True)  # fmt: skip
    yield figure(f"{name}: processor time, ours over plain", ours.work / plain.work, "x", None,
                 f"{ours.work:.1f} s, plain {plain.work:.1f} s")  # fmt: skip


def _middle(found: list[Cost]) -> Cost:
    """The middle of each."""
    return Cost(
        median(cost.size for cost in found),
        median(cost.seconds for cost in found),
        median(cost.work for cost in found),
    )


def fill(house: House) -> None:
    """Rows of 930 bytes that pack to about a quarter, as texts and numbers do; nobody works on them later."""
    rows = SIZE_MB * 1000
    words = " || ".join(f"md5((n + 0.{part})::text)" for part in range(1, 13))
    with house.connect() as connection:
        connection.execute(
            "CREATE UNLOGGED TABLE t AS SELECT n, repeat(md5(n::text), 28) AS x"
            f" FROM generate_series(1, {rows}) n WHERE false"
        )
        connection.execute("ALTER TABLE t ALTER x SET STORAGE PLAIN; ALTER TABLE t SET LOGGED")
        connection.execute("ALTER TABLE t SET (autovacuum_enabled = false)")
        connection.execute(
            f"INSERT INTO t SELECT n, {words} || repeat(md5((n / 8)::text), 16)"
            f" FROM generate_series(1, {rows}) n"
        )
        connection.execute("VACUUM t")


class Plain(Protocol):
    """How the datastore's own tools do it."""

    def settle(self, house: House) -> None:
        """The server has written what it has."""
        ...

    def copy(self, house: House) -> list[str | Path]:
        """What makes a copy of the running server, to its standard output."""
        ...

    def unpack(self, target: Path) -> list[str | Path]:
        """What takes it from its standard input."""
        ...

    def prepare(self, target: Path) -> list[str | Path]:
        """What makes data of what was unpacked, before a server comes; none where the server does it."""
        ...


class PostgreSQL:
    def settle(self, house: House) -> None:
        with house.admin() as connection:
            connection.execute("CHECKPOINT")

    def copy(self, house: House) -> list[str | Path]:
        found = programs()
        assert found is not None
        where = f"host={house.sockets} port={house.port} user=postgres"
        return [*as_postgres(), found / "pg_basebackup", "-d", where, "-D", "-", "-Ft", "-X", "fetch",
                "-c", "fast", "--manifest-checksums=SHA256"]  # fmt: skip

    def unpack(self, target: Path) -> list[str | Path]:
        return ["tar", "-x", "-C", target]

    def prepare(self, target: Path) -> list[str | Path]:  # noqa: ARG002
        return []


class Bench:
    def __init__(self, root: Path, store: Path, house: House, plainly: Plain) -> None:
        self._root = root
        self._store = store
        self._house = house
        self._plainly = plainly
        self._number = 0
        self._manifest: Manifest | None = None
        self.grown: dict[str, list[float]] = {}
        """What the agent's memory was, by what it did; MiB."""
        self.packed = 0.0

    def _quiet(self) -> None:
        """Whoever comes next has nothing of the others' to write."""
        self._plainly.settle(self._house)
        subprocess.run(["sync", "-f", self._root], check=True)

    def _turn_about(self, **ways: Callable[[], Cost]) -> Pair:
        """Each way as often as the others, now first, now last."""
        pair = Pair()
        for turn in range(ROUNDS):
            for kind in sorted(ways, reverse=bool(turn % 2)):
                self._number += 1
                self._quiet()
                getattr(pair, kind).append(ways[kind]())
        return pair

    # --- backups

    def back_up(self) -> Pair:
        return self._turn_about(ours=self._copy, plain=self._bare, checked=lambda: self._bare(checked=True))

    def _copy(self) -> Cost:
        house, before, began = self._house, self._house.worked(), time.monotonic()
        with house.watched() as memory:
            made = house.back_up(f"n{self._number}", PATIENCE)
        seconds = time.monotonic() - began
        self.grown.setdefault("backing up", []).extend(memory)
        if self._manifest is not None:  # only the last is restored
            house.cloud.objects.delete(
                [entry.key for entry in house.cloud.objects.list(self._manifest.prefix)]
            )
        self._manifest = made
        self.packed = sum(chunk.sealed_length for chunk in made.chunks) / 1e6
        return Cost(made.size / 1e6, seconds, house.worked() - before)

    def _bare(self, *, checked: bool = False) -> Cost:
        """The bare tool, packed by two threads into a file that is synced in the end.

        ``checked``: a file for each piece, synced each, with a digest of its data and of itself, as ours are.
        """
        house, target = self._house, self._root / "bare"
        recipient, store = recipient_of(house.cloud.identity), FolderObjects(target)
        key = [pyrage.x25519.Recipient.from_str(recipient)]
        target.mkdir()
        before, began = _own() + worked(house.server_pid()), time.monotonic()
        tool = subprocess.Popen(
            self._plainly.copy(house), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )
        assert tool.stdout is not None
        size = 0

        def packed(index: int, plain: bytes) -> bytes:
            if not checked:
                return bytes(pyrage.encrypt(zstandard.ZstdCompressor(level=LEVEL).compress(plain), key))
            _, sealed = make_chunk(index, plain, recipient)
            store.put_new(f"bare/{index:08d}", sealed)
            return b""

        with ThreadPoolExecutor(2) as pool, (target / "file").open("wb") as file:
            ahead: deque[Future[bytes]] = deque()
            while plain := tool.stdout.read(PIECE):
                ahead.append(pool.submit(packed, size // PIECE, plain))
                size += len(plain)
                if len(ahead) == 4:
                    file.write(ahead.popleft().result())
            for future in ahead:
                file.write(future.result())
            file.flush()
            os.fsync(file.fileno())
        assert tool.wait() == 0
        seconds = time.monotonic() - began
        work = _own() + worked(house.server_pid()) - before
        shutil.rmtree(target)
        return Cost(size / 1e6, seconds, work)

    def beside_pgbackrest(self) -> Figure:
        """Its full backup of the same server, packed and encrypted by two processes."""
        name = "backup: agent over pgBackRest with two processes"
        try:
            tool = PgBackRest(self._house, self._root / "pgbackrest")
            pair = self._turn_about(ours=self._copy, plain=lambda: Cost(*tool.back_up()))
        except Unusable as error:
            return Figure(name, None, "skipped", note=str(error))
        ours, theirs = _middle(pair.ours), _middle(pair.plain)
        rate = theirs.size / theirs.seconds
        note = (
            f"its {rate:.0f} MB/s, {tool.packed:.0f} MB packed; work {ours.work:.1f} s over {theirs.work:.1f}"
        )
        return figure(name, ours.size / ours.seconds / rate, "of its rate", None, note)

    # --- restores

    def restore(self) -> Pair:
        return self._turn_about(ours=self._restore, plain=self._unpack)

    def _restore(self) -> Cost:
        """From the agent's start to the first connection."""
        other = House(self._root / "two", self._root / "two-objects", datastore=self._house.kind.name)
        other.may_restore(self._house)
        with other.open():
            before, began = other.worked(), time.monotonic()
            other.start()
            with other.watched() as memory:
                other.ready(PATIENCE)
            seconds, work = time.monotonic() - began, other.worked() - before
            other.connect().close()
        self.grown.setdefault("restoring", []).extend(memory)
        shutil.rmtree(other.folder)
        return Cost(self._size(), seconds, work)

    def _size(self) -> float:
        assert self._manifest is not None
        return self._manifest.size / 1e6

    def _unpack(self) -> Cost:
        """The same pieces are read and opened by two threads, the tool writes them out, all is synced."""
        manifest, target, objects = self._manifest, self._root / "plain", FolderObjects(self._store)
        assert manifest is not None
        target.mkdir()
        key = pyrage.x25519.Identity.from_str(self._house.cloud.identity)

        def opened(index: int) -> bytes:
            sealed = objects.get(chunk_key(manifest.prefix, index))
            assert sealed is not None
            return zstandard.ZstdDecompressor().decompress(pyrage.decrypt(sealed, [key]))

        before, began = _own(), time.monotonic()
        tar = subprocess.Popen(self._plainly.unpack(target), stdin=subprocess.PIPE)
        assert tar.stdin is not None
        with ThreadPoolExecutor(2) as pool:
            ahead: deque[Future[bytes]] = deque()
            for chunk in manifest.chunks:
                ahead.append(pool.submit(opened, chunk.index))
                if len(ahead) == 4:
                    tar.stdin.write(ahead.popleft().result())
            while ahead:
                tar.stdin.write(ahead.popleft().result())
        tar.stdin.close()
        assert tar.wait() == 0
        if prepares := self._plainly.prepare(target):
            subprocess.run(prepares, check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["sync", "-f", target], check=True)
        seconds, work = time.monotonic() - began, _own() - before
        shutil.rmtree(target)
        return Cost(self._size(), seconds, work)


def as_postgres() -> list[str]:
    root = os.geteuid() == 0
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if root else []


def _own() -> float:
    """Seconds of processor time of this process and of what it started and has ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


if __name__ == "__main__":
    from bench.figure import row

    for item in backups():
        print(row(item), flush=True)
