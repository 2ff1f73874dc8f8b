"""The logs of guests, as far as the host has a part in them: what is kept of one, and what a restore reads.

A piece is kept by several calls, each of which may be repeated: begun (the ledger knows its digest from then
on), its parts, and its end with the manifest that this host signs. What is not ended was never kept.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from unstuck.blobs import archive as objects
from unstuck.blobs.keys import Certificate, Signer
from unstuck.blobs.manifest import ManifestError
from unstuck.blobs.objects import Conflict, Problem
from unstuck.core.archive.data import Kept
from unstuck.core.backup.content import Chunk
from unstuck.core.instance.guestwire import (
    AskLog,
    Done,
    FetchLog,
    Keep,
    KeepChunk,
    KeepEnd,
    KeepInto,
    Log,
    LogPart,
    NotNow,
    Response,
)
from unstuck.core.instance.wire import AskLog as AskForLog
from unstuck.core.instance.wire import BeginPiece, BegunPiece, EndPiece, LogGrant, Who
from unstuck.core.instance.wire import LogPart as Granted
from unstuck.host.guestcalls import Desk, Guest, Said, check_chunk, refuse
from unstuck.host.pieces import Pieces, Through

PIECE_MAX: Final = 1 << 30
"""Bytes of one piece of a log, at most."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\Z")
_PLACE: Final = re.compile(r"[A-Za-z0-9:._-]{0,64}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


class _Try:
    """One piece that is being kept: the grant in memory only; lost with us, it is begun anew."""

    def __init__(self, tag: str, begun: BegunPiece, kept: Kept, pieces: Pieces, holder: int) -> None:
        self.tag = tag
        self.begun = begun
        self.kept = kept
        self.pieces = pieces
        self.holder = holder
        self.stored: dict[int, Chunk] = {}


class Archives:
    """The log of one guest: at most one piece is open, and one restore."""

    def __init__(self, desk: Desk, guest: Guest, signer: Signer) -> None:
        self._desk = desk
        self._guest = guest
        self._signer = signer
        self._open: _Try | None = None
        self._identity = ""
        self._parts: dict[str, Granted] = {}
        self._log_pieces: Pieces | None = None

    # --- keeping

    async def keep(self, ask: Keep) -> Response:
        piece = ask.piece
        named = _NAME.match(piece.name) and _PLACE.match(piece.start) and _PLACE.match(piece.stop)
        if not named or not _DIGEST.match(piece.digest) or not 0 < piece.size <= PIECE_MAX:
            raise refuse("invalid", "a piece of the log has a name, a place, a size and a digest")
        if not 0 <= piece.timeline < 2**53 or (piece.start == "") != (piece.stop == ""):
            raise refuse("invalid", "a piece's place in the log is none")
        self._current(ask.archive_id)
        tag, holder = self._desk.port.nonce(), self._guest.incarnation
        word = BeginPiece(self._who(), ask.archive_id, piece, tag, self._signer.public)
        begun = await self._desk.call("keep", "late", lambda: self._desk.control.begin_piece(word))
        if begun.diverged:
            raise refuse("diverged", f"another piece of the log is kept as {piece.name}")
        if begun.known:
            return Done()
        if begun.kept is None:
            raise Said(NotNow(Problem.FAULT, "the control plane granted nothing", 5.0))
        if begun.place is None:
            pieces: Pieces = Through(self._desk.control, self._who, tag)
        else:
            pieces = self._desk.place(begun.place)
        self._open = _Try(tag, begun, begun.kept, pieces, holder)
        return KeepInto(tag)

    async def chunk(self, ask: KeepChunk, blob: bytes) -> Response:
        mine, chunk = self._mine(ask.archive_id, ask.name, ask.tag), ask.chunk
        check_chunk(chunk, mine.kept.chunk_size, len(mine.stored))
        if len(blob) != chunk.sealed_length or await self._desk.digest(blob) != chunk.sealed_digest:
            raise refuse("invalid", f"part {chunk.index} is not what its digest says")
        await self._put(mine, objects.part_key(mine.kept.prefix, chunk.index), blob)
        mine.stored[chunk.index] = chunk
        return Done()

    async def end(self, ask: KeepEnd) -> Response:
        """Sign what was stored, and tell it. Harmless at any repeat."""
        mine = self._mine(ask.archive_id, ask.name, ask.tag)
        stored = tuple(chunk for _, chunk in sorted(mine.stored.items()))
        if ask.chunks != stored:
            raise refuse("invalid", "the parts that it consists of are not those that were stored")
        kept = msgspec.structs.replace(mine.kept, chunks=stored)
        try:
            certificate = msgspec.json.decode(mine.begun.certificate, type=Certificate)
            data = objects.sign(kept, self._signer, certificate)
        except ManifestError as error:
            raise refuse("invalid", str(error)) from None
        except msgspec.DecodeError:
            raise Said(NotNow(Problem.FAULT, "the cloud's certificate cannot be read", 10.0)) from None
        await self._put(mine, objects.manifest_key(kept.prefix), data)
        word = EndPiece(self._who(), ask.archive_id, ask.name, ask.tag, stored)
        await self._desk.call("kept", "late", lambda: self._desk.control.end_piece(word))
        if self._open is mine:
            self._open = None
        return Done()

    async def _put(self, mine: _Try, key: str, data: bytes) -> None:
        try:
            await self._desk.objects(self._guest, "keep-object", lambda: mine.pieces.put_new(key, data))
        except Conflict:
            self._open = None  # our memory of it is another's: under another name of the try all is well
            raise refuse("late", "this try is over") from None

    def _mine(self, archive_id: str, name: str, tag: str) -> _Try:
        self._current(archive_id)
        mine = self._open
        known = mine is not None and (mine.tag, mine.kept.piece.name) == (tag, name)
        if mine is None or not known or mine.holder != self._guest.incarnation:
            raise refuse("late", "this try is over")
        return mine

    def _current(self, archive_id: str) -> None:
        want = self._guest.database.archive
        if want is None or want.id != archive_id:
            raise refuse("late", "this archive goes on no more")

    # --- reading

    def forget(self) -> None:
        """The data is there: the grant has served its purpose."""
        self._identity, self._parts, self._log_pieces = "", {}, None

    async def log(self, ask: AskLog) -> Response:
        grant = await self._granted(ask.after)
        parts = tuple(LogPart(part.name, part.size, part.chunks) for part in grant.parts)
        return Log(grant.identity, parts, grant.more)

    async def fetch(self, ask: FetchLog) -> tuple[Response, bytes]:
        while ask.name not in self._parts:  # a restarted agent of ours begins with the first page
            last = max(self._parts, default="")
            if last >= ask.name:
                raise refuse("gone", "this piece of the log is not granted")
            grant = await self._granted(last)
            if ask.name not in self._parts and not grant.more:
                raise refuse("gone", "this piece of the log is not granted")
        part, pieces = self._parts[ask.name], self._log_pieces
        assert pieces is not None
        if not 0 <= ask.index < len(part.chunks):
            raise refuse("invalid", f"the piece has no part {ask.index}")
        chunk, key = part.chunks[ask.index], objects.part_key(part.prefix, ask.index)
        found = await self._desk.objects(self._guest, "fetch-log", lambda: pieces.get(key))
        if found is None:
            raise refuse("gone", f"part {ask.index} of {ask.name} is not in the blob store")
        if len(found) != chunk.sealed_length or await self._desk.digest(found) != chunk.sealed_digest:
            raise refuse("invalid", f"part {ask.index} of {ask.name} is not the object that was written")
        return Done(), found

    async def _granted(self, after: str) -> LogGrant:
        want = self._guest.database
        if want.origin.point is None:
            raise refuse("gone", "the instance is made to no point in time")
        if want.data_recorded:
            raise refuse("gone", "the instance has its data")
        word = AskForLog(self._who(), after)
        grant = await self._desk.call("log-grant", "gone", lambda: self._desk.control.log_grant(word))
        if not after:
            self._parts = {}
        self._parts.update({part.name: part for part in grant.parts})
        if grant.place is None:
            self._log_pieces = Through(self._desk.control, self._who)
        else:
            self._log_pieces = self._desk.place(grant.place)
        return grant

    def _who(self) -> Who:
        return self._desk.who(self._guest)
