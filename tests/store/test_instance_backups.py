"""Instances and the backups in them: who waits for whom, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases
from unstuck.blobs import keyring
from unstuck.core.backup.data import Done, Phase, Verified
from unstuck.core.errors import Conflict, Forbidden, Invalid
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt
from unstuck.core.server.data import Thing
from unstuck.store import backup_attempts, backup_work, backups, instances
from unstuck.store.agents import Stale
from unstuck.store.backup_work import Written
from unstuck.store.engine import Store
from unstuck.store.schema.database import backups as table

DIGEST = "d" * 64
PLACES = backups.Places(("here",), "here")


class Backed(Databases):
    """Databases with keys for backups."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store)
        keyring.ensure(folder / "keys", folder / "recovery.json")
        self.keys = keyring.load(folder / "keys")

    def backup(self, name: str = "db", backup_id: str = "b") -> None:
        new = backups.NewBackup(id=backup_id, nonce=f"nonce-{backup_id}", name="b", instance_id=name)
        self.store.transact(backups.create_backup, new, "p", keyring=self.keys, places=PLACES)

    def take(self, name: str = "db", backup_id: str = "b") -> None:
        ask = TakeAttempt(self.who(name), backup_id, f"nonce-{backup_id}", "a" * 44)
        self.store.transact(backup_attempts.take_attempt, "h", ask, self.keys)

    def renew(self, name: str = "db", backup_id: str = "b") -> str | None:
        ask = RenewAttempt(self.who(name), backup_id, f"nonce-{backup_id}", "copying", 5, 0.0)
        return self.store.transact(backup_attempts.renew_attempt, "h", ask, Phase.COPYING)

    def complete(self, name: str = "db", backup_id: str = "b", size: int = 99) -> None:
        self.backup(name, backup_id)
        self.take(name, backup_id)
        done = EndAttempt(self.who(name), backup_id, f"nonce-{backup_id}", Done(DIGEST))
        self.store.transact(backup_attempts.end_attempt, "h", done)
        self.store.transact(backup_work.begin_step, backup_id, "me", "n", 60.0)
        written = Written("prefix", DIGEST, size, "{}")
        self.store.transact(backup_work.store_verified, backup_id, "me", Verified(size), written)

    def reason(self, backup_id: str = "b") -> str:
        row = self.store.read(backups.get_backup, backup_id, "p")
        stop = row.backup.cancel_reason
        return row.backup.ended.reason if row.backup.ended is not None else stop


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Backed:
    made = Backed(any_store, tmp_path)
    made.active_db()
    return made


def test_an_instance_shows_a_backup_only_while_an_agent_holds_it(cloud: Backed) -> None:
    cloud.backup()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    want = cloud.db_want()
    assert want is not None
    assert want.backup is not None
    assert want.backup.backup_id == "b"
    cloud.take()
    assert cloud.shown() == ("BACKUP", "HEALTHY")
    cloud.pass_time(31)
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    cloud.renew()
    assert cloud.shown() == ("BACKUP", "HEALTHY")
    cloud.hello()  # another process of the agent: what the first one held is given up
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_restart_waits_for_a_backup_and_cancels_it_after_a_minute(cloud: Backed) -> None:
    cloud.backup()
    cloud.take()
    cloud.act(instances.restart_instance)
    assert cloud.shown() == ("REBOOT", "")
    assert cloud.steps() == []
    for _ in range(2):
        cloud.pass_time(25)
        assert cloud.renew() is None
        assert cloud.steps() == []
    cloud.pass_time(11)
    assert cloud.steps() == ["CancelBackup", "Apply"]
    assert "restart" in cloud.reason()
    assert cloud.renew() == cloud.reason()
    assert cloud.instance().restart == 1
    cloud.see(cloud.view(restart=1))
    assert cloud.shown()[0] in ("ACTIVE", "BACKUP")


