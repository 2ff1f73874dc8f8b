"""The simulated blob store: objects that are created once, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from unstuck.blobs.objects import BlobError, Conflict, Entry, Location, Objects, Problem
from unstuck.blobs.stores import Places, Stores
from unstuck.core.instance.wire import Place
from unstuck.runtime.lanes import Lanes, TookTooLong
from unstuck.sim.engine import NoReply, Reply

if TYPE_CHECKING:
    from unstuck.sim.engine import Engine

T = TypeVar("T")

LATENCY: Final = 0.1
LATE_MOST: Final = 550.0
"""Seconds for which a call that hangs may still be carried out: less than ``UPLOAD_AT_LONGEST``."""
DEADLINE: Final = 75.0
LOCAL: Final = "local"
DIRECT: Final = "direct"
"""A store that hosts enter by themselves, as they do S3."""


class Mode(StrEnum):
    """What it does with the next calls."""

    OK = "ok"
    FAULT = "fault"
    REFUSED = "refused"
    FULL = "full"
    HANG = "hang"
    """It accepts, and never answers; what was accepted may be done when it comes to itself."""
    DEAF = "deaf"
    """It does as it is asked, and its answers are lost."""
    PARTIAL = "partial"
    """Every second call works."""


class SimBlobs:
    """What outlives every process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.objects: dict[str, bytes] = {}
        self.mode = Mode.OK
        self.calls = 0
        self.written: Callable[[str], None] = lambda _: None
        """Told of each new object, when it is there."""
        self.removing: Callable[[str], None] = lambda _: None
        self.listed: dict[str, float] = {}
        """When what lies below a prefix was last listed, whole."""
        self._stuck: list[tuple[float, Callable[[], object], Reply]] = []

    def submit(self, work: Callable[[], T]) -> Reply:
        """A call on its way: it is carried out whether or not anybody waits for it any more."""
        reply = Reply(self.engine)
        if self.mode is Mode.HANG:
            self._stuck.append((self.engine.now, work, reply))
        else:
            self.engine.at(LATENCY, lambda: self._carry_out(work, reply))
        return reply

    def _carry_out(self, work: Callable[[], object], reply: Reply) -> None:
        self.calls += 1
        try:
            reply.give(work())
        except Exception as error:
            reply.fail(error)

    def set_mode(self, mode: Mode) -> None:
        self.engine.log(f"    *** the blob store: {mode.value}")
        self.mode = mode
        if mode is Mode.HANG:
            return
        stuck, self._stuck = self._stuck, []
        for since, work, reply in stuck:
            if self.engine.now - since < LATE_MOST:
                self._carry_out(work, reply)

    async def call(self, seconds: float, work: Callable[[], T]) -> T:
        """Raises :class:`NoReply`, and what the work raises."""
        answer: T = await self.submit(work).within(seconds)
        return answer


class SimObjects(Objects):
    """Implements :class:`unstuck.blobs.objects.Objects`, called when a call is carried out."""

    def __init__(self, blobs: SimBlobs) -> None:
        self._blobs = blobs

    def _check(self, *, put: bool = False) -> None:
        match self._blobs.mode:
            case Mode.FAULT:
                raise BlobError(Problem.FAULT, "500 Internal Server Error")
            case Mode.REFUSED:
                raise BlobError(Problem.REFUSED, "403 Forbidden")
            case Mode.FULL if put:
                raise BlobError(Problem.FULL, "507 Insufficient Storage")
            case Mode.PARTIAL if self._blobs.calls % 2:
                raise BlobError(Problem.FAULT, "503 Slow Down")
            case _:
                return

    def _answered(self) -> None:
        if self._blobs.mode is Mode.DEAF:
            raise BlobError(Problem.UNREACHABLE, "the connection broke before the answer")

    def put_new(self, key: str, data: bytes) -> None:
        self._check(put=True)
        there = self._blobs.objects.get(key)
        if there is None:
            self._blobs.written(key)
            self._blobs.objects[key] = data
        elif there != data:
            raise Conflict(f"{key} is there with other bytes")
        self._answered()

    def get(self, key: str) -> bytes | None:
        self._check()
        self._answered()
        return self._blobs.objects.get(key)

    def head(self, key: str) -> Entry | None:
        self._check()
        self._answered()
        data = self._blobs.objects.get(key)
        return None if data is None else Entry(key, len(data))

    def list(self, prefix: str) -> list[Entry]:
        self._check()
        self._answered()
        self._blobs.listed[prefix] = self._blobs.engine.now
        found = sorted(self._blobs.objects.items())
        return [Entry(key, len(data)) for key, data in found if key.startswith(f"{prefix}/")]

    def delete(self, keys: Iterable[str]) -> None:
        self._check()
        for key in keys:
            if key in self._blobs.objects:
                self._blobs.removing(key)
                del self._blobs.objects[key]
        self._answered()


class SimLanes(Lanes):
    """Calls that take their time in the simulated world, instead of on threads."""

    def __init__(self, blobs: SimBlobs) -> None:
        super().__init__()
        self._blobs = blobs

    async def run(self, lane: str, seconds: float, work: Callable[[], T]) -> T:
        try:
            return await self._blobs.call(seconds, work)
        except NoReply:
            raise TookTooLong(f"no answer within {seconds:g} s") from None


class SimStores(Stores):
    """Two names for the one simulated store: through the control plane, and entered by hosts."""

    def __init__(self, blobs: SimBlobs) -> None:
        super().__init__(Path("/nonexistent"), Path("/nonexistent/stores"))
        self._objects = SimObjects(blobs)

    def places(self) -> Places:
        return Places((LOCAL, DIRECT), LOCAL)

    def objects(self, name: str) -> Objects:
        return self._objects

    def remote(self, name: str) -> Location | None:
        return Location("s3://simulated") if name == DIRECT else None


class SimPieces:
    """Objects as a host reaches them by itself (``host/pieces.py``)."""

    def __init__(self, blobs: SimBlobs) -> None:
        self._blobs = blobs
        self._objects = SimObjects(blobs)

    async def put_new(self, key: str, data: bytes) -> None:
        await self._do(lambda: self._objects.put_new(key, data))

    async def get(self, key: str) -> bytes | None:
        return await self._do(lambda: self._objects.get(key))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await self._blobs.call(DEADLINE, work)
        except NoReply:
            raise BlobError(Problem.UNREACHABLE, f"no answer within {DEADLINE:.0f} s") from None


def place_of(where: Location | None) -> Place | None:
    """As the agents' API tells it to hosts."""
    return None if where is None else Place(where.url, "", where.region, "", "")


def damage(blobs: SimBlobs, how: str) -> None:
    """Somebody spoils what lies there: the last piece, in this way."""
    objects = blobs.objects
    first, *_, last = sorted(key for key in objects if key.endswith(".age"))
    match how:
        case "missing":
            del objects[last]
        case "flipped":
            objects[last] = objects[last][:-1] + bytes([objects[last][-1] ^ 1])
        case "swapped":
            objects[first], objects[last] = objects[last], objects[first]
        case _:
            objects[last] = objects[last][:-7]


__all__ = [
    "DEADLINE", "DIRECT", "LOCAL", "Mode", "SimBlobs", "SimLanes", "SimObjects", "SimPieces", "SimStores",
    "damage", "place_of",
]  # fmt: skip
