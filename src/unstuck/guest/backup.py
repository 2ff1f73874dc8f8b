"""Attempts at a backup: a tool's stream in pieces, packed by two workers, under a lease that is renewed.

While pieces are packed the next one is read and those before are stored, several at a time. What is in memory
is bounded: plain pieces lie in buffers that are used again and again, packed ones wait within a room.

An attempt is taken, works, and ends, with a manifest or with a reason; another is another. It ends at once
when it is told so, when it is over for its host, or when it stands still for longer than its phase may.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from unstuck.blobs.age import BadKey
from unstuck.blobs.chunks import Chunk, make_chunk
from unstuck.core.backup.content import Content
from unstuck.core.backup.data import STALLS, Phase
from unstuck.core.instance.guestwire import (
    Done,
    Finish,
    GiveUp,
    NotNow,
    Refused,
    Renew,
    Request,
    Response,
    Store,
    Take,
)
from unstuck.core.instance.want import BackupWant
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.guest.control import Away, GuestControl
from unstuck.guest.datastore import Copy, Datastore, DatastoreError
from unstuck.guest.wire import Threads, ask

T = TypeVar("T")

WORKERS: Final = 2
BUFFERS: Final = WORKERS + 1
"""Plain pieces in memory: one is read while the workers have theirs in hand."""
STORERS: Final = 6
"""Packed pieces on their way to the host at a time."""
PACKED: Final = 8 << 20
"""Bytes of packed pieces that are on their way or wait for it; one that is larger goes alone."""
RENEW: Final = 3.0
"""Seconds between two words to the host."""
PRESSED: Final = 2.0
"""Seconds without room for another piece after which the blob store is what is waited for."""
WORDS: Final = 300
"""Characters of what the store said that are passed on."""
LAST_WORDS: Final = 60.0
"""Seconds for which an agent tries to say that it gave up; then the host finds out by itself."""

log = structlog.get_logger(__name__)


class Backups:
    """One attempt at a time, each once."""

    def __init__(self, port: Port, control: GuestControl, datastore: Datastore, threads: Threads) -> None:
        self._port = port
        self._control = control
        self._datastore = datastore
        self._threads = threads
        self._want: BackupWant | None = None
        self._ready = False
        self._over = ""
        self._attempt: Attempt | None = None

    def wanted(self, want: BackupWant | None) -> None:
        """What is offered or runs, each time it is heard. An attempt that vanished is over."""
        self._want = want
        if self._attempt is not None:
            if want is None or want.nonce != self._attempt.nonce:
                self._attempt.drop("it is not wanted any more")
            elif want.stop is not None:
                self._attempt.stop(want.stop)
        self._port.wake("backup")

    def server_is_up(self, up: bool) -> None:
        """While it is not, no attempt is taken: it would only be lost."""
        if up and not self._ready:
            self._port.wake("backup")
        self._ready = up

    @property
    def nonce(self) -> str | None:
        """Of the attempt that runs."""
        return None if self._attempt is None else self._attempt.nonce

    async def run(self) -> None:
        while True:
            want = self._want
            if want is None or not self._ready or want.stop is not None or want.nonce == self._over:
                await self._port.pause(60.0, "backup")
                continue
            if not await self._take(want):
                continue
            self._attempt = Attempt(self._port, self._control, self._datastore, self._threads, want)
            await self._attempt.run()
            if self._attempt.failed:
                # Perhaps for the server's sake, and the next is offered at once: only after another look.
                self._ready = False
                self._port.wake("look")
            self._attempt = None

    async def _take(self, want: BackupWant) -> bool:
        """Whether it is ours. Offered to another since, or stopped: it is looked at anew."""
        try:
            answer, _ = await self._port.effect(
                "guest.take", lambda: ask(self._control, Take(want.backup_id, want.nonce))
            )
        except Away as error:
            answer = NotNow("unreachable", str(error))
        if isinstance(answer, NotNow):
            await self._port.pause(answer.seconds, "hello")
            return False
        self._over = want.nonce
        if isinstance(answer, Refused) or (isinstance(answer, Done) and answer.stop is not None):
            log.info("the attempt is not to be taken", backup=want.backup_id, answer=str(answer))
            return False
        return True


class Attempt:
    """One that was taken."""

    def __init__(
        self, port: Port, control: GuestControl, datastore: Datastore, threads: Threads, want: BackupWant
    ) -> None:
        self._port = port
        self._control = control
        self._datastore = datastore
        self._threads = threads
        self._want = want
        self.nonce = want.nonce
        self._copy: Copy | None = None
        self._read_out = False
        self._phase = Phase.STARTING
        self._tool_phase = Phase.STARTING
        self._number = -1
        self._moved = port.clock()
        self._put_off = ""
        """What the store said last, while it takes nothing."""
        self._pressed: float | None = None
        self._size = 0
        self._free: list[bytearray] = []
        self._todo: list[tuple[int, bytes | memoryview, bytearray]] = []
        self._packed: list[tuple[Chunk, bytes]] = []
        self._room_used = 0
        self._workers = 0
        self._storers = 0
        self._read_all = False
        self._chunks: dict[int, Chunk] = {}
        self._failed: tuple[str, bool] | None = None
        self._dropped = False
        self._closed = False
        self._shut = False
        self._ended = False

    # --- how it ends

    def stop(self, reason: str, *, final: bool = False) -> None:
        """End it, and say why. What is on its way to the store is not waited for."""
        if self._failed is None:
            self._failed = (reason, final)
            self._control.forget(self.nonce)
            self._wake()

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def drop(self, reason: str) -> None:
        """End it: nobody wants to hear of it any more."""
        self._dropped = True
        self.stop(reason)

    def _wake(self) -> None:
        for key in ("piece", "room", "packed", "renew", "attempt"):
            self._port.wake(f"{key}-{self.nonce}")

    async def run(self) -> None:
        log.info("backup begins", backup=self._want.backup_id, attempt=self._want.attempt)
        try:
            await self._work()
        except (DatastoreError, OSError) as error:
            final = isinstance(error, DatastoreError) and error.final
            self.stop(str(error), final=final)
        await self._close()
        self._ended = True
        self._wake()
        if self._failed is None:
            log.info("backup is made", backup=self._want.backup_id, size=self._size)
            return
        reason, final = self._failed
        log.warning("backup given up", backup=self._want.backup_id, reason=reason)
        if not self._dropped:
            await self._give_up(reason, final)

    async def _close(self) -> None:
        """Done when it returns, whoever began it: the next attempt's tool would be in the way of its end."""
        copy = self._copy
        if copy is None:
            return
        if self._closed:
            while not self._shut:
                await self._port.pause(1.0, f"attempt-{self.nonce}")
            return
        self._closed = True
        try:
            await self._port.effect("guest.copy-close", copy.close)
        finally:
            self._shut = True
            self._port.wake(f"attempt-{self.nonce}")

    async def _give_up(self, reason: str, final: bool) -> None:
        word = GiveUp(self._want.backup_id, self.nonce, reason[:500], final)
        end = self._port.clock() + LAST_WORDS
        tries = 0
        while self._port.clock() < end:
            if not isinstance(await self._say("guest.give-up", word), NotNow):
                return
            tries += 1
            await self._port.pause(backoff(tries, 0.5, 10.0), "hello")

    async def _say(self, name: str, request: Request, blob: bytes = b"") -> Response:
        try:
            answer, _ = await self._port.effect(name, lambda: ask(self._control, request, blob))
        except Away as error:
            return NotNow("unreachable", str(error))
        return answer

    # --- how it works

    async def _work(self) -> None:
        self._port.spawn("renewing", self._renew_forever())
        parent = self._want.since_content
        self._copy = copy = await self._effect("guest.copy", lambda: self._datastore.copy(self.nonce, parent))
        self._free = [bytearray(self._want.chunk_size) for _ in range(BUFFERS)]
        for _ in range(WORKERS):
            self._workers += 1
            self._port.spawn("packing", self._pack_all())
        for _ in range(STORERS):
            self._storers += 1
            self._port.spawn("storing", self._store_all())
        index = 0
        while await self._room():
            buffer = self._free.pop()
            plain = await self._effect(
                "guest.read", functools.partial(copy.read, self._want.chunk_size, buffer)
            )
            if not plain:
                break
            self._progress()
            self._size += len(plain)
            self._todo.append((index, plain, buffer))
            index += 1
            del plain, buffer
            self._port.wake(f"piece-{self.nonce}")
        self._read_all = True
        await self._stored()
        if self._failed is not None:
            return
        copied = await self._effect("guest.copied", copy.finish)
        self._progress()
        content = Content(
            datastore=copied.datastore,
            system_identifier=copied.system_identifier,
            start=copied.start,
            stop=copied.stop,
            chunk_size=self._want.chunk_size,
            size=self._size,
            chunks=tuple(self._chunks[number] for number in range(index)),
            content=copied.content,
            parent=self._want.since,
            generation=self._want.generation,
        )
        await self._finish(content)

    async def _effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._port.effect(name, work)

    async def _room(self) -> bool:
        """Wait until there is room in memory for another piece; whether it goes on at all."""
        self._pressed = self._port.clock()
        while not self._free and self._failed is None:
            await self._port.pause(1.0, f"room-{self.nonce}")
        self._pressed = None
        return self._failed is None

    async def _stored(self) -> None:
        """Wait until all that was read has been packed and stored."""
        if self._failed is None:
            self._read_out = True
        self._port.wake(f"piece-{self.nonce}")
        while self._workers or self._storers:
            await self._port.pause(1.0, f"attempt-{self.nonce}")
        self._free.clear()

    async def _pack_all(self) -> None:
        """One worker: plain pieces become packed ones."""
        while self._failed is None:
            if not self._todo:
                if self._read_all:
                    break
                await self._port.pause(1.0, f"piece-{self.nonce}")
                continue
            index, plain, buffer = self._todo.pop(0)
            try:
                chunk, sealed = await self._pack(index, plain)
            except BadKey as error:
                self.stop(f"the backup's key is none: {error}", final=True)
                break
            self._free.append(buffer)
            del plain, buffer
            self._progress()
            # The worker keeps it in hand until there is room, and takes no other meanwhile.
            while self._room_used and self._room_used + len(sealed) > PACKED and self._failed is None:
                self._port.wake(f"room-{self.nonce}")
                await self._port.pause(1.0, f"attempt-{self.nonce}")
            self._room_used += len(sealed)
            self._packed.append((chunk, sealed))
            del sealed
            self._port.wake(f"packed-{self.nonce}")
            self._port.wake(f"room-{self.nonce}")
        self._workers -= 1
        for key in ("piece", "packed", "attempt"):
            self._port.wake(f"{key}-{self.nonce}")

    async def _store_all(self) -> None:
        """Packed pieces into the host's hand, one at a time; others do the same."""
        while self._failed is None:
            if not self._packed:
                if not self._workers:
                    break
                await self._port.pause(1.0, f"packed-{self.nonce}")
                continue
            chunk, sealed = self._packed.pop(0)
            if await self._until_done("guest.store", Store(self.nonce, chunk), sealed):
                self._chunks[chunk.index] = chunk
            self._room_used -= len(sealed)
            del sealed
            self._port.wake(f"attempt-{self.nonce}")
        self._storers -= 1
        self._port.wake(f"attempt-{self.nonce}")

    async def _pack(self, index: int, plain: bytes | memoryview) -> tuple[Chunk, bytes]:
        recipient = self._want.recipient
        return await self._effect("guest.pack", lambda: self._threads(make_chunk, index, plain, recipient))

    async def _finish(self, content: Content) -> None:
        await self._until_done("guest.finish", Finish(self.nonce, content), b"")

    async def _until_done(self, name: str, request: Request, blob: bytes) -> bool:
        """Ask again while the store cannot; how long that may go on is the phase's limit."""
        tries = 0
        while self._failed is None:
            answer = await self._say(name, request, blob)
            match answer:
                case Done(stop):
                    if stop is not None:
                        self.stop(stop)
                        return False
                    self._put_off = ""
                    self._progress()
                    return True
                case Refused(_, reason):
                    self.drop(reason)
                    return False
                case NotNow(_, reason, seconds):
                    tries += 1
                    self._put_off = reason
                    log.info("not now", what=name, reason=reason)
                    wait = max(seconds, backoff(tries, 0.5, 30.0))
                    await self._port.pause(wait, f"attempt-{self.nonce}")
                case _:
                    self.stop(f"the host answered {type(answer).__name__}")
        return False

    # --- whether it lives

    def _progress(self) -> None:
        self._moved = self._port.clock()

    async def _renew_forever(self) -> None:
        """The only place that says how it is, and that ends what hangs."""
        while not self._ended:
            await self._look_at_tool()
            self._judge()
            if self._failed is not None:
                # The tool first: whoever reads from it is waiting.
                await self._close()
                return
            idle = self._port.clock() - self._moved
            word = Renew(
                self._want.backup_id, self.nonce, self._phase.value, self._size, idle, self._put_off[:WORDS]
            )
            match await self._say("guest.renew", word):
                case Done(stop) if stop is not None:
                    self.stop(stop)
                    continue
                case Refused(_, reason):
                    self.drop(reason)
                    continue
                case _:
                    pass
            await self._port.pause(RENEW, f"renew-{self.nonce}")

    async def _look_at_tool(self) -> None:
        copy = self._copy
        if copy is None or self._closed or self._read_out:
            return
        try:
            phase, number = await self._effect("guest.progress", copy.look)
        except (DatastoreError, OSError):
            return
        if number != self._number:
            self._number = number
            # Every commit wakes the server's sender, which does nothing but costs processor time: a blob
            # store that took no piece of a database in use was never given up.
            if self._phase is not Phase.UPLOADING:
                self._progress()
        self._tool_phase = phase

    def _judge(self) -> None:
        now = self._port.clock()
        pressed = self._pressed is not None and now - self._pressed >= PRESSED
        phase = Phase.UPLOADING if pressed or self._read_out else self._tool_phase
        if phase is not self._phase:
            self._phase = phase
            self._progress()
        limit = self._want.stalls.get(phase.value, STALLS[phase])
        if now - self._moved >= limit:
            said = f": {self._put_off[:WORDS]}" if self._put_off and phase is Phase.UPLOADING else ""
            self.stop(f"nothing moved for {limit:.0f} s ({_WAITS[phase]}{said})")


_WAITS: Final = {
    Phase.STARTING: "the server did not begin a backup",
    Phase.COPYING: "no data came from the server",
    Phase.FINISHING: "the server did not end the backup",
    Phase.UPLOADING: "the blob store took no piece",
}
