"""Backups under two connections at once on PostgreSQL: the second waits, and decides on what it sees then."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.backup_world import add_instance
from tests.store.backup_play import DIGEST, Databases
from tests.store.test_backups import completed
from tests.store.test_barriers import overlap
from unstuck.core.backup.control import Collect
from unstuck.core.backup.data import Absent, Done, Gave
from unstuck.core.errors import Conflict, NotFound
from unstuck.store import backup_attempts, backup_work, backups
from unstuck.store.agents import Stale
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.database import instances


@pytest.fixture
def cloud(postgres_store: Store, tmp_path: Path) -> Databases:
    return Databases(postgres_store, tmp_path)


def given_up(cloud: Databases) -> str:
    """A backup whose agent is silent and whose attempt has no manifest: the next step is another attempt."""
    backup_id = cloud.backup()
    cloud.take(backup_id)
    cloud.age(backup_id, 60.0)
    assert cloud.begin(backup_id).work is not None
    cloud.store.transact(backup_work.store_said, backup_id, "me", Absent(1))
    return backup_id


def test_of_two_creates_at_once_one_is_refused(cloud: Databases) -> None:
    one, two = cloud.new(), cloud.new()
    first, second = overlap(
        cloud.store, lambda tx: cloud.create_tx(tx, one), lambda tx: cloud.create_tx(tx, two)
    )
    assert first.id == one.id
    assert isinstance(second, Conflict)


def test_the_first_two_backups_of_a_project_share_its_key(cloud: Databases) -> None:
    cloud.active("b")
    other = cloud.store.transact(add_instance, "b")
    one, two = cloud.new(), cloud.new(other)
    first, second = overlap(
        cloud.store, lambda tx: cloud.create_tx(tx, one), lambda tx: cloud.create_tx(tx, two)
    )
    assert first.recipients == second.recipients


def delete_instance(tx: Tx, cloud: Databases) -> None:
    """What deleting an instance does to its row and its backup, in its order."""
    gone = sa.update(instances).where(instances.c.id == cloud.instance)
    tx.execute(gone.values(deleted=True, deleted_wall=1.0))
    backups.instance_deleted(tx, cloud.instance)


def test_a_create_that_waits_for_the_instances_delete_is_refused(cloud: Databases) -> None:
    new = cloud.new()
    first, second = overlap(
        cloud.store, lambda tx: delete_instance(tx, cloud), lambda tx: cloud.create_tx(tx, new)
    )
    assert first is None
    assert isinstance(second, NotFound)


def test_the_instances_delete_that_waits_for_a_create_stops_what_that_has_made(cloud: Databases) -> None:
    new = cloud.new()
    overlap(cloud.store, lambda tx: cloud.create_tx(tx, new), lambda tx: delete_instance(tx, cloud))
    assert cloud.facts(new.id).instance_gone


def test_an_agent_does_not_take_what_is_being_deleted(cloud: Databases) -> None:
    backup_id = cloud.backup()
    ask = cloud.take_ask(backup_id)
    _, second = overlap(
        cloud.store,
        lambda tx: backups.delete_backup(tx, backup_id, "project"),
        lambda tx: backup_attempts.take_attempt(tx, "h", ask, cloud.keyring),
    )
    assert isinstance(second, Stale)


def test_a_delete_that_waits_for_a_take_stops_it(cloud: Databases) -> None:
    backup_id = cloud.backup()
    ask = cloud.take_ask(backup_id)
    first, second = overlap(
        cloud.store,
        lambda tx: backup_attempts.take_attempt(tx, "h", ask, cloud.keyring),
        lambda tx: backups.delete_backup(tx, backup_id, "project"),
    )
    assert first.prefix.endswith(ask.nonce)
    assert second.backup.attempt.claimed is not None
    assert cloud.renew(backup_id) == "the backup was deleted"


def test_a_take_and_the_next_attempt_at_once_leave_no_agent_with_a_dead_one(cloud: Databases) -> None:
    backup_id = given_up(cloud)
    ask = cloud.take_ask(backup_id)
    begun, late = overlap(
        cloud.store,
        lambda tx: backup_work.begin_step(tx, backup_id, "me", "fresh", 60.0),
        lambda tx: backup_attempts.take_attempt(tx, "h", ask, cloud.keyring),
    )
    assert begun.host_id == "h"
    assert isinstance(late, Stale)
    assert cloud.facts(backup_id).attempt.claimed is None


def test_an_agent_that_is_back_in_time_keeps_its_attempt(cloud: Databases) -> None:
    backup_id = given_up(cloud)
    ask = cloud.take_ask(backup_id)
    _, begun = overlap(
        cloud.store,
        lambda tx: backup_attempts.take_attempt(tx, "h", ask, cloud.keyring),
        lambda tx: backup_work.begin_step(tx, backup_id, "me", "fresh", 60.0),
    )
    assert begun.work is None
    assert cloud.facts(backup_id).attempt.nonce == ask.nonce


def test_of_an_end_and_a_newer_process_of_the_agent_the_first_counts(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    ask = cloud.end_ask(backup_id, Done(DIGEST))
    overlap(
        cloud.store,
        lambda tx: backup_attempts.end_attempt(tx, "h", ask),
        lambda tx: register(tx, cloud, 2),
    )
    assert cloud.facts(backup_id).attempt.report == Done(DIGEST)


def test_an_end_that_waits_for_a_newer_process_is_refused(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    ask = cloud.end_ask(backup_id, Done(DIGEST))
    _, second = overlap(
        cloud.store,
        lambda tx: register(tx, cloud, 2),
        lambda tx: backup_attempts.end_attempt(tx, "h", ask),
    )
    assert isinstance(second, Stale)
    assert cloud.facts(backup_id).attempt.report == Gave("its agent was started anew")


def test_a_take_that_waits_for_a_newer_process_is_refused(cloud: Databases) -> None:
    backup_id = cloud.backup()
    ask = cloud.take_ask(backup_id)
    _, second = overlap(
        cloud.store,
        lambda tx: register(tx, cloud, 2),
        lambda tx: backup_attempts.take_attempt(tx, "h", ask, cloud.keyring),
    )
    assert isinstance(second, Stale)
    assert cloud.facts(backup_id).attempt.claimed is None


def register(tx: Tx, cloud: Databases, number: int) -> None:
    """What a newer process of the guest's agent does when it registers, in its order."""
    mine = instances.c.id == cloud.instance
    tx.execute(sa.select(instances.c.id).where(mine).with_for_update())
    tx.execute(sa.update(instances).where(mine).values(guest=number))
    backups.guest_superseded(tx, cloud.instance, number)


