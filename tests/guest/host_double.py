"""A host for guest agents in tests: it keeps every promise of the guests' protocol, over a folder of objects.

It runs in the test's process, on a thread of its own; agents are processes and reach it over a unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from unstuck.blobs.chunks import chunk_key, prefix_of
from unstuck.blobs.digest import sha256
from unstuck.blobs.objects import BlobError, Conflict, FolderObjects
from unstuck.core.archive.data import Piece
from unstuck.core.backup.content import Chunk, Content
from unstuck.core.instance.guestwire import (
    PROTOCOL,
    Answered,
    AskLog,
    AskRestore,
    Done,
    Fetch,
    FetchLog,
    Finish,
    GiveUp,
    GuestAsk,
    Hello,
    Keep,
    KeepChunk,
    KeepEnd,
    KeepInto,
    Log,
    LogPart,
    Look,
    NotNow,
    Orders,
    Refused,
    Renew,
    Request,
    Response,
    Restore,
    Seen,
    Store,
    Take,
    Welcome,
)
from unstuck.core.instance.requests import DatabaseAnswer, DatabaseRequest, Describe, MoreRequest
from unstuck.core.instance.view import DatabaseView
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest.control import Away

_HEAD = struct.Struct("!II")


class Host:
    """What the store knows, and what was heard. Fields are set by the test while agents run."""

    def __init__(self, objects: FolderObjects) -> None:
        self.objects = objects
        self.protocol = PROTOCOL
        self.heartbeat = 0.5
        self.want: DatabaseWant | None = None
        self.version = 0
        self.view: DatabaseView | None = None
        self.views: list[DatabaseView] = []
        self.incarnation = 0
        self.start = ""
        self.asks: dict[str, GuestAsk] = {}
        self.answers: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        """Nonces that were taken, and the incarnation that took each."""
        self.stop: dict[str, str] = {}
        self.over: dict[str, str] = {}
        self.renewals: list[Renew] = []
        self.stored: dict[str, dict[int, Chunk]] = {}
        self.finished: dict[str, Content] = {}
        self.gave_up: dict[str, GiveUp] = {}
        self.source: tuple[str, Content, str] | None = None
        """Prefix, content and key of what a restore may read."""
        self.above: list[tuple[str, Content, str]] = []
        """The same of its parent, that one's parent, and so on."""
        self.kept: dict[str, tuple[Piece, tuple[Chunk, ...]]] = {}
        """Pieces of the log that are kept, of all guests of this host."""
        self.trying: dict[str, tuple[str, str, Piece, dict[int, Chunk]]] = {}
        self.keeps: list[str] = []
        self.lose_answer_of: str | None = None
        """The name of a piece whose end is noted, and the answer to that is lost."""
        self.log: dict[str, tuple[Piece, tuple[Chunk, ...]]] = {}
        self.log_key = ""
        """What a restore to a point reads."""
        self.away = False
        self.full: str | None = None
        """Why the blob store takes nothing now."""
        self.slow = 0.0
        self.calls: list[str] = []
        self.fetched: list[int] = []

    # --- what a test does

    def wants(self, want: DatabaseWant) -> None:
        self.want = want
        self.version += 1

    def ask_database(
        self, request: DatabaseRequest | MoreRequest | Describe, seconds: float = 30.0
    ) -> DatabaseAnswer:
        name = f"ask-{len(self.asks) + len(self.answers)}-{time.monotonic_ns()}"
        self.asks[name] = GuestAsk(name, msgspec.json.encode(request).decode(), seconds)
        self.version += 1
        wait_for(lambda: name in self.answers, seconds + 10)
        return msgspec.json.decode(self.answers[name], type=DatabaseAnswer)

    # --- what an agent asks

    async def ask(self, request: Request, blob: bytes, incarnation: int) -> tuple[Response, bytes]:
        self.calls.append(type(request).__name__)
        if self.away:
            raise Away("the host is away")
        if isinstance(request, Hello):
            return self._hello(request), b""
        if incarnation != self.incarnation:
            return Refused("superseded", "a newer agent has come"), b""
        match request:
            case Look(since, wait):
                return await self._look(since, wait), b""
            case Seen(view):
                self.view = view
                self.views.append(view)
            case Answered(ask_id, text):
                self.answers[ask_id] = text
                self.asks.pop(ask_id, None)
            case Keep() | KeepChunk() | KeepEnd():
                return await self._of_log(request, blob), b""
            case AskLog(after):
                names = sorted(name for name in self.log if name > after)
                parts = [LogPart(name, self.log[name][0].size, self.log[name][1]) for name in names[:2]]
                return Log(self.log_key, tuple(parts), len(names) > 2), b""
            case FetchLog(name, index):
                self.fetched.append(index)
                return Done(), await asyncio.to_thread(self.objects.get, f"log/{name}/{index}") or b""
            case Fetch(index, above):
                return await self._fetch(index, above)
            case _:
                return await self._of_backup(request, blob), b""
        return Done(), b""

    def _hello(self, hello: Hello) -> Response:
        if hello.protocol != self.protocol:
            return Refused("protocol", f"the host speaks {self.protocol}")
        if hello.start != self.start:
            self.incarnation += 1
            self.start = hello.start
        return Welcome(self.incarnation, self.heartbeat, 30.0)

    async def _look(self, since: int, wait: float) -> Orders:
        end = time.monotonic() + wait
        while since == self.version and time.monotonic() < end:  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.02)
        return Orders(self.version, self.want, tuple(self.asks.values()))

    async def _of_backup(self, request: Request, blob: bytes) -> Response:
        if isinstance(request, AskRestore):
            if self.source is None:
                return Refused("gone", "there is no such backup")
            source = [self.source, *self.above][request.above]
            return Restore(source[1], source[2], len(self.above) - request.above)
        assert isinstance(request, Take | Renew | Store | Finish | GiveUp)
        nonce = request.nonce
        if nonce in self.over:
            return Refused("late", self.over[nonce])
        if self.want is None:
            return NotNow("unreachable", "nothing was told yet", 0.2)
        backup = self.want.backup
        if backup is None or backup.nonce != nonce:
            return Refused("late", "the attempt is over")
        if isinstance(request, Take):
            if self.attempts.setdefault(nonce, self.incarnation) != self.incarnation:
                return Refused("late", "another agent took it")
            return Done()
        if self.attempts.get(nonce) != self.incarnation:
            return Refused("late", "another agent took it")
        match request:
            case Renew():
                self.renewals.append(request)
                return Done(self.stop.get(nonce))
            case GiveUp():
                self.gave_up[nonce] = request
                self.over[nonce] = "given up"
                return Done()
            case Store(_, chunk):
                return await self._store(backup.backup_id, backup.attempt, nonce, chunk, blob)
            case Finish(_, content):
                if content.chunks != tuple(self.stored.get(nonce, {}).values()):
                    ordered = tuple(self.stored[nonce][i] for i in sorted(self.stored[nonce]))
                    if content.chunks != ordered:
                        return Refused("invalid", "not what was stored")
                self.finished[nonce] = content
                self.over[nonce] = "finished"
                return Done()

    async def _of_log(self, request: Keep | KeepChunk | KeepEnd, blob: bytes) -> Response:
        want = None if self.want is None else self.want.archive
        if self.full is not None:
            return NotNow("full", self.full, 0.2)
        if want is None or want.id != request.archive_id:
            return Refused("late", "this archive goes on no more")
        if isinstance(request, Keep):
            piece = request.piece
            self.keeps.append(piece.name)
            known = self.kept.get(piece.name)
            if known is not None:
                same = known[0].digest == piece.digest
                return Done() if same else Refused("diverged", f"{piece.name} is another")
            self.trying[piece.name] = ("t", want.id, piece, {})
            return KeepInto(f"t{len(self.keeps)}")
        _, _, piece, chunks = self.trying[request.name]
        if isinstance(request, KeepChunk):
            if len(blob) != request.chunk.sealed_length or sha256(blob) != request.chunk.sealed_digest:
                return Refused("invalid", "the object is not what was said")
            path = self.objects.root / "log" / request.name / str(request.chunk.index)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(blob)
            chunks[request.chunk.index] = request.chunk
            await asyncio.sleep(self.slow)
            return Done()
        assert request.chunks == tuple(chunks[index] for index in sorted(chunks))
        self.kept[request.name] = (piece, request.chunks)
        if self.lose_answer_of == request.name:
            self.lose_answer_of = None
            raise Away("the answer was lost")
        return Done()

    async def _store(self, backup_id: str, attempt: int, nonce: str, chunk: Chunk, blob: bytes) -> Response:
        if self.full is not None:
            return NotNow("full", self.full, 0.2)
        await asyncio.sleep(self.slow)
        if len(blob) != chunk.sealed_length or sha256(blob) != chunk.sealed_digest:
            return Refused("invalid", "the object is not what was said")
        key = chunk_key(prefix_of(backup_id, attempt, nonce), chunk.index)
        try:
            await asyncio.to_thread(self.objects.put_new, key, blob)
        except BlobError as error:
            return NotNow(error.problem.value, error.reason, 0.2)
        except Conflict:
            return Refused("invalid", "another object has this name")
        self.stored.setdefault(nonce, {})[chunk.index] = chunk
        return Done()

    async def _fetch(self, index: int, above: int) -> tuple[Response, bytes]:
        self.fetched.append(index)
        if self.source is None:
            return Refused("gone", "there is no such backup"), b""
        if self.full is not None:
            return NotNow("unreachable", self.full, 0.2), b""
        await asyncio.sleep(self.slow)
        data = await asyncio.to_thread(
            self.objects.get, chunk_key([self.source, *self.above][above][0], index)
        )
        if data is None:
            return Refused("gone", f"piece {index} is not there"), b""
        return Done(), data


