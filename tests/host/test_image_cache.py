"""The image cache: only whole, right images get a name, and each is fetched once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from driver_wants import boot_image

from unstuck.core.server.data import BootImage, FetchFailed, Fetching, Missing, Ready
from unstuck.host.images import FetchError, FolderSource, ImageCache

CONTENT = b"0123456789abcdef" * 200_000


class Source:
    """Gives blocks, counts how often it was opened, and does ``at_half`` in the middle."""

    def __init__(self, content: bytes, at_half: Callable[[], object] | None = None) -> None:
        self.content = content
        self.opened = 0
        self.at_half = at_half
        self.go_on = asyncio.Event()

    async def open(self, image: BootImage) -> AsyncIterator[bytes]:
        self.opened += 1
        half = len(self.content) // 2
        yield self.content[:half]
        if self.at_half is not None:
            self.at_half()
            await self.go_on.wait()
        yield self.content[half:]


def names(cache: ImageCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def test_an_image_is_named_once_it_is_whole_and_never_fetched_again(tmp_path: Path) -> None:
    async def scene() -> None:
        image, source = boot_image("img", CONTENT), Source(CONTENT)
        cache = ImageCache(tmp_path, source)
        assert cache.state((image,)) == Missing()
        await cache.fetch((image,))
        assert cache.state((image,)) == Ready()
        assert cache.path(image).read_bytes() == CONTENT
        assert names(cache) == [f"img.{image.sha512[:16]}"]
        await cache.fetch((image,))
        assert source.opened == 1
        assert ImageCache(tmp_path, source).state((image,)) == Ready()  # another agent sees the same

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("given", "reason", "final"),
    [
        (CONTENT[:-5], "ended early", False),
        (b"X" + CONTENT[1:], "differs", True),
        (CONTENT + b"more", "longer", True),
    ],
)
def test_a_wrong_image_never_gets_a_name(tmp_path: Path, given: bytes, reason: str, final: bool) -> None:
    async def scene() -> None:
        image = boot_image("img", CONTENT)
        cache = ImageCache(tmp_path, Source(given))
        await cache.fetch((image,))
        state = cache.state((image,))
        assert isinstance(state, FetchFailed)
        assert reason in state.reason
        assert state.final is final
        assert names(cache) == []

    asyncio.run(scene())


def test_a_failure_is_kept_until_the_next_try(tmp_path: Path) -> None:
    async def scene() -> None:
        image = boot_image("img", CONTENT)
        cache = ImageCache(tmp_path / "state", FolderSource(tmp_path))
        await cache.fetch((image,))
        assert cache.state((image,)) == FetchFailed("there is no such image", final=True)
        (tmp_path / "img").write_bytes(CONTENT)
        await cache.fetch((image,))
        assert cache.state((image,)) == Ready()

    asyncio.run(scene())


def test_servers_share_one_fetch_and_see_how_far_it_is(tmp_path: Path) -> None:
    async def scene() -> None:
        image, half = boot_image("img", CONTENT), asyncio.Event()
        source = Source(CONTENT, half.set)
        cache = ImageCache(tmp_path, source)
        await asyncio.gather(*(cache.fetch((image,), patience=0.05) for _ in range(5)))
        await half.wait()
        assert cache.state((image,)) == Fetching(len(CONTENT) // 2, len(CONTENT))
        source.go_on.set()
        await cache.fetch((image,), patience=5)
        assert cache.state((image,)) == Ready()
        assert source.opened == 1

    asyncio.run(scene())


def test_a_fetch_that_is_ended_leaves_no_name_and_the_next_agent_sweeps(tmp_path: Path) -> None:
    async def scene() -> None:
        image, stopped = boot_image("img", CONTENT), asyncio.Event()
        stuck = asyncio.Event()

        async def barrier(name: str) -> None:
            assert name == "driver.fetch.half"
            stopped.set()
            await stuck.wait()

        cache = ImageCache(tmp_path, Source(CONTENT), barrier)
        await cache.fetch((image,), patience=0.01)
        await stopped.wait()
        [part] = cache.folder.iterdir()  # what a kill -9 here leaves
        left = part.with_name(f"img.{image.sha512[:16]}.part.deadbeef")
        left.write_bytes(part.read_bytes())
        assert left.stat().st_size == len(CONTENT) // 2
        await cache.close()
        assert cache.state((image,)) in (
            Missing(),
            FetchFailed("the fetch was ended by a fault of its source", False),
        )
        following = ImageCache(tmp_path, Source(CONTENT))
        await following.fetch((image,))
        assert names(following) == [f"img.{image.sha512[:16]}"]

    asyncio.run(scene())


def test_a_source_that_breaks_in_its_own_way_is_a_failed_fetch_and_not_a_silence(tmp_path: Path) -> None:
    class Broken:
        async def open(self, image: BootImage) -> AsyncIterator[bytes]:
            yield CONTENT[:10]
            raise FetchError("connection reset")

    async def scene() -> None:
        image = boot_image("img", CONTENT)
        cache = ImageCache(tmp_path, Broken())
        await cache.fetch((image,))
        assert cache.state((image,)) == FetchFailed("connection reset", final=False)

    asyncio.run(scene())
