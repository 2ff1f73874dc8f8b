"""Backups, as far as the host has a part in them: what a guest may write, and the signature under it.

A guest writes only its own current attempt, piece by piece, under names that follow from the grant. What is
signed is what this host stored itself; the guest's word for it is compared, and adds what only it can know.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import msgspec

from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import chunk_key
from unstuck.blobs.keys import BadKey, Certificate, Signer, check
from unstuck.blobs.objects import Conflict, Problem
from unstuck.core.backup.content import Chunk, Content, Frame
from unstuck.core.backup.data import Done as Ended
from unstuck.core.backup.data import Gave, Phase
from unstuck.core.instance.guestwire import Done, Finish, GiveUp, NotNow, Renew, Response, Store, Take
from unstuck.core.instance.want import BackupWant
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt, Taken, Who
from unstuck.host.driver import words
from unstuck.host.guestcalls import Desk, Guest, Said, check_chunk, check_content, check_work, refuse
from unstuck.host.ledger import Ledger
from unstuck.host.pieces import Pieces, Through

_PHASES: Final = frozenset(phase.value for phase in Phase)


class Attempt:
    """One that the guest has taken: the grant in memory only, what was stored in the ledger as well."""

    def __init__(self, want: BackupWant, taken: Taken, ledger: Ledger, pieces: Pieces, holder: int) -> None:
        self.backup_id = want.backup_id
        self.nonce = want.nonce
        self.chunk_size = want.chunk_size
        self.taken = taken
        self.ledger = ledger
        self.pieces = pieces
        self.holder = holder
        """The guest agent's incarnation that took it."""
        self.ended = False


