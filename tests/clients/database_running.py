"""A cloud on a loopback port whose instances are databases: what is asked of one is done by the guest agent's
own code on a real PostgreSQL."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
from running import Running
from tests.compute_fakes import settle
from tests.database_agent import Agent
from tests.database_site import DatabaseSite, control_instances

from unstuck.blobs import keyring
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores
from unstuck.core.backup.data import Phase
from unstuck.core.instance.requests import (
    Check,
    Checked,
    DatabaseAnswer,
    DatabaseRequest,
    DisableExtension,
    EnableExtension,
    EndLoan,
    Lend,
    ListExtensions,
    MoreRequest,
    Ok,
    ReadLog,
)
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest.datastores.postgresql import extras
from unstuck.guest.datastores.postgresql.requests import answer
from unstuck.guest.logfile import read_log
from unstuck.store import verification_work
from unstuck.store.engine import Store


class Databases(Running):
    """``server``: the address of a PostgreSQL of its own, which stands for every instance's."""

    site: DatabaseSite

    def __init__(self, store: Store, folder: Path, server: str) -> None:
        super().__init__(store, folder)
        keyring.ensure(folder / "keys", folder / "recovery.json")
        stores = Stores(folder / "objects", folder / "backup-stores.json")
        self.keyring = keyring.load(folder / "keys")
        self.app.app.extra["backups"] = BackupSite(stores, self.keyring)
        self.backing_up = False
        """Whether agents take the backups that are offered to them, and complete them."""
        self.site.host.wake = self.app.app.notifier.wake
        self.site.host.answerer = self.answer
        self._server = server
        self.log = folder / "server.log"
        """Stands for every instance's."""

    def furnish(self) -> DatabaseSite:
        return DatabaseSite(self.store)

    def turn(self) -> None:
        control_instances(self.store)
        for one in self.store.read(verification_work.due_verifications, 10):
            ask_id = uuid.uuid4().hex
            self.store.transact(verification_work.step_verification, one, ask_id=ask_id)
        settle(self.store, self.site.host)
        if self.backing_up:
            self.back_up()

    def back_up(self) -> None:
        for want in self.site.host.wants().values():
            if want.database is not None and want.database.backup is not None:
                agent = Agent(self.site, self.keyring, want.database.instance_id)
                agent.take()
                agent.renew(Phase.COPYING, 7 << 20)
                agent.complete(1 << 20)

    def answer(self, _want: DatabaseWant, request: DatabaseRequest | MoreRequest) -> DatabaseAnswer:
        if isinstance(request, ReadLog):
            return read_log(self.log, request)
        if isinstance(request, Check):  # its own connections want TLS, which this server has not
            return Ok(checked=Checked(databases=1, tables=1, tables_read=1, rows=1))
        with psycopg.connect(f"postgresql://unstuck@{self._server}/postgres", autocommit=True) as connection:
            if isinstance(request, ListExtensions | EnableExtension | DisableExtension | Lend | EndLoan):
                return extras.answer(connection, request)
            return answer(connection, request)
