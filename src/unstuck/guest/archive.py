"""The log leaves the guest piece by piece: each is kept by the host before the datastore may forget it.

The datastore asks over a socket (``push.py``) and waits. While nothing can be kept the log waits on the
volume; beyond its budget a part of it is let go, which is written down there before the datastore hears that
it may.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from unstuck.blobs.age import BadKey
from unstuck.blobs.chunks import Chunk, make_chunk
from unstuck.core.archive.data import ArchiveWant, Gap, Piece
from unstuck.core.instance.guestwire import (
    Done,
    Keep,
    KeepChunk,
    KeepEnd,
    KeepInto,
    NotNow,
    Refused,
    Request,
    Response,
)
from unstuck.core.port import Port
from unstuck.guest.control import Away, GuestControl
from unstuck.guest.datastore import Datastore, DatastoreError
from unstuck.guest.wire import Threads, ask
from unstuck.runtime.files import write_whole

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds for which one question of the datastore waits here; then it is asked again."""
GAP: Final = "archive-gap.json"

log = structlog.get_logger(__name__)


class Archive:
    """Keeps pieces, one after the other; ``folder`` is the volume's."""

    def __init__(
        self, port: Port, control: GuestControl, datastore: Datastore, threads: Threads, folder: Path
    ) -> None:
        self._port = port
        self._control = control
        self._datastore = datastore
        self._threads = threads
        self._path = folder / GAP
        self._heard = False
        self._want: ArchiveWant | None = None
        self._gap: Gap | None = None
        self._gap_read = False
        self._busy = False

    def wanted(self, want: ArchiveWant | None) -> None:
        """Where the log goes, each time it is heard."""
        if not self._heard or want != self._want:
            self._heard, self._want = True, want
            self._port.wake("archive")

    @property
    def gap(self) -> Gap | None:
        """What was let go of the archive that goes on, as far as is known here."""
        gap, want = self._known_gap(), self._want
        return gap if gap is not None and want is not None and gap.archive_id == want.id else None

    def _known_gap(self) -> Gap | None:
        if not self._gap_read:
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                self._gap = msgspec.json.decode(self._path.read_bytes(), type=Gap)
            self._gap_read = True
        return self._gap

    async def keep(self, name: str) -> bool:
        """Whether the datastore may forget this piece; if not, it asks again."""
        end = self._port.clock() + PATIENCE
        while self._busy:
            await self._port.pause(0.5, "archive-free")
            if self._port.clock() >= end:
                return False
        self._busy = True
        try:
            return await self._keep(name, end)
        except (DatastoreError, OSError, BadKey) as error:
            log.warning("a piece of the log cannot be kept", piece=name, reason=str(error))
            await self._port.pause(1.0, "archive")
            return False
        finally:
            self._busy = False
            self._port.wake("archive-free")

    async def _keep(self, name: str, end: float) -> bool:
        while self._port.clock() < end:
            want = self._want
            if not self._heard:
                await self._port.pause(1.0, "archive")
                continue
            if want is None or self.gap is not None:
                return True  # it belongs to no archive
            piece, data = await self._effect("guest.log-piece", lambda: self._datastore.log_piece(name))
            digest = hmac.new(want.digest_key.encode(), data, hashlib.sha256).hexdigest()
            piece = msgspec.structs.replace(piece, digest=digest)
            answer = await self._send(want, piece, data)
            if isinstance(answer, Done):
                return True
            waiting = await self._effect("guest.log-waiting", self._datastore.log_waiting)
            if isinstance(answer, NotNow) and waiting >= want.budget_mb:
                await self._let_go(want, name)
                return True
            seconds = answer.seconds if isinstance(answer, NotNow) else 2.0
            log.info("a piece of the log is not kept yet", piece=name, answer=str(answer))
            await self._port.pause(min(max(seconds, 0.5), 5.0), "archive")
        return False

    async def _send(self, want: ArchiveWant, piece: Piece, data: bytes) -> Response:
        begun = await self._say("guest.keep", Keep(want.id, piece))
        if not isinstance(begun, KeepInto):
            return begun
        chunks: list[Chunk] = []
        for index, start in enumerate(range(0, len(data), want.chunk_size)):
            plain = data[start : start + want.chunk_size]
            chunk, sealed = await self._pack(index, plain, want.recipient)
            word = KeepChunk(want.id, piece.name, begun.tag, chunk)
            answer = await self._say("guest.keep-chunk", word, sealed)
            if not isinstance(answer, Done):
                return answer
            chunks.append(chunk)
        return await self._say("guest.keep-end", KeepEnd(want.id, piece.name, begun.tag, tuple(chunks)))

    async def _pack(self, index: int, plain: bytes, recipient: str) -> tuple[Chunk, bytes]:
        return await self._effect(
            "guest.pack-log", lambda: self._threads(make_chunk, index, plain, recipient)
        )

    async def _let_go(self, want: ArchiveWant, name: str) -> None:
        """Durable before anybody hears of it: what was let go is never claimed to be there."""
        gap = Gap(want.id, name)
        text = msgspec.json.encode(gap)

        async def write() -> None:
            write_whole(self._path, text, mode=0o640)

        await self._effect("guest.note-gap", write)
        self._gap, self._gap_read = gap, True
        log.warning("the log that waits is beyond its budget: a part of it is let go", piece=name)
        self._port.wake("look")

    async def _say(self, name: str, request: Request, blob: bytes = b"") -> Response:
        try:
            answer, _ = await self._effect(name, lambda: ask(self._control, request, blob))
        except Away as error:
            return NotNow("unreachable", str(error))
        if isinstance(answer, Refused) and answer.code == "diverged":
            log.warning("the archive has another history than this volume", reason=answer.reason)
        return answer

    async def _effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._port.effect(name, work)