class Served:
    """The host behind a unix socket."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._serve, self._path))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(RuntimeError):
            self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request: who asks says its incarnation first, as a channel would know it."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            incarnation, text, blob = await receive(reader)
            try:
                request: Request = msgspec.json.decode(text, type=Request)
                answer, back = await self._host.ask(request, blob, incarnation)
                await send(writer, 0, msgspec.json.encode(answer), back)
            except Away:
                pass
        writer.close()


async def send(writer: asyncio.StreamWriter, number: int, text: bytes, blob: bytes) -> None:
    writer.write(struct.pack("!I", number) + _HEAD.pack(len(text), len(blob)) + text)
    writer.write(blob)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    (number,) = struct.unpack("!I", await reader.readexactly(4))
    text, blob = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return number, await reader.readexactly(text), await reader.readexactly(blob)


class SocketControl:
    """The agent's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._incarnation = 0
        self._bulk: dict[str, set[asyncio.StreamWriter]] = {}

    def forget(self, nonce: str) -> None:
        for writer in self._bulk.pop(nonce, ()):
            writer.transport.abort()

    async def ask(self, request: Request, blob: bytes = b"") -> tuple[Response, bytes]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 20)
            if isinstance(request, Store | Finish):
                self._bulk.setdefault(request.nonce, set()).add(writer)
            try:
                await send(writer, self._incarnation, msgspec.json.encode(request), blob)
                _, text, back = await receive(reader)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Away(str(error)) from error
        answer: Any = msgspec.json.decode(text, type=Response)
        if isinstance(answer, Welcome):
            self._incarnation = answer.incarnation
        return answer, back


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Its first true value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(0.02)
    return value
