"""Images of a disk on which no guest runs: whole, standing on nothing else, delivered or said why not."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from driver_wants import SERVER, boot_image, make_spec, make_want

from unstuck.core.server.data import Copy, CopyFailed, Copying, Delivered, Flavor, Want
from unstuck.host.drivers.captures import Captures, DeliveryError
from unstuck.host.drivers.disk import make_disk
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import run
from unstuck.host.drivers.qmp import Monitors
from unstuck.host.images import FolderSource, ImageCache, no_barrier

pytestmark = pytest.mark.skipif(not shutil.which("qemu-img"), reason="no qemu-img")
BASE = b"base" * (1 << 18)
IMAGE = "99999999-2222-4333-8444-555555555555"


class Sink:
    """Takes what it is given, or fails as often as it is told to."""

    def __init__(self, *failures: DeliveryError) -> None:
        self.failures = list(failures)
        self.taken: list[tuple[str, str]] = []

    async def deliver(self, want: Want, path: Path, sha512: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        content = await asyncio.to_thread(path.read_bytes)
        assert hashlib.sha512(content).hexdigest() == sha512
        self.taken.append((want.capture, sha512))


class Bench:
    """A server with a disk on which something was written."""

    def __init__(self, tmp_path: Path, sink: Sink) -> None:
        self.tmp_path = tmp_path
        (tmp_path / "base").write_bytes(BASE)
        spec = make_spec(images=(boot_image("base", BASE),), flavor=Flavor(1, 64, 1))
        self.want = make_want(spec=spec, capture=IMAGE, disk_recorded=True)
        self.cache = ImageCache(tmp_path / "state", FolderSource(tmp_path))
        self.folder = ServerFolder(tmp_path / "state", SERVER)
        self.woken: list[str] = []
        self.sink = sink
        self.captures = self.fresh()

    def fresh(self) -> Captures:
        """As the next process has them."""
        monitors = Monitors(2.0, lambda *_: None)
        return Captures(self.sink, self.cache.space, monitors, no_barrier, self.woken.append)

    async def disk(self) -> None:
        await self.cache.fetch(self.want.spec.images)
        await make_disk(self.folder, self.want, self.cache, no_barrier)
        await run(["qemu-io", "-c", "write -P 171 4M 1M", str(self.folder.disk("n0nce"))], deadline=10)

    async def end(self) -> Copy:
        """Begin, and wait for how it ends."""
        await self.captures.begin(self.folder, self.want)
        async with asyncio.timeout(30):
            while isinstance(state := self.captures.state(self.want), Copying):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert state is not None
        return state


def play(tmp_path: Path, sink: Sink, scene: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, sink)
        await bench.disk()
        await scene(bench)
        await bench.captures.close()

    asyncio.run(main())


def test_the_image_stands_on_nothing_and_has_all_that_is_on_the_disk(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        assert await bench.end() == Delivered()
        assert bench.woken == [SERVER]
        path = bench.folder.copy(IMAGE)
        told = await run(["qemu-img", "info", "--output=json", str(path)], deadline=10)
        info = msgspec.json.decode(told)
        assert (info["virtual-size"], info["format"], "backing-filename" in info) == (1 << 30, "qcow2", False)
        await run(["qemu-io", "-r", "-c", "read -P 171 4M 1M", str(path)], deadline=10)
        await run(["qemu-img", "compare", "-q", str(bench.folder.disk("n0nce")), str(path)], deadline=30)
        await bench.captures.drop(bench.folder)
        assert not bench.folder.has_copies()
        assert bench.captures.state(bench.want) is None

    play(tmp_path, Sink(), scene)


def test_failures_are_counted_and_the_whole_copy_is_not_made_again(tmp_path: Path) -> None:
    sink = Sink(DeliveryError("away"), DeliveryError("away"))

    async def scene(bench: Bench) -> None:
        assert await bench.end() == CopyFailed("away", False, 1)
        made = bench.folder.copy(IMAGE).stat().st_ino
        assert await bench.end() == CopyFailed("away", False, 2)
        assert await bench.end() == Delivered()
        assert bench.folder.copy(IMAGE).stat().st_ino == made

    play(tmp_path, sink, scene)


def test_an_image_that_nobody_wants_any_more_is_final(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        assert await bench.end() == CopyFailed("not wanted", True, 1)

    play(tmp_path, Sink(DeliveryError("not wanted", final=True)), scene)


def test_what_a_killed_agent_has_left_is_swept(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        half = bench.folder.path / f"image-{IMAGE}.qcow2.part-1234"
        other = bench.folder.copy("11111111-2222-4333-8444-000000000000")
        for path in (half, other):
            await asyncio.to_thread(path.write_bytes, b"half")
        assert await bench.end() == Delivered()
        assert sorted(path.name for path in bench.folder.path.glob("image-*")) == [f"image-{IMAGE}.qcow2"]

    play(tmp_path, Sink(), scene)


def test_one_that_is_ended_leaves_nothing_half_made(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        await bench.captures.begin(bench.folder, bench.want)
        await bench.captures.begin(bench.folder, bench.want)
        await bench.captures.end(SERVER)
        assert bench.captures.state(bench.want) is None
        assert not list(bench.folder.path.glob("image-*.part-*"))
        await run(["qemu-io", "-c", "write -P 1 0 64k", str(bench.folder.disk("n0nce"))], deadline=10)

    play(tmp_path, Sink(), scene)


def test_a_host_without_room_says_so(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.cache.space._reserve = 1 << 62
        state = await bench.end()
        assert isinstance(state, CopyFailed)
        assert "disk is full" in state.reason
        assert not state.final

    play(tmp_path, Sink(), scene)