class Attempts:
    """The attempts of one guest: at most one is open."""

    def __init__(self, desk: Desk, guest: Guest, signer: Signer) -> None:
        self._desk = desk
        self._guest = guest
        self._signer = signer
        self._open: Attempt | None = None

    async def take(self, ask: Take) -> Response:
        offered = self._offered(ask.nonce)
        if offered.backup_id != ask.backup_id:
            raise refuse("late", "this attempt is not offered")
        if offered.stop is not None:
            raise refuse("late", offered.stop)
        await self._taken(offered)
        return Done()

    async def renew(self, ask: Renew) -> Response:
        check_work(ask.phase, ask.size, ask.idle, ask.put_off)
        if ask.phase not in _PHASES:
            raise refuse("invalid", "`phase` is none")
        self._offered(ask.nonce)
        word = RenewAttempt(self._who(), ask.backup_id, ask.nonce, ask.phase, ask.size, ask.idle, ask.put_off)
        said = await self._desk.call("renew", "late", lambda: self._desk.control.renew(word))
        return Done(said.stop)

    async def store(self, ask: Store, blob: bytes) -> Response:
        attempt = await self._mine(ask.nonce)
        if attempt.ended:
            raise refuse("late", "this attempt has ended")
        chunk, ledger = ask.chunk, attempt.ledger
        check_chunk(chunk, attempt.chunk_size, len(ledger.chunks))
        if len(blob) != chunk.sealed_length or await self._desk.digest(blob) != chunk.sealed_digest:
            raise refuse("invalid", f"piece {chunk.index} is not what its digest says")
        if not self._known(attempt, chunk):
            key = chunk_key(attempt.taken.prefix, chunk.index)
            try:
                await self._desk.objects(self._guest, "store", lambda: attempt.pieces.put_new(key, blob))
            except Conflict:
                raise refuse("invalid", f"piece {chunk.index} was stored with other bytes") from None
            if not self._known(attempt, chunk):
                await self._note(lambda: ledger.add(chunk))
        return Done()

    def _known(self, attempt: Attempt, chunk: Chunk) -> bool:
        """Stored already. Raises :class:`Said` for another piece of this number."""
        before = attempt.ledger.chunks.get(chunk.index)
        if before is not None and before != chunk:
            raise refuse("invalid", f"piece {chunk.index} was stored with other bytes")
        return before is not None

    async def finish(self, ask: Finish) -> Response:
        """Sign what was stored, write the manifest last, and tell it. Harmless at any repeat."""
        try:
            attempt = await self._mine(ask.nonce, finishing=True)
        except Said as said:
            if said.late and self._written(ask.nonce):
                return Done()  # it was ended, and our answer was lost together with our memory
            raise
        check_content(ask.content, attempt.chunk_size)
        stored = [chunk for _, chunk in sorted(attempt.ledger.chunks.items())]
        if list(ask.content.chunks) != stored:
            raise refuse("invalid", "the pieces that it consists of are not those that were stored")
        _check_origin(ask.content, attempt.taken.frame)
        if attempt.ledger.digest is None:
            written = await self._write(attempt, ask.content)
            await self._note(lambda: attempt.ledger.finish(written))
        assert attempt.ledger.digest is not None
        if not attempt.ended:
            await self._end(attempt.backup_id, attempt.nonce, Ended(attempt.ledger.digest))
            attempt.ended = True
        return Done()

    async def give_up(self, ask: GiveUp) -> Response:
        gave = Gave(ask.reason.replace("\0", "")[:500], ask.final)
        await self._end(ask.backup_id, ask.nonce, gave)
        if self._open is not None and self._open.nonce == ask.nonce:
            self._open = None
        return Done()

    # --- which attempt

    def _written(self, nonce: str) -> bool:
        """The ledger says that this attempt's manifest was written."""
        try:
            return Ledger(self._guest.folder, nonce).digest is not None
        except (OSError, ValueError):
            return False

    def _offered(self, nonce: str) -> BackupWant:
        """The attempt that the store wants of this guest now, if it is this one."""
        offered = self._guest.database.backup
        if offered is None or offered.nonce != nonce:
            raise refuse("late", "this attempt is over")
        return offered

    async def _mine(self, nonce: str, *, finishing: bool = False) -> Attempt:
        """The attempt that this agent has taken. After a restart of ours its grant is asked for again."""
        attempt = self._open
        known = attempt is not None and attempt.nonce == nonce and attempt.holder == self._guest.incarnation
        if known and attempt is not None and finishing and attempt.ledger.digest is not None:
            return attempt  # the store may have heard of it already, and offer it no more
        offered = self._offered(nonce)
        if offered.stop is not None:
            # Not "late": whoever is refused says no word, and the backup would wait for its lease to end.
            raise Said(Done(offered.stop))
        if known and attempt is not None:
            return attempt
        return await self._taken(offered)

    async def _taken(self, offered: BackupWant) -> Attempt:
        holder = self._guest.incarnation
        word = TakeAttempt(self._who(), offered.backup_id, offered.nonce, self._signer.public)
        taken = await self._desk.call("take", "late", lambda: self._desk.control.take(word))
        attempt = self._open
        if attempt is not None and attempt.nonce == offered.nonce and attempt.holder == holder:
            return attempt  # another request came first, and has stored pieces since
        if holder != self._guest.incarnation:
            raise refuse("superseded", "a newer process of the agent has come")
        try:
            ledger = Ledger(self._guest.folder, offered.nonce)
            ledger.begin()
        except (OSError, ValueError) as error:
            raise Said(_disk(error)) from error
        self._open = Attempt(offered, taken, ledger, self._pieces(taken, offered.nonce), holder)
        return self._open

    def _pieces(self, taken: Taken, nonce: str) -> Pieces:
        if taken.place is None:
            return Through(self._desk.control, self._who, nonce)
        return self._desk.place(taken.place)

    # --- effects

    def _who(self) -> Who:
        return self._desk.who(self._guest)

    async def _note(self, work: Callable[[], None]) -> None:
        """Write into the ledger. What could not be written was not done: the guest asks again."""

        async def write() -> None:
            work()

        try:
            await self._desk.port.effect("guests.note", write)
        except OSError as error:
            raise Said(_disk(error)) from error

    async def _end(self, backup_id: str, nonce: str, said: Ended | Gave) -> None:
        word = EndAttempt(self._who(), backup_id, nonce, said)
        verb = "done" if isinstance(said, Ended) else "gave"
        await self._desk.call(verb, "late", lambda: self._desk.control.end(word))

    async def _write(self, attempt: Attempt, content: Content) -> str:
        """The signed manifest, create-only; its digest."""
        manifest = manifest_of(attempt.taken.frame, content)
        try:
            certificate = msgspec.json.decode(attempt.taken.certificate, type=Certificate)
            data = manifests.sign(manifest, self._signer, certificate)
        except manifests.ManifestError as error:
            raise refuse("invalid", str(error)) from None
        except msgspec.DecodeError:
            raise Said(NotNow(Problem.FAULT, "the cloud's certificate cannot be read", 10.0)) from None
        if certificate.public != self._signer.public:
            raise Said(NotNow(Problem.FAULT, "the cloud certified another key than this host's", 10.0))
        key = manifests.manifest_key(attempt.taken.prefix)
        try:
            await self._desk.objects(self._guest, "manifest", lambda: attempt.pieces.put_new(key, data))
        except Conflict:
            data = await self._written_before(attempt, key, manifest)
        return manifests.digest(data)

    async def _written_before(self, attempt: Attempt, key: str, manifest: manifests.Manifest) -> bytes:
        """A manifest that says the same under an earlier certificate of this host is as good."""
        found = await self._desk.objects(self._guest, "reread", lambda: attempt.pieces.get(key))
        try:
            signed = msgspec.json.decode(found or b"", type=manifests.Signed)
            check(signed.manifest.encode(), signed.signature, self._signer.public)
            if msgspec.json.decode(signed.manifest, type=manifests.Manifest) == manifest:
                return found or b""
        except (msgspec.DecodeError, BadKey, UnicodeError):
            pass
        raise refuse("invalid", "this attempt has another manifest already")


def manifest_of(frame: Frame, content: Content) -> manifests.Manifest:
    """What the store knows of the backup, and what the guest says of its content."""
    return manifests.Manifest(**{**msgspec.structs.asdict(content), **msgspec.structs.asdict(frame)})


def _check_origin(content: Content, frame: Frame) -> None:
    """An agent that knows nothing of incremental backups makes a full one, and signs it as what it is not."""
    if content.parent != frame.parent:
        wanted = "a full backup" if frame.parent is None else f"a child of backup {frame.parent.id}"
        raise refuse("invalid", f"the guest's agent did not make {wanted}")
    if frame.generation and content.generation not in ("", frame.generation):
        raise refuse("invalid", "the guest's agent has backed up other data than this instance's")


def _disk(error: OSError | ValueError) -> NotNow:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = words(error) if isinstance(error, OSError) else str(error)
    return NotNow(Problem.FULL if full else Problem.FAULT, f"on the host: {reason}", 5.0)
