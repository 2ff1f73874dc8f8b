"""A control plane's part for guests, in this process: the real rules of attempts (``core/backup``), real keys
and signatures, a real folder of objects. What it was told stays when host agents come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.keys import Signer, new_identity, recipient_of, wrap
from unstuck.blobs.objects import FolderObjects, Objects
from unstuck.core.agents import Answer
from unstuck.core.backup import change
from unstuck.core.backup.content import Content, Frame
from unstuck.core.backup.control import stop_wanted
from unstuck.core.backup.data import Attempt, Backup, Limits, Phase
from unstuck.core.instance.want import BackupWant, DatabaseWant, Origin
from unstuck.core.instance.wire import (
    AskGrant,
    EndAttempt,
    GuestRegister,
    GuestRegistered,
    GuestReport,
    Place,
    RenewAttempt,
    Renewed,
    RestoreGrant,
    TakeAttempt,
    Taken,
    Who,
)
from unstuck.core.server.data import Fence, Flavor, Machine, Power, Spec, Want
from unstuck.host.control import Refused

T = TypeVar("T")

SERVER = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
HOST = "11111111-2222-4333-8444-555555555555"
PIECE = 1 << 20


class GuestCloud:
    """One instance on one server, and its backup. Times stand still: none of these tests is about them."""

    def __init__(self, folder: Path, *, direct: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root = folder
        self.objects: Objects = FolderObjects(folder)
        self.place = Place(f"file://{folder}", "", "", "", "") if direct else None
        self.signer = Signer.new()
        self.identity = new_identity()
        self.key = wrap("the backup's private key", [recipient_of(self.identity)])
        self.backup: Backup | None = None
        self.starts: list[str] = []
        self.reports: list[GuestReport] = []
        self.answers: dict[str, str] = {}
        self.restore: RestoreGrant | None = None
        self.origin = Origin()
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def offer(self, nonce: str = "n1") -> Backup:
        self.backup = Backup(id="backup-1", created=0.0, limits=Limits(), attempt=Attempt(1, nonce, 0.0))
        return self.backup

    def want(self, *, chunk_size: int = PIECE, data_recorded: bool = False, version: int = 1) -> Want:
        offered = None
        if self.backup is not None and self.backup.attempt.report is None:
            attempt = self.backup.attempt
            offered = BackupWant(
                self.backup.id, attempt.number, attempt.nonce, recipient_of(self.identity), chunk_size, {},
                stop_wanted(self.backup),
            )  # fmt: skip
        database = DatabaseWant(
            instance_id="instance", datastore="postgresql", version="15", generation="g", ram_mb=512,
            data_recorded=data_recorded, origin=self.origin, port=5432, cidrs=(), backup=offered,
        )  # fmt: skip
        spec = Spec(
            "db", "db", "project", "nova", Flavor(1, 512, 1), (), data=True, machine=Machine.CONTAINER
        )
        return Want(
            server_id=SERVER, fence=Fence(1, 1), nonce="disk", version=version, intent=1, power=Power.ON,
            edge=1, soft=False, patience=0.0, gone=False, disk_recorded=True, spec=spec, database=database,
        )  # fmt: skip

    @property
    def prefix(self) -> str:
        assert self.backup is not None
        return prefix_of(self.backup.id, self.backup.attempt.number, self.backup.attempt.nonce)

    # --- the calls, as plain functions

    def register(self, ask: GuestRegister) -> GuestRegistered:
        with self._lock:
            if ask.start not in self.starts:
                self.starts.append(ask.start)
                if self.backup is not None:
                    self.backup = change.superseded(self.backup, len(self.starts))
            return GuestRegistered(self.starts.index(ask.start) + 1)

    def report(self, ask: GuestReport) -> None:
        self.reports.append(ask)

    def take(self, ask: TakeAttempt) -> Taken:
        backup = self._live()
        self.backup = _late(lambda: change.claim(backup, ask.nonce, ask.who.guest, 0.0))
        frame = Frame(
            cloud_id="cloud", project_id="project", instance_id="instance", instance_name="db",
            backup_id=backup.id, backup_name="b", attempt=backup.attempt.number, nonce=ask.nonce,
            taken_at=0.0, recipients=("r",), key=self.key,
        )  # fmt: skip
        certificate = msgspec.json.encode(self.signer.certify(HOST, ask.signing_key)).decode()
        return Taken(frame, self.prefix, certificate, self.place)

    def renew(self, ask: RenewAttempt) -> Renewed:
        backup = self._live()
        phase = Phase(ask.phase)
        self.backup = _late(
            lambda: change.renew(
                backup, ask.nonce, ask.who.guest, phase, ask.size, ask.idle, 0.0, ask.put_off
            )
        )
        return Renewed(stop_wanted(self.backup))

    def end(self, ask: EndAttempt) -> None:
        backup = self._live()
        self.backup = _late(lambda: change.report(backup, ask.nonce, ask.who.guest, ask.said, 0.0))

    def grant(self, ask: AskGrant) -> RestoreGrant:
        if self.restore is None:
            raise Refused("this instance is not made from a backup")
        return self.restore

    def may_restore(self, content: Content) -> None:
        """From what was backed up."""
        assert self.backup is not None
        self.restore = RestoreGrant(self.backup.id, self.prefix, content, self.identity, self.place)
        self.origin = Origin(backup_id=self.backup.id)

    def _live(self) -> Backup:
        if self.backup is None:
            raise Refused("there is no backup")
        return self.backup


def _late(work: Callable[[], Backup]) -> Backup:
    try:
        return work()
    except change.Late as error:
        raise Refused(str(error)) from error


class InProcess:
    """The same as :class:`unstuck.host.control.DatabaseControl`, without a wire. ``before`` may raise."""

    def __init__(self, cloud: GuestCloud) -> None:
        self.cloud = cloud
        self.fails: dict[str, Exception] = {}
        """By call: raised instead of doing it; ``name+``: after it was done, so that its answer is lost."""

    async def _do(self, name: str, work: Callable[[], T]) -> T:
        self.cloud.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)
        answer = work()
        if f"{name}+" in self.fails:
            raise self.fails.pop(f"{name}+")
        return answer

    async def guest_register(self, ask: GuestRegister) -> GuestRegistered:
        return await self._do("register", lambda: self.cloud.register(ask))

    async def guest_report(self, ask: GuestReport) -> None:
        await self._do("report", lambda: self.cloud.report(ask))

    async def take(self, ask: TakeAttempt) -> Taken:
        return await self._do("take", lambda: self.cloud.take(ask))

    async def renew(self, ask: RenewAttempt) -> Renewed:
        return await self._do("renew", lambda: self.cloud.renew(ask))

    async def end(self, ask: EndAttempt) -> None:
        await self._do("end", lambda: self.cloud.end(ask))

    async def restore_grant(self, ask: AskGrant) -> RestoreGrant:
        return await self._do("grant", lambda: self.cloud.grant(ask))

    async def put_object(self, who: Who, nonce: str, key: str, data: bytes) -> None:
        await self._do("put", lambda: self.cloud.objects.put_new(key, data))

    async def get_object(self, who: Who, key: str) -> bytes | None:
        return await self._do("get", lambda: self.cloud.objects.get(key))

    async def answer(self, ask_id: str, answer: Answer) -> None:
        await self._do("answer", lambda: self.cloud.answers.__setitem__(ask_id, answer.text))
