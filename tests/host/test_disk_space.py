"""Disk space on a host: never promised twice, and made only of what no disk lies on. On real file systems."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from driver_wants import SERVER, boot_image, make_spec, make_want

from unstuck.core.server.data import BootImage, FetchFailed, Fetching, ImageRole, Ready, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.disk import make_disk
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.eviction import Unsure, needed, room_for_guests
from unstuck.host.images import ImageCache, no_barrier
from unstuck.host.space import Space
from unstuck.runtime.files import write_whole

MIB = 1 << 20
Make = Callable[[int], Path]
OTHER = "99999999-2222-4333-8444-555555555555"


class Contents:
    """An image source by id; one whose name is in ``waiting`` stops after its first block."""

    def __init__(self) -> None:
        self.images: dict[str, bytes] = {}
        self.waiting: set[str] = set()
        self.go_on = asyncio.Event()

    def image(self, name: str, size: int, role: ImageRole = ImageRole.DISK) -> BootImage:
        self.images[name] = (name.encode() * (size // len(name) + 1))[:size]
        return boot_image(name, self.images[name], role)

    async def open(self, image: BootImage) -> AsyncIterator[bytes]:
        content = self.images[image.id]
        yield content[: 64 << 10]
        if image.id in self.waiting:
            await self.go_on.wait()
        yield content[64 << 10 :]


def cached(cache: ImageCache) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in cache.folder.iterdir())


def want_of(*images: BootImage, server: str = SERVER) -> Want:
    return make_want(server_id=server, spec=make_spec(images=images))


def test_two_steps_never_count_on_the_same_bytes(small_disk: Make) -> None:
    async def scene() -> None:
        space = Space(small_disk(10 * MIB), reserve=0)
        async with space.reserve(6 * MIB) as promise:
            with pytest.raises(DriverError, match=r"disk is full: 4 MiB are left .* 6 MiB are needed"):
                async with space.reserve(6 * MIB):
                    pass
            promise.spent(2 * MIB)  # written since: the file system itself knows of it
            async with space.reserve(6 * MIB):
                pass
        async with space.reserve(10 * MIB):
            pass

    asyncio.run(scene())


def test_two_fetches_at_once_do_not_both_begin_where_only_one_fits(small_disk: Make) -> None:
    async def scene() -> None:
        source = Contents()
        one, two = source.image("one", 6 * MIB), source.image("two", 6 * MIB)
        source.waiting = {"one", "two"}
        cache = ImageCache(small_disk(10 * MIB), source, reserve=0)
        await asyncio.gather(cache.fetch((one,), 0.3), cache.fetch((two,), 0.3))
        states = [cache.state((image,)) for image in (one, two)]
        failed, fetching = sorted(states, key=lambda state: isinstance(state, Fetching))
        assert isinstance(fetching, Fetching)
        assert isinstance(failed, FetchFailed)
        assert "disk is full" in failed.reason
        assert not failed.final
        source.go_on.set()
        await cache.fetch((one, two), 5.0)
        assert sum(isinstance(cache.state((image,)), Ready) for image in (one, two)) == 1
        await cache.close()
        assert not list(cache.folder.glob("*.part*"))

    asyncio.run(scene())


def test_a_full_disk_names_itself_and_its_remedy_and_the_fetch_goes_on_when_there_is_room(
    small_disk: Make,
) -> None:
    async def scene() -> None:
        disk = small_disk(10 * MIB)
        (disk / "others").write_bytes(bytes(8 * MIB))
        source = Contents()
        image = source.image("image", 6 * MIB)
        cache = ImageCache(disk, source, reserve=0)
        for tries in (1, 2):
            await cache.fetch((image,), 5.0)
            state = cache.state((image,))
            assert isinstance(state, FetchFailed)
            assert (state.final, state.tries) == (False, tries)
            assert "the host's disk is full: 2 MiB are left" in state.reason
            assert "make room on the host" in state.remedy
        (disk / "others").unlink()
        await cache.fetch((image,), 5.0)
        assert cache.state((image,)) == Ready()
        assert cached(cache) == ["image"]

    asyncio.run(scene())


def test_a_disk_that_fills_up_under_the_fetch_leaves_nothing_and_says_so(small_disk: Make) -> None:
    async def scene() -> None:
        disk = small_disk(10 * MIB)
        source = Contents()
        image = source.image("image", 6 * MIB)
        source.waiting = {"image"}
        cache = ImageCache(disk, source, reserve=0)
        await cache.fetch((image,), 0.2)
        (disk / "others").write_bytes(bytes(8 * MIB))  # somebody who asks nobody
        source.go_on.set()
        await cache.fetch((image,), 5.0)
        state = cache.state((image,))
        assert isinstance(state, FetchFailed)
        assert state.reason == "the image cannot be kept on this host: the host's disk is full"
        assert cached(cache) == []

    asyncio.run(scene())


async def filled(disk: Path) -> tuple[ImageCache, Contents, dict[str, BootImage]]:
    """A disk of 20 MiB with three images of 5: a base with an overlay on it, a kernel, and one unused."""
    source = Contents()
    images = {name: source.image(name, 5 * MIB) for name in ("base", "unused")}
    images["kernel"] = source.image("kernel", 5 * MIB, ImageRole.KERNEL)
    cache = ImageCache(disk, source, reserve=0)
    await cache.fetch(tuple(images.values()), 5.0)
    cache.wanted = dict
    want = want_of(images["base"], images["kernel"])
    # Not by make_disk's reservation, which wants more room than these tests have.
    folder = ServerFolder(disk, SERVER)
    folder.ensure()
    folder.write_grant(want)
    name = f"../../images/{cache.path(images['base']).name}".encode()
    header = b"QFI\xfb" + (3).to_bytes(4, "big") + (112).to_bytes(8, "big") + len(name).to_bytes(4, "big")
    folder.disk("n0nce").write_bytes(header.ljust(112, b"\0") + name)
    return cache, source, images


def test_what_an_overlay_lies_on_is_never_evicted_even_if_the_store_knows_nothing_of_it(
    small_disk: Make,
) -> None:
    async def scene() -> None:
        cache, source, _ = await filled(small_disk(20 * MIB))
        new = source.image("new", 8 * MIB)
        await cache.fetch((new,), 5.0)
        assert cache.state((new,)) == Ready()
        assert cached(cache) == ["base", "kernel", "new"]

    asyncio.run(scene())


def test_the_longest_unused_goes_first_and_no_more_than_is_needed(small_disk: Make) -> None:
    async def scene() -> None:
        source = Contents()
        images = [source.image(name, 4 * MIB) for name in ("a", "b", "c", "d")]
        cache = ImageCache(small_disk(18 * MIB), source, reserve=0)
        cache.wanted = dict
        for image in images:
            await cache.fetch((image,), 5.0)
        with cache.pinned([images[0]]):
            pass  # used just now
        cache._touched.clear()
        new = source.image("new", 5 * MIB)
        await cache.fetch((new,), 5.0)
        assert cached(cache) == ["a", "c", "d", "new"]

    asyncio.run(scene())


@pytest.mark.parametrize("why", ["no world yet", "wanted", "pinned", "torn header", "old grant"])
def test_nothing_is_evicted_that_may_be_needed(small_disk: Make, why: str) -> None:
    async def scene() -> None:
        cache, source, images = await filled(small_disk(20 * MIB))
        folder = ServerFolder(cache.folder.parent, SERVER)
        pins: tuple[BootImage, ...] = ()
        match why:
            case "no world yet":
                cache.wanted = lambda: None
            case "wanted":
                cache.wanted = lambda: {OTHER: (images["unused"],)}
            case "pinned":
                pins = (images["unused"],)
            case "torn header":
                folder.disk("n0nce").write_bytes(folder.disk("n0nce").read_bytes()[:120])
            case "old grant":
                grant = folder.read_grant()
                assert grant is not None
                old = msgspec.structs.replace(grant, images=None)
                write_whole(folder.path / "grant.json", msgspec.json.encode(old))
        new = source.image("new", 8 * MIB)
        with cache.pinned(pins):
            await cache.fetch((new,), 5.0)
        assert isinstance(cache.state((new,)), FetchFailed)
        assert cached(cache) == ["base", "kernel", "unused"]

    asyncio.run(scene())


def test_the_images_of_a_server_that_is_to_go_are_held_by_its_disk_only(small_disk: Make) -> None:
    async def scene() -> None:
        cache, source, _ = await filled(small_disk(20 * MIB))
        cache.wanted = lambda: {SERVER: ()}
        new = source.image("new", 8 * MIB)
        await cache.fetch((new,), 5.0)
        assert "base" in cached(cache)
        ServerFolder(cache.folder.parent, SERVER).remove()
        newer = source.image("newer", 9 * MIB)
        await cache.fetch((newer,), 5.0)
        assert cached(cache) == ["new", "newer"]

    asyncio.run(scene())


def test_a_disk_is_not_made_on_a_full_file_system_and_is_made_when_there_is_room(small_disk: Make) -> None:
    async def scene() -> None:
        disk = small_disk(40 * MIB)
        source = Contents()
        base = source.image("base", 2 * MIB)
        cache = ImageCache(disk, source, reserve=0)
        await cache.fetch((base,), 5.0)
        (disk / "others").write_bytes(bytes(30 * MIB))
        folder, want = ServerFolder(disk, SERVER), want_of(base)
        with pytest.raises(DriverError, match="the host's disk is full") as refused:
            await make_disk(folder, want, cache, no_barrier)
        assert "make room on the host" in refused.value.remedy
        assert not folder.path.exists()
        (disk / "others").unlink()
        await make_disk(folder, want, cache, no_barrier)
        assert needed(disk, ()) == {cache.path(base).name}

    asyncio.run(scene())


def test_a_disk_of_another_kind_makes_everything_unsure(tmp_path: Path) -> None:
    folder = ServerFolder(tmp_path, SERVER)
    folder.ensure()
    folder.disk("n").write_bytes(b"not a disk at all, but somebody's data")
    with pytest.raises(Unsure):
        needed(tmp_path, (SERVER,))


def test_a_host_promises_what_is_free_and_what_its_servers_have_not_what_others_keep_there(
    small_disk: Make,
) -> None:
    disk = small_disk(64 * MIB)
    (disk / "servers").mkdir()
    (disk / "images").mkdir()
    before = room_for_guests(disk, 8 * MIB)
    assert 55 * MIB < before <= 56 * MIB
    (disk / "servers" / "disk").write_bytes(bytes(10 * MIB))
    (disk / "images" / "nobody-needs-it").write_bytes(bytes(10 * MIB))
    assert before - MIB < room_for_guests(disk, 8 * MIB) <= before
    (disk / "others").write_bytes(bytes(20 * MIB))
    assert before - 21 * MIB < room_for_guests(disk, 8 * MIB) <= before - 20 * MIB