def test_a_resize_goes_on_as_soon_as_the_backup_has_ended(cloud: Backed) -> None:
    cloud.backup()
    cloud.take()
    cloud.act(instances.resize_volume, "db", 2)
    assert cloud.steps() == []
    done = EndAttempt(cloud.who(), "b", "nonce-b", Done(DIGEST))
    cloud.store.transact(backup_attempts.end_attempt, "h", done)
    assert cloud.steps() == ["Apply"]
    row = cloud.store.read(backups.get_backup, "b", "p")
    assert not row.backup.cancelled


def test_a_backup_never_causes_a_refusal(cloud: Backed) -> None:
    cloud.backup()
    cloud.take()
    cloud.act(instances.rename_instance, "db", "new")
    cloud.act(instances.change_access, "db", is_public=True, cidrs=None)
    cloud.act(instances.resize_instance, "db", "2")
    cloud.act(instances.delete_instance)


def test_delete_cancels_the_backup_at_once(cloud: Backed) -> None:
    cloud.backup()
    cloud.take()
    cloud.act(instances.delete_instance)
    with pytest.raises(Stale):
        cloud.renew()
    assert cloud.steps() == ["StopServer"]
    row = cloud.store.read(backups.get_backup, "b", "p")
    assert row.backup.instance_gone


def test_an_instance_is_made_from_a_backup_and_reads_it_until_its_data_is_there(cloud: Backed) -> None:
    cloud.complete()
    cloud.create_db("copy", backup_id="b")
    cloud.up("copy")
    want = cloud.db_want("copy")
    assert want is not None
    assert want.origin.backup_id == "b"
    cloud.hello("copy")
    [readable] = cloud.store.read(backup_attempts.may_read, "h", cloud.who("copy"))
    assert readable.id == "b"
    cloud.see(cloud.view("copy"), "copy")
    assert cloud.shown("copy") == ("ACTIVE", "HEALTHY")
    with pytest.raises(Stale):
        cloud.store.read(backup_attempts.may_read, "h", cloud.who("copy"))


def test_a_deleted_backup_is_kept_for_who_reads_it_and_looked_at_when_they_have_ended(cloud: Backed) -> None:
    cloud.complete()
    cloud.create_db("copy", backup_id="b")
    cloud.up("copy")
    cloud.hello("copy")
    cloud.store.transact(backups.delete_backup, "b", "p")
    [readable] = cloud.store.read(backup_attempts.may_read, "h", cloud.who("copy"))
    assert readable.id == "b"
    cloud.see(cloud.view("copy"), "copy")
    row = cloud.store.read(lambda tx: tx.execute(sa.select(table.c.settled, table.c.next_look)).one())
    assert not row.settled
    assert row.next_look <= cloud.store.read(lambda tx: tx.now.lease)
    with pytest.raises(Exception, match="cannot be found"):
        cloud.create_db("late", backup_id="b")


def test_what_cannot_be_restored_is_refused_before_anything_is_made(cloud: Backed) -> None:
    cloud.complete(size=(1 << 30) + 1)
    with pytest.raises(Forbidden, match=r"volume.size.*too small"):
        cloud.create_db("copy", backup_id="b")
    with pytest.raises(Invalid, match=r"datastore.version"):
        cloud.create_db("copy", backup_id="b", volume_gb=2, version="99")
    cloud.backup(backup_id="c")
    with pytest.raises(Conflict, match="not finished"):
        cloud.create_db("copy", backup_id="c")
    with pytest.raises(Exception, match="cannot be found"):
        cloud.create_db("copy", backup_id="b", project="q", volume_gb=2)
    cloud.create_db("copy", backup_id="b", volume_gb=2)


def test_a_new_process_of_the_agent_that_finds_no_data_says_so_and_nothing_is_made_empty(
    cloud: Backed,
) -> None:
    trouble = cloud.trouble("data-missing")
    cloud.see(cloud.view(data=Thing.ABSENT, server=ServerState.DOWN, trouble=trouble))
    assert cloud.shown() == ("ERROR", "")
    want = cloud.db_want()
    assert want is not None
    assert want.data_recorded
