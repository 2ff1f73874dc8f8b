"""Making an instance's data out of a backup, piece by piece. It fails closed (law 3): nothing is the
instance's data before all of it was checked, and what does not fit is never made up for by an empty database.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from unstuck.blobs.chunks import CHUNK_SIZE, Damaged, open_chunk, open_into
from unstuck.core.backup.chain import LONGEST, fault_of, size_of
from unstuck.core.backup.content import Content
from unstuck.core.instance.guestwire import (
    AskLog,
    AskRestore,
    Done,
    Fetch,
    FetchLog,
    Log,
    LogPart,
    NotNow,
    Refused,
    Request,
    Response,
    Restore,
)
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.guest.control import Away, GuestControl
from unstuck.guest.datastore import REMEDY, Datastore, DatastoreError, Receiver, damaged
from unstuck.guest.wire import Threads, ask

FETCHERS: Final = 4
PACKED: Final = 8 << 20
"""Bytes of pieces that are fetched or wait to be opened; one that is larger goes alone."""
BUFFERS: Final = 3
"""Plain pieces in memory: one is written, others are opened meanwhile."""
LARGEST: Final = CHUNK_SIZE * 2
"""Bytes of such a piece; larger ones take memory of their own."""

log = structlog.get_logger(__name__)

Moved = Callable[[int, int, str], None]
"""Bytes done, bytes in all, and what is waited for."""


async def restore(
    port: Port,
    control: GuestControl,
    datastore: Datastore,
    want: DatabaseWant,
    threads: Threads,
    moved: Moved,
) -> None:
    """From its first piece to the instance's data. Raises :class:`DatastoreError`."""
    run = _Restoring(port, control, threads, moved)
    links = await _chain(run)
    chain = tuple(link.content for link in links)
    receiver = await port.effect("guest.receive", lambda: datastore.receive(want, chain))
    try:
        run.total = size_of(chain)
        for number, link in enumerate(links):
            await port.effect("guest.unpack-next", functools.partial(receiver.begin, number))
            await run.fill(receiver, link, len(links) - number - 1)
        await port.effect("guest.unpacked", receiver.unpacked)
        if want.origin.point is not None:
            point, log_source = want.origin.point, await run.log()
            await port.effect("guest.replay", lambda: receiver.replay(log_source, point))
        await port.effect("guest.prove", receiver.prove)
        await port.effect("guest.publish", receiver.publish)
    finally:
        run.over = True
        await port.effect("guest.receive-close", receiver.close)


async def _chain(run: _Restoring) -> list[Restore]:
    """The full backup first. Nothing is begun with one that does not hold together."""
    found: list[Restore] = []
    parents = 1
    while len(found) < parents:
        granted = await run.say("guest.ask-restore", AskRestore(len(found)))
        if not isinstance(granted, Restore):
            raise DatastoreError("the host answered with something else", REMEDY)
        if not found:
            parents = granted.parents + 1
        _check(granted.content)
        found.insert(0, granted)
        if parents > LONGEST + 1:
            raise damaged(f"it has {granted.parents} parents")
    fault = fault_of([link.content for link in found])
    if fault is not None:
        raise damaged(f"its chain does not hold together: {fault}")
    return found


def _check(content: Content) -> None:
    if [chunk.index for chunk in content.chunks] != list(range(len(content.chunks))):
        raise damaged("its pieces do not follow one another")
    if not content.chunks or sum(chunk.length for chunk in content.chunks) != content.size:
        raise damaged("its pieces are not its size")


