"""An instance in a placed server, its backup, and what its host says of it, for the store's tests."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from tests.backup_world import PLACES, add_instance, backup_row, fence_of, new_keyring
from tests.store.play import Cloud
from unstuck.blobs import keys
from unstuck.core.backup.data import Backup, Done, Gave, Phase
from unstuck.core.backup.limits import Wish
from unstuck.core.backup.status import status
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt, Who
from unstuck.store import backup_attempts, backup_work, backups
from unstuck.store.backup_rows import BackupRow
from unstuck.store.backup_work import Begun
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.database import backups as table

_numbers = itertools.count(1)
SIGNING = keys.Signer.new().public
DIGEST = "d" * 64


class Databases(Cloud):
    """One host with an instance in server ``a``; its agent has incarnation 1."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store)
        self.keyring = new_keyring(folder)
        self.host(ram_mb=4096)
        self.active("a")
        self.instance = store.transact(add_instance, "a")

    def new(self, instance: str | None = None, **more: Any) -> backups.NewBackup:
        number = next(_numbers)
        limits = Wish(**more.pop("limits", {}))
        return backups.NewBackup(
            id=f"b-{number}", nonce=f"nonce{number}", name="nightly",
            instance_id=instance or self.instance, limits=limits, **more,
        )  # fmt: skip

    def create_tx(self, tx: Tx, new: backups.NewBackup, project: str | None = "project") -> BackupRow:
        return backups.create_backup(tx, new, project, keyring=self.keyring, places=PLACES)

    def backup(self, **more: Any) -> str:
        new = self.new(**more)
        return self.store.transact(self.create_tx, new).id

    def who(self, server: str = "a", guest: int = 1) -> Who:
        return Who(
            incarnation=self.agents["h"].incarnation, server_id=server,
            fence=fence_of(self.store, server), guest=guest,
        )  # fmt: skip

    def nonce(self, backup_id: str) -> str:
        return self.facts(backup_id).attempt.nonce

    def take_ask(self, backup_id: str, guest: int = 1, nonce: str | None = None) -> TakeAttempt:
        return TakeAttempt(self.who(guest=guest), backup_id, nonce or self.nonce(backup_id), SIGNING)

    def take(self, backup_id: str, guest: int = 1, nonce: str | None = None) -> backup_attempts.Grant:
        ask = self.take_ask(backup_id, guest, nonce)
        return self.store.transact(backup_attempts.take_attempt, "h", ask, self.keyring)

    def renew(self, backup_id: str, *, guest: int = 1, nonce: str | None = None, size: int = 1,
              idle: float = 0.0) -> str | None:  # fmt: skip
        ask = RenewAttempt(
            self.who(guest=guest), backup_id, nonce or self.nonce(backup_id), "copying", size, idle
        )
        return self.store.transact(backup_attempts.renew_attempt, "h", ask, Phase.COPYING)

    def end_ask(
        self, backup_id: str, said: Done | Gave, guest: int = 1, nonce: str | None = None
    ) -> EndAttempt:
        return EndAttempt(self.who(guest=guest), backup_id, nonce or self.nonce(backup_id), said)

    def end(self, backup_id: str, said: Done | Gave, guest: int = 1, nonce: str | None = None) -> None:
        self.store.transact(backup_attempts.end_attempt, "h", self.end_ask(backup_id, said, guest, nonce))

    def begin(self, backup_id: str, owner: str = "me", nonce: str | None = None) -> Begun:
        return self.store.transact(
            backup_work.begin_step, backup_id, owner, nonce or f"next{next(_numbers)}", 60.0
        )

    def due(self) -> list[str]:
        return [item.backup_id for item in self.store.read(backup_work.due_backups, 100)]

    def row(self, backup_id: str) -> BackupRow:
        return backup_row(self.store, backup_id)

    def facts(self, backup_id: str) -> Backup:
        return self.row(backup_id).backup

    def shown(self, backup_id: str) -> str:
        return status(self.facts(backup_id))

    def look_now(self, backup_id: str) -> None:
        """As if its next look had come."""
        due = sa.update(table).where(table.c.id == backup_id, sa.not_(table.c.settled)).values(next_look=0.0)
        self.store.transact(lambda tx: tx.execute(due))

    def age(self, backup_id: str, seconds: float) -> None:
        """Everything that is known of it happened so much earlier."""

        def change(tx: Tx) -> None:
            text = tx.execute(sa.select(table.c.facts).where(table.c.id == backup_id)).scalar_one()
            facts = msgspec.json.decode(text, type=Backup)
            attempt = facts.attempt
            claimed = attempt.claimed
            if claimed is not None:
                claimed = msgspec.structs.replace(
                    claimed, heard=claimed.heard - seconds, moved=claimed.moved - seconds
                )
            attempt = msgspec.structs.replace(attempt, granted=attempt.granted - seconds, claimed=claimed)
            older = msgspec.structs.replace(
                facts, attempt=attempt, created=facts.created - seconds,
                collect_after=facts.collect_after - seconds,
                stop_since=None if facts.stop_since is None else facts.stop_since - seconds,
                verify_since=None if facts.verify_since is None else facts.verify_since - seconds,
            )  # fmt: skip
            new = {
                "facts": msgspec.json.encode(older).decode(), "next_look": 0.0,
                "lease_until": table.c.lease_until - seconds,
            }  # fmt: skip
            tx.execute(sa.update(table).where(table.c.id == backup_id).values(**new))

        self.store.transact(change)