def test_of_two_controllers_one_gets_the_work(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    first, second = overlap(
        cloud.store,
        lambda tx: backup_work.begin_step(tx, backup_id, "one", "n1", 60.0),
        lambda tx: backup_work.begin_step(tx, backup_id, "two", "n2", 60.0),
    )
    assert first.work is not None
    assert second.work is None


def test_a_removal_that_waits_for_a_new_reader_sees_it(cloud: Databases) -> None:
    """Creating an instance from a backup holds the backup's row until its reader is written down."""
    backup_id = completed(cloud)
    cloud.active("b")

    def reads(tx: Tx) -> None:
        from unstuck.store.backup_rows import load_backup

        assert load_backup(tx, backup_id, lock=True) is not None
        add_instance(tx, "b", restores=backup_id)

    overlap(cloud.store, reads, lambda tx: backups.delete_backup(tx, backup_id, "project"))
    cloud.look_now(backup_id)
    assert cloud.begin(backup_id).work is None
    assert cloud.facts(backup_id).readers == 1


def test_a_reader_that_waits_for_the_delete_finds_it_deleted(cloud: Databases) -> None:
    backup_id = completed(cloud)

    def look(tx: Tx) -> bool:
        from unstuck.store.backup_rows import load_backup

        found = load_backup(tx, backup_id, lock=True)
        assert found is not None
        return found.backup.deleted

    _, deleted = overlap(cloud.store, lambda tx: backups.delete_backup(tx, backup_id, "project"), look)
    assert deleted
    work = cloud.begin(backup_id).work
    assert work is not None
    assert work.plan == Collect(everything=True)
