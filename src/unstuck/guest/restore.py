"""Making an instance's data out of a backup, piece by piece. It fails closed (law 3): nothing is the
instance's data before all of it was checked, and what does not fit is never made up for by an empty database.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import structlog

from unstuck.blobs.chunks import CHUNK_SIZE, Damaged, open_into
from unstuck.core.backup.chain import LONGEST, fault_of, size_of
from unstuck.core.backup.content import Content
from unstuck.core.instance.guestwire import (
    AskRestore,
    Done,
    Fetch,
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
from unstuck.guest.datastore import Datastore, DatastoreError, Receiver
from unstuck.guest.wire import Threads, ask

FETCHERS: Final = 4
PACKED: Final = 8 << 20
"""Bytes of pieces that are fetched or wait to be opened; one that is larger goes alone."""
BUFFERS: Final = 3
"""Plain pieces in memory: one is written, others are opened meanwhile."""
LARGEST: Final = CHUNK_SIZE * 2
"""Bytes of such a piece; larger ones take memory of their own."""
REMEDY: Final = "restore another backup into a new instance"

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


def damaged(reason: str) -> DatastoreError:
    return DatastoreError(f"the backup is damaged: {reason}", REMEDY, final=True, code="backup-damaged")


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
