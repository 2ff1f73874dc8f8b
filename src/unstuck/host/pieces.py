"""Where objects of backups go and come from: straight to the blob store, or through the control plane."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from unstuck.blobs.objects import BlobError, Location, Objects, Problem, open_objects, sha256
from unstuck.core.instance.wire import Place, Who
from unstuck.host.control import DatabaseControl, Unreachable
from unstuck.runtime.threads import NoThread, in_thread

T = TypeVar("T")

DEADLINE: Final = 75.0
"""Seconds for one object; a little longer than a remote store has for its answer."""
PLACES: Final = 64
"""Places that are kept open: credentials may be other ones at each grant."""
AT_ONCE: Final = 8
"""Objects on their way to or from one place. So many calls can hang; later ones wait, within the deadline."""


class Pieces(Protocol):
    """Objects, without blocking. Raises BlobError where nothing can be said, and Conflict."""

    async def put_new(self, key: str, data: bytes) -> None: ...

    async def get(self, key: str) -> bytes | None: ...


async def digest(data: bytes) -> str:
    """sha256 of a piece, beside the loop."""
    return await in_thread("digest", lambda: sha256(data), DEADLINE)


class Direct:
    """A place that the host enters by itself."""

    def __init__(self, objects: Objects, deadline: float = DEADLINE) -> None:
        self._objects = objects
        self._deadline = deadline
        self._free = asyncio.Semaphore(AT_ONCE)

    async def put_new(self, key: str, data: bytes) -> None:
        await self._do("put", lambda: self._objects.put_new(key, data))

    async def get(self, key: str) -> bytes | None:
        return await self._do("get", lambda: self._objects.get(key))

    async def _do(self, name: str, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._deadline):
                await self._free.acquire()
            # Given back by the thread's own end: a call that hangs is one of those at once.
            return await in_thread(name, self._then_free(work), self._deadline)
        except NoThread as error:
            self._free.release()
            raise BlobError(Problem.FAULT, f"on the host: {error}") from error
        except TimeoutError:
            reason = f"no answer within {self._deadline:.0f} s"
            raise BlobError(Problem.UNREACHABLE, reason) from None

    def _then_free(self, work: Callable[[], T]) -> Callable[[], T]:
        loop = asyncio.get_running_loop()

        def run() -> T:
            try:
                return work()
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._free.release)

        return run


class Places:
    """The places that grants name; one and the same for all attempts that go there."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._open: OrderedDict[Place, Direct] = OrderedDict()

    def at(self, place: Place) -> Pieces:
        """Raises BlobError for an address that is none."""
        if place not in self._open:
            where = Location(place.url, place.endpoint, place.region, place.access_key, place.secret_key)
            try:
                objects = open_objects(where)
            except ValueError as error:
                raise BlobError(Problem.FAULT, str(error)) from None
            self._open[place] = Direct(objects, self._deadline)
        self._open.move_to_end(place)
        while len(self._open) > PLACES:
            self._open.popitem(last=False)
        return self._open[place]


class Through:
    """Through the control plane, with the host's credential, for one server's attempt or restore."""

    def __init__(self, control: DatabaseControl, who: Callable[[], Who], nonce: str = "") -> None:
        self._control = control
        self._who = who
        self._nonce = nonce

    async def put_new(self, key: str, data: bytes) -> None:
        try:
            await self._control.put_object(self._who(), self._nonce, key, data)
        except Unreachable as error:
            raise BlobError(Problem.UNREACHABLE, str(error)) from error

    async def get(self, key: str) -> bytes | None:
        try:
            return await self._control.get_object(self._who(), key)
        except Unreachable as error:
            raise BlobError(Problem.UNREACHABLE, str(error)) from error