class _Restoring:
    def __init__(self, port: Port, control: GuestControl, threads: Threads, moved: Moved) -> None:
        self._port = port
        self._control = control
        self._threads = threads
        self._moved = moved
        self._key = f"restore-{port.nonce()}"
        self._next = 0
        self._written = 0
        self._packed = 0
        self._plain: dict[int, memoryview] = {}
        self._buffers: list[bytearray] = []
        self._error: DatastoreError | None = None
        self._done = 0
        self._fetching = 0
        """Which backup of the chain is fetched: those who fetched the one before have ended."""
        self.total = 0
        self.over = False

    async def say(self, name: str, request: Request) -> Response:
        answer, _ = await self._ask(name, request)
        return answer

    async def _ask(self, name: str, request: Request) -> tuple[Response, bytes]:
        """Until there is an answer: an outage delays a restore, and does not begin it anew."""
        tries = 0
        while True:
            try:
                answer, blob = await self._port.effect(name, lambda: ask(self._control, request))
            except Away as error:
                answer, blob = NotNow("unreachable", str(error)), b""
            if isinstance(answer, Refused) and answer.code == "damaged":
                raise damaged(answer.reason)
            if isinstance(answer, Refused):
                raise DatastoreError(f"the backup cannot be had: {answer.reason}", REMEDY, final=True,
                                     code="backup-refused")  # fmt: skip
            if not isinstance(answer, NotNow):
                self._moved(self._done, self.total, "")
                return answer, blob
            if self.over or self._error is not None:
                raise DatastoreError("it is over")
            tries += 1
            self._moved(self._done, self.total, answer.reason)
            wait = max(answer.seconds, backoff(tries, 0.5, 30.0))
            await self._port.pause(wait, self._key)

    async def log(self) -> Source:
        """The pieces that follow, by their names."""
        parts: list[LogPart] = []
        while True:
            said = await self.say("guest.ask-log", AskLog(parts[-1].name if parts else ""))
            if not isinstance(said, Log):
                raise DatastoreError("the host answered with something else", REMEDY)
            parts += said.parts
            if not said.more or not said.parts:
                break
        self.total += sum(part.size for part in parts)
        return Source(self, parts, said.identity)

    async def piece(self, part: LogPart, identity: str) -> bytes:
        """A piece of the log, checked all the way."""
        plain = []
        for chunk in part.chunks:
            answer, sealed = await self._ask("guest.fetch-log", FetchLog(part.name, chunk.index))
            if not isinstance(answer, Done):
                raise damaged(f"the host has no part {chunk.index} of {part.name}")
            try:
                plain.append(
                    await self._port.effect(
                        "guest.open-log",
                        functools.partial(self._threads, open_chunk, chunk, sealed, identity),
                    )
                )
            except Damaged as error:
                raise damaged(f"{part.name}: {error}") from error
        return b"".join(plain)

    def moved(self, size: int) -> None:
        self._done += size
        self._moved(self._done, self.total, "")

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._port.spawn("fetching", work)

    async def wait(self) -> None:
        await self._port.pause(1.0, f"{self._key}-log")

    def wake(self) -> None:
        self._port.wake(f"{self._key}-log")

    async def fill(self, receiver: Receiver, link: Restore, above: int) -> None:
        """Write all pieces of one backup in their order, while the next ones come."""
        self._next = self._written = self._packed = 0
        self._fetching += 1
        self._moved(self._done, self.total, "")
        largest = min(max(chunk.length for chunk in link.content.chunks), LARGEST)
        self._buffers = [bytearray(largest) for _ in range(BUFFERS)]
        for _ in range(FETCHERS):
            self._port.spawn("fetching", self._fetch_all(link, above, self._fetching))
        for chunk in link.content.chunks:
            while chunk.index not in self._plain:
                if self._error is not None:
                    raise self._error
                await self._port.pause(1.0, f"{self._key}-piece")
            plain = self._plain.pop(chunk.index)
            await self._port.effect("guest.unpack", functools.partial(receiver.write, plain))
            self._done += len(plain)
            self._written += 1
            self._moved(self._done, self.total, "")
            self._port.wake(f"{self._key}-room")

    async def _fetch_all(self, link: Restore, above: int, turn: int) -> None:
        chunks = link.content.chunks
        while self._goes_on(turn) and self._next < len(chunks):
            chunk = chunks[self._next]
            if self._packed and self._packed + chunk.sealed_length > PACKED:
                await self._port.pause(1.0, f"{self._key}-room")
                continue
            self._next += 1
            self._packed += chunk.sealed_length
            try:
                answer, sealed = await self._ask("guest.fetch", Fetch(chunk.index, above))
                if not isinstance(answer, Done):
                    raise damaged(f"the host has no piece {chunk.index}")
                # The memory for it is that of the one so many before, which has to be written by then.
                while chunk.index >= self._written + BUFFERS:
                    await self._port.pause(1.0, f"{self._key}-room")
                    if not self._goes_on(turn):
                        return
                into = self._buffers[chunk.index % BUFFERS]
                self._plain[chunk.index] = await self._port.effect(
                    "guest.open",
                    functools.partial(self._threads, open_into, chunk, sealed, link.identity, into),
                )
                self._packed -= chunk.sealed_length
                del sealed
            except Damaged as error:
                self._error = damaged(str(error))
            except DatastoreError as error:
                reason = f"piece {chunk.index}: {error.reason}"
                named = DatastoreError(reason, error.remedy, final=error.final, code=error.code)
                self._error = self._error or named
            self._port.wake(f"{self._key}-piece")
            self._port.wake(f"{self._key}-room")

    def _goes_on(self, turn: int) -> bool:
        return not self.over and self._error is None and turn == self._fetching


class Source:
    """Implements :class:`unstuck.guest.datastore.LogSource`: the next piece comes while one is replayed."""

    def __init__(self, run: _Restoring, parts: list[LogPart], identity: str) -> None:
        self._run = run
        self._parts = {part.name: part for part in parts}
        self._identity = identity
        self.names = tuple(self._parts)
        self._ahead: dict[str, bytes | DatastoreError] = {}
        self._coming: set[str] = set()

    async def get(self, name: str) -> bytes | None:
        part = self._parts.get(name)
        if part is None:
            return None
        self._begin(name)
        while name in self._coming:
            await self._run.wait()
        found = self._ahead.pop(name)
        if isinstance(found, DatastoreError):
            raise found
        self._run.moved(part.size)
        later = self.names.index(name) + 1
        if later < len(self.names):
            self._begin(self.names[later])
        return found

    def _begin(self, name: str) -> None:
        if name not in self._coming and name not in self._ahead:
            self._coming.add(name)
            self._run.beside(self._fetch(name))

    async def _fetch(self, name: str) -> None:
        try:
            self._ahead[name] = await self._run.piece(self._parts[name], self._identity)
        except DatastoreError as error:
            self._ahead[name] = error
        self._coming.discard(name)
        self._run.wake()
