"""The host's image cache: complete, verified files only, each fetched once for all servers.

A file gets its name only after its digest was right and it is on the disk, so that the name is the proof
and no look hashes again. What a killed fetch leaves is a ``.part``, swept when the next agent begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from unstuck.core.server.data import BootImage, FetchFailed, Fetching, Images, Missing, Ready
from unstuck.host.driver import DriverError, words
from unstuck.host.drivers.folder import cache_name
from unstuck.host.eviction import Unsure, needed
from unstuck.host.space import Promise, Space
from unstuck.runtime.files import sync_folder

log = structlog.get_logger(__name__)

Barrier = Callable[[str], Awaitable[None]]
STALL = 60.0
"""Seconds without a byte before a fetch is given up (and begun again, by the planner)."""
_BLOCK = 1 << 20


class FetchError(Exception):
    """A source cannot deliver; ``final`` when asking again cannot help (there is no such image)."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


class ImageSource(Protocol):
    """Where images come from. Raises :class:`FetchError`, on opening or on the way."""

    def open(self, image: BootImage) -> AsyncIterator[bytes]:
        """The image's bytes, from the first on."""
        ...


class FolderSource:
    """Images from a folder, by id: for tests and for hosts without a control plane."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self, image: BootImage) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread((self._folder / image.id).open, "rb")
        except FileNotFoundError:
            raise FetchError("there is no such image", final=True) from None
        with file:
            while block := await asyncio.to_thread(file.read, _BLOCK):
                yield block


async def no_barrier(_name: str) -> None:
    """Effects are named so that tests can stop there (DESIGN §6); normally nobody does."""


Wanted = Mapping[str, tuple[BootImage, ...]]
"""The servers that this host is to have, and the images that each boots from (none: it is to go)."""


def nobody_knows() -> Wanted | None:
    """What is wanted before the agent was told its world: then nothing is evicted."""
    return None


class ImageCache:
    """``images/<image id>.<digest>`` in the state folder; one agent at a time uses it.

    ``wanted`` is asked before anything is evicted; what it names stays.
    """

    def __init__(
        self, host_dir: Path, source: ImageSource, barrier: Barrier = no_barrier, reserve: int | None = None
    ) -> None:
        self.folder = host_dir / "images"
        self.space = Space(host_dir, self._evict, reserve)
        self.wanted: Callable[[], Wanted | None] = nobody_knows
        self._host_dir = host_dir
        self._source = source
        self._barrier = barrier
        self._pins: Counter[str] = Counter()
        self._touched: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._done: dict[str, int] = {}
        self._failed: dict[str, FetchFailed] = {}
        self._useless: dict[str, FetchFailed] = {}
        self._swept = False

    def path(self, image: BootImage) -> Path:
        return self.folder / cache_name(image)

    def has(self, image: BootImage) -> bool:
        try:
            return self.path(image).stat().st_size == image.size
        except FileNotFoundError:
            return False

    def state(self, images: tuple[BootImage, ...]) -> Images:
        """What a look reports: from names and sizes, without reading a byte."""
        useless = [self._useless[name] for name in map(cache_name, images) if name in self._useless]
        if useless:
            return useless[0]
        missing = [image for image in images if not self.has(image)]
        if not missing:
            return Ready()
        names = [self.path(image).name for image in missing]
        if any(name in self._tasks for name in names):
            have = sum(image.size for image in images) - sum(image.size for image in missing)
            done = have + sum(self._done.get(name, 0) for name in names)
            return Fetching(done, sum(image.size for image in images))
        failures = [self._failed[name] for name in names if name in self._failed]
        return max(failures, key=lambda failure: failure.final, default=None) or Missing()

    async def fetch(self, images: tuple[BootImage, ...], patience: float = 1.0) -> None:
        """Begin what is missing and nobody fetches, and wait a moment: small images are there at once."""
        if not self._swept:
            await asyncio.to_thread(self.sweep)
        waiting = set()
        for image in images:
            if await asyncio.to_thread(self.has, image):
                continue
            name = self.path(image).name
            self._failed.pop(name, None)
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._bring(image, name))
            waiting.add(self._tasks[name])
        if waiting:
            await asyncio.wait(waiting, timeout=patience)

    def blame(self, image: BootImage, reason: str) -> DriverError:
        """Something could not be made of this image: is its copy here damaged, or is it useless itself?

        Only where the copy has the right digest can no other copy do better. Then the image is not offered
        again by this process, and those who want it are told for good.
        """
        path = self.path(image)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha512").hexdigest()
        if digest != image.sha512:
            path.unlink(missing_ok=True)
            return DriverError("the host's copy of the image was damaged; it is fetched again")
        self._useless[path.name] = FetchFailed(f"the image cannot be used: {reason}", final=True)
        return DriverError(reason, remedy="delete the server and use another image", lasting=True)

    def sweep(self) -> None:
        """Remove what earlier agents left half fetched. Only before the first fetch of this one."""
        self._swept = True
        for part in self.folder.glob("*.part.*"):
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def pinned(self, images: Iterable[BootImage]) -> Iterator[None]:
        """While something is made of these images, or started with them, they are not evicted."""
        names = [cache_name(image) for image in images]
        self._pins.update(names)
        self._touched.update(names)
        try:
            for name in names:
                with contextlib.suppress(OSError):
                    os.utime(self.folder / name)  # the longest unused goes first
            yield
        finally:
            self._pins.subtract(names)

    async def _evict(self, short: int) -> None:
        """Make room for ``short`` bytes: remove images that no disk here lies on and no server here wants.

        The overlays' own headers decide. Where anything is unclear nothing is removed: the step that asked
        fails then, and says that the disk is full.
        """
        wanted = self.wanted()
        if wanted is None:
            return
        self._touched.clear()  # an overlay that is finished while we read is not missed
        try:
            used = await asyncio.to_thread(needed, self._host_dir, wanted.keys())
            candidates = await asyncio.to_thread(_by_age, self.folder)
        except (Unsure, OSError) as error:
            log.warning("nothing evicted", reason=str(error))
            return
        for path, size in candidates:
            if short <= 0:
                return
            if path.name in used or self._in_use(path.name):
                continue
            path.unlink(missing_ok=True)
            short -= size
            log.info("image evicted", image=path.name, bytes=size)

    def _in_use(self, name: str) -> bool:
        """By what this process does and was told, as of this moment."""
        wanted = self.wanted()
        if wanted is None or name in self._tasks or name in self._touched or self._pins[name] > 0:
            return True
        return any(name == cache_name(image) for images in wanted.values() for image in images)

    async def close(self) -> None:
        """End the fetches that run; the next agent begins them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring(self, image: BootImage, name: str) -> None:
        """One fetch, for all servers that want the image; how it failed is kept until the next try."""
        failure: FetchFailed | None = FetchFailed("the fetch was ended by a fault of its source", final=False)
        try:
            await self._download(image, self.folder / name)
            failure = None
        except FetchError as error:
            failure = FetchFailed(error.reason, error.final)
        except DriverError as error:
            failure = FetchFailed(str(error), final=False, remedy=error.remedy)
        except OSError as error:
            failure = FetchFailed(f"the image cannot be kept on this host: {words(error)}", final=False)
        finally:
            if failure is not None:
                self._tries[name] += 1
                self._failed[name] = msgspec.structs.replace(failure, tries=self._tries[name])
            else:
                del self._tries[name]
            self._done.pop(name, None)
            del self._tasks[name]

    async def _download(self, image: BootImage, target: Path) -> None:
        await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        async with self.space.reserve(image.size) as promise:
            await self._into(image, target, promise)

    async def _into(self, image: BootImage, target: Path, promise: Promise) -> None:
        part = target.with_name(f"{target.name}.part.{secrets.token_hex(4)}")
        file = await asyncio.to_thread(part.open, "xb")
        try:
            digest = await self._copy(image, target.name, file.fileno(), promise)
            if digest != image.sha512:
                raise FetchError("the image's content differs from its digest", final=True)
            await asyncio.to_thread(_finish, file.fileno(), part, target)
        finally:
            file.close()
            part.unlink(missing_ok=True)

    async def _copy(self, image: BootImage, name: str, descriptor: int, promise: Promise) -> str:
        """Copy the stream and return its sha512; refuses another length."""
        digest, half, buffer = hashlib.sha512(), False, bytearray()
        done = self._done[name] = 0
        async with contextlib.aclosing(self._blocks(image)) as blocks:
            async for block in blocks:
                buffer += block
                done += len(block)
                if done > image.size:
                    raise FetchError("the image is longer than it should be", final=True)
                at_half = not half and done * 2 >= image.size
                if len(buffer) >= _BLOCK or done == image.size or at_half:
                    await asyncio.to_thread(_write, descriptor, bytes(buffer), digest.update)
                    promise.spent(len(buffer))
                    buffer.clear()
                    self._done[name] = done
                if at_half:
                    half = True
                    await self._barrier("driver.fetch.half")
        if done != image.size:
            raise FetchError(f"the image ended early, after {done} of {image.size} bytes")
        return digest.hexdigest()

    async def _blocks(self, image: BootImage) -> AsyncGenerator[bytes, None]:
        """The source's blocks, each under the deadline for silence."""
        stream = aiter(self._source.open(image))
        try:
            while True:
                async with asyncio.timeout(STALL):
                    block = await anext(stream, None)
                if block is None:
                    return
                yield block
        except TimeoutError:
            raise FetchError(f"no byte of the image came for {STALL:g} s") from None
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()


def _write(descriptor: int, data: bytes, update: Callable[[bytes], object]) -> None:
    update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _finish(descriptor: int, part: Path, target: Path) -> None:
    os.fchmod(descriptor, 0o400)
    os.fsync(descriptor)
    part.rename(target)
    sync_folder(target.parent)


def _by_age(folder: Path) -> list[tuple[Path, int]]:
    """Whole images with their size on the disk, the longest unused first."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if ".part." not in path.name:
                seen = path.stat()
                found.append((seen.st_mtime, path, seen.st_blocks * 512))
    return [(path, size) for _, path, size in sorted(found)]
