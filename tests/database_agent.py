"""A guest's agent that makes a backup, as far as the store hears of it: what its host says for it."""

from __future__ import annotations

import uuid
from typing import Any

from tests.database_site import DatabaseSite
from unstuck.blobs.keyring import Keyring
from unstuck.core.backup.control import AskStore
from unstuck.core.backup.data import Done, Phase, Present, Verified
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt, Who
from unstuck.store import backup_attempts, backup_work
from unstuck.store.backup_work import Written


class Agent:
    """What the instance's host says for the agent that makes a backup."""

    def __init__(self, site: DatabaseSite, keyring: Keyring, instance: str) -> None:
        self.site = site
        self.keyring = keyring
        [want] = [
            item
            for item in site.host.wants().values()
            if item.database is not None and item.database.instance_id == instance
        ]
        assert want.database is not None
        assert want.database.backup is not None
        self.offer = want.database.backup
        guest = site.host.guests[want.server_id]
        self.who = Who(
            incarnation=site.host.incarnation, server_id=want.server_id, fence=want.fence, guest=guest
        )

    def take(self) -> None:
        ask = TakeAttempt(self.who, self.offer.backup_id, self.offer.nonce, "c2lnbmluZy1rZXk=")
        self.site.store.transact(backup_attempts.take_attempt, self.site.host.id, ask, self.keyring)

    def renew(self, phase: Phase, size: int, idle: float = 0.0) -> str | None:
        ask = RenewAttempt(self.who, self.offer.backup_id, self.offer.nonce, phase.value, size, idle)
        return self.site.store.transact(backup_attempts.renew_attempt, self.site.host.id, ask, phase)

    def end(self, said: Any) -> None:
        ask = EndAttempt(self.who, self.offer.backup_id, self.offer.nonce, said)
        self.site.store.transact(backup_attempts.end_attempt, self.site.host.id, ask)

    def complete(self, size: int) -> None:
        """The blob store has its manifest, and a controller has verified it."""
        self.take()
        store, key = self.site.store, self.offer.backup_id
        digest = "d" * 64
        self.end(Done(digest))
        for said in ("look", "verify"):
            work = store.transact(backup_work.begin_step, key, said, uuid.uuid4().hex, 30.0).work
            assert work is not None, said
            if isinstance(work.plan, AskStore):
                store.transact(backup_work.store_said, key, said, Present(self.offer.attempt, digest))
                continue
            written = Written(f"backups/{key}/0001", digest, size, "{}")
            store.transact(backup_work.store_verified, key, said, Verified(size), written)
            return
