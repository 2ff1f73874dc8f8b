"""The agents' API for guests without HTTP: store functions, and calls at the blob store between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from unstuck.blobs import keys, manifest
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.manifest import ManifestError, manifest_key
from unstuck.blobs.objects import BlobError, Objects, Problem
from unstuck.core.agents import Answer
from unstuck.core.backup.content import Content
from unstuck.core.backup.data import Phase
from unstuck.core.errors import Refused as ApiRefused
from unstuck.core.instance.wire import (
    AskGrant,
    AskLog,
    BeginPiece,
    BegunPiece,
    EndAttempt,
    EndPiece,
    GuestRegister,
    GuestRegistered,
    GuestReport,
    LogGrant,
    RenewAttempt,
    Renewed,
    RestoreGrant,
    TakeAttempt,
    Taken,
    Who,
)
from unstuck.host.control import Behind, Declined, Refused, Superseded, Unreachable
from unstuck.host.guestcalls import SUPERSEDED
from unstuck.sim.blobs import DEADLINE, place_of
from unstuck.sim.engine import NoReply
from unstuck.store import agents, archive_pieces, backup_attempts, generation
from unstuck.store.engine import Tx
from unstuck.store.instance_guests import GuestSuperseded, guest_register, guest_report

if TYPE_CHECKING:
    from unstuck.sim.databases import Databases

P = ParamSpec("P")
T = TypeVar("T")


class SimDatabaseControl:
    """Implements :class:`unstuck.host.control.DatabaseControl` for one host."""

    def __init__(self, world: Databases, host_id: str) -> None:
        self._world = world
        self._host_id = host_id

    def _call(self, tx: Callable[Concatenate[Tx, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._reach()
        try:
            return self._world.store.transact(tx, self._host_id, *args, **kwargs)
        except agents.Superseded as error:
            raise Superseded(str(error)) from error
        except agents.UnknownHost as error:
            raise Unreachable("no host has this credential") from error
        except GuestSuperseded as error:
            raise Refused(str(error), SUPERSEDED) from error
        except agents.Stale as error:
            raise Refused(str(error)) from error
        except generation.Behind as error:
            raise Behind(str(error)) from error
        except (ApiRefused, keys.BadKey) as error:
            raise Declined(str(error)) from error

    def _reach(self) -> None:
        if not self._world.control_up():
            raise Unreachable("the control plane is down")

    async def guest_register(self, ask: GuestRegister) -> GuestRegistered:
        answer = self._call(guest_register, ask)
        self._world.wake("control", f"host:{self._host_id}")
        return answer

    async def guest_report(self, ask: GuestReport) -> None:
        noted = self._call(guest_report, ask)
        if noted.bumped:
            self._world.wake(f"host:{self._host_id}")
        if noted.changed:
            self._world.wake("control")

    async def take(self, ask: TakeAttempt) -> Taken:
        granted = self._call(backup_attempts.take_attempt, ask, self._world.keyring)
        place = place_of(self._world.stores.remote(granted.location))
        return Taken(granted.frame, granted.prefix, granted.certificate, place)

    async def renew(self, ask: RenewAttempt) -> Renewed:
        return Renewed(self._call(backup_attempts.renew_attempt, ask, Phase(ask.phase)))

    async def end(self, ask: EndAttempt) -> None:
        self._call(backup_attempts.end_attempt, ask)
        self._world.wake("backups")

    async def restore_grant(self, ask: AskGrant) -> RestoreGrant:
        granted = self._call(backup_attempts.grant_restore, ask.who, self._world.keyring, ask.above)
        found = granted.row
        prefix, digest = found.prefix, found.digest
        assert prefix is not None
        cloud_key = self._world.keyring.public.signing

        def content_of(objects: Objects) -> Content:
            data = objects.get(manifest_key(prefix))
            if data is None or manifest.digest(data) != digest:
                raise ManifestError("the manifest is not the one that was verified")
            read = manifest.read(data, cloud_key, prefix)
            if read.parent != granted.parent:
                raise ManifestError("its parent is another one than the manifest says")
            return manifest.content(read)

        try:
            content = await self._at_store(found.location, content_of)
        except ManifestError as error:
            raise Declined(str(error)) from error
        place = place_of(self._world.stores.remote(found.location))
        return RestoreGrant(found.id, prefix, content, granted.identity, place, granted.parents)

    async def begin_piece(self, ask: BeginPiece) -> BegunPiece:
        granted = self._call(archive_pieces.begin_piece, ask, self._world.keyring)
        if granted.diverged:
            self._world.wake("control", f"host:{self._host_id}")
        if granted.known or granted.diverged:
            return BegunPiece(granted.known, granted.diverged)
        place = place_of(self._world.stores.remote(granted.location))
        return BegunPiece(kept=granted.kept, certificate=granted.certificate, place=place)

    async def end_piece(self, ask: EndPiece) -> None:
        self._call(archive_pieces.end_piece, ask)

    async def log_grant(self, ask: AskLog) -> LogGrant:
        page = self._call(archive_pieces.grant_log, ask, self._world.keyring)
        place = place_of(self._world.stores.remote(page.location))
        return LogGrant(page.identity, page.parts, page.more, place)

    async def _put_log(self, who: Who, nonce: str, key: str, data: bytes) -> None:
        folder = key.rpartition("/")[0]
        prefix, piece, tag = folder.rsplit("/", 2)
        if tag != nonce:
            raise Declined("the nonce is not the one in the object's key")

        def check() -> str:
            return self._call(archive_pieces.may_keep, who, prefix, piece, tag)

        check()
        location = check()
        await self._at_store(location, lambda objects: objects.put_new(key, data))

    async def put_object(self, who: Who, nonce: str, key: str, data: bytes) -> None:
        if key.startswith("archives/"):
            await self._put_log(who, nonce, key, data)
            return
        backup_id, attempt, name = _parts(key, nonce)

        def check() -> str:
            return self._call(backup_attempts.may_write, who, backup_id, attempt, nonce)

        check()
        location = check()  # once more when the object is here
        target = f"{prefix_of(backup_id, attempt, nonce)}/{name}"
        await self._at_store(location, lambda objects: objects.put_new(target, data))

    async def get_object(self, who: Who, key: str) -> bytes | None:
        if key.startswith("archives/"):
            folder = key.rpartition("/")[0]
            name = folder.split("/")[-2]
            location = self._call(archive_pieces.may_read_log, who, folder, name)
            return await self._at_store(location, lambda objects: objects.get(key))
        chain = self._call(backup_attempts.may_read, who)
        found = next((row for row in chain if row.prefix == key.rpartition("/")[0]), None)
        if found is None:
            raise Refused("this is not the backup that the instance is made from")
        return await self._at_store(found.location, lambda objects: objects.get(key))

    async def answer(self, ask_id: str, answer: Answer) -> None:
        self._call(agents.answer_ask, answer.incarnation, ask_id, answer.text)

    async def _at_store(self, location: str, work: Callable[[Objects], T]) -> T:
        objects = self._world.stores.objects(location)
        try:
            found = await self._world.blobs.call(DEADLINE, lambda: work(objects))
        except NoReply:
            raise BlobError(Problem.UNREACHABLE, f"no answer within {DEADLINE:.0f} s") from None
        self._reach()  # the control plane that was to pass the answer on may be gone
        return found


def _parts(key: str, nonce: str) -> tuple[str, int, str]:
    """(backup, attempt, name) of a key ``backups/backup/attempt-nonce/name``."""
    root, backup_id, run, name = key.split("/")
    number, _, named = run.partition("-")
    if root != "backups" or named != nonce:
        raise Declined("the nonce is not the one in the object's key")
    return backup_id, int(number), name
