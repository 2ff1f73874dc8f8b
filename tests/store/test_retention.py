"""Retention in the store, on both databases: what goes, what stays, and when nothing goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.backup_world import PLACES, add_instance, set_instance
from tests.store.backup_play import DIGEST, Databases
from tests.store.test_barriers import overlap
from unstuck.core.backup.data import Done, Verified
from unstuck.core.backup.retention import DEFAULT, Policy
from unstuck.core.errors import Invalid, NotFound
from unstuck.store import backup_work, backups, retention, retention_work, schedule_work, schedules
from unstuck.store.automatic_backups import Made, make_automatic_backup
from unstuck.store.backup_work import Written
from unstuck.store.engine import Store, Tx
from unstuck.store.generation import rise
from unstuck.store.retention import RetentionRow
from unstuck.store.schedules import NewSchedule
from unstuck.store.schema.clock import clock
from unstuck.store.schema.database import backups as table
from unstuck.store.schema.schedules import backup_retention

DAY = 86400.0
_keys = itertools.count()


class Keeping(Databases):
    """Backups of any age."""

    def complete(self, days: float, *, asked: bool = False, parent: str | None = None) -> str:
        """One that was made so many days ago."""
        if asked:
            backup_id = self.backup()
        else:
            new = self.new(made_by="schedule:s", made_key=str(next(_keys)))
            made = self.store.transact(
                lambda tx: make_automatic_backup(tx, new, keyring=self.keyring, places=PLACES)
            )
            assert isinstance(made, Made)
            backup_id = made.backup_id
        grant = self.take(backup_id)
        self.end(backup_id, Done(DIGEST))
        assert self.begin(backup_id).work is not None
        written = Written(grant.prefix, DIGEST, 99, "{}")
        self.store.transact(backup_work.store_verified, backup_id, "me", Verified(99), written)
        wall = self.store.read(lambda tx: tx.now.wall)
        values = {
            "created_wall": wall - days * DAY,
            "updated_wall": wall - days * DAY + 60,
            "parent_id": parent,
        }
        self.change(sa.update(table).where(table.c.id == backup_id).values(**values))
        return backup_id

    def change(self, statement: Any) -> None:
        self.store.transact(lambda tx: tx.execute(statement))

    def due(self) -> list[str]:
        return self.store.read(retention_work.due_retention, 10)

    def make_due(self) -> None:
        self.change(sa.update(backup_retention).values(next_look=0.0))

    def run(self) -> set[str]:
        """What goes."""
        self.make_due()
        return {gone.id for gone in self.store.transact(retention_work.run_retention, self.instance).removed}

    def there(self) -> set[str]:
        return {row.id for row in self.store.read(backups.list_backups, None, limit=100)}

    def policy(self, **rules: Any) -> None:
        self.store.transact(retention.set_policy, self.instance, "project", Policy(**rules))

    def kept_row(self) -> RetentionRow:
        row = self.store.read(retention.load_retention, self.instance)
        assert row is not None
        return row


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Keeping:
    return Keeping(any_store, tmp_path)


def test_old_automatic_backups_go_and_it_is_said_which_and_why(cloud: Keeping) -> None:
    old, base, new, asked = (
        cloud.complete(9), cloud.complete(8), cloud.complete(1), cloud.complete(30, asked=True)
    )  # fmt: skip
    assert cloud.run() == {old}
    assert cloud.there() == {base, new, asked}
    [gone] = cloud.kept_row().removed
    assert (gone.id, gone.why) == (old, "no rule keeps it any more")
    assert cloud.due() == []
    assert cloud.run() == set()


def test_an_instance_is_looked_at_soon_after_its_first_automatic_backup(cloud: Keeping) -> None:
    cloud.complete(1, asked=True)
    assert cloud.store.read(retention.load_retention, cloud.instance) is None
    cloud.complete(1)
    row = cloud.kept_row()
    assert row.next_look is not None
    assert row.next_look <= cloud.store.read(lambda tx: tx.now.lease) + retention.SOON


def test_backups_made_one_after_another_do_not_put_the_look_off(cloud: Keeping) -> None:
    """Every minute it was put off by a minute, and a schedule of every minute filled the store."""
    cloud.complete(1)
    first = cloud.kept_row().next_look
    assert first is not None
    cloud.change(sa.update(backup_retention).values(next_look=first - 50.0))
    cloud.complete(0.5)
    assert cloud.kept_row().next_look == first - 50.0


def test_a_dry_run_says_the_same_and_changes_nothing(cloud: Keeping) -> None:
    ids = {cloud.complete(days) for days in (1, 2, 3)}
    kept = cloud.store.read(retention.preview, cloud.instance, "project", Policy(count=1))
    assert [said.keep for said in kept.decisions] == [True, False, False]
    assert cloud.there() == ids
    assert cloud.kept_row().policy is None
    assert cloud.store.read(retention.preview, cloud.instance, "project").policy == DEFAULT
    cloud.policy(count=1)
    assert cloud.run() == {said.id for said in kept.decisions if not said.keep}


def test_a_pinned_backup_stays_until_it_is_unpinned_or_deleted_by_its_user(cloud: Keeping) -> None:
    old, other, _ = cloud.complete(90), cloud.complete(91), cloud.complete(1)
    cloud.policy(count=1)
    for backup_id in (old, other):
        assert cloud.store.transact(backups.pin_backup, backup_id, "project", pinned=True).pinned
    assert cloud.run() == set()
    cloud.store.transact(backups.delete_backup, other, "project")
    cloud.store.transact(backups.pin_backup, old, "project", pinned=False)
    assert cloud.due() == [cloud.instance]
    assert cloud.run() == {old}
    with pytest.raises(NotFound):
        cloud.store.transact(backups.pin_backup, old, "project", pinned=True)


def test_a_parent_stays_for_its_child_and_a_source_for_who_restores_it(cloud: Keeping) -> None:
    base = cloud.complete(60)
    child = cloud.complete(0.5, parent=base)
    source, lost = cloud.complete(50), cloud.complete(51)
    cloud.active("b")
    cloud.store.transact(add_instance, "b", restores=source)
    cloud.policy(count=1)
    assert cloud.run() == {lost}
    assert cloud.there() == {base, child, source}


def jump(tx: Tx) -> None:
    tx.execute(sa.update(clock).values(gap_tick=clock.c.tick + 1, tick=clock.c.tick + 1))


def set_back(tx: Tx) -> None:
    rise(tx, "test")


@pytest.mark.parametrize("doubt", [jump, set_back])
def test_while_clock_or_store_are_in_doubt_nothing_goes_and_it_is_said(
    cloud: Keeping, doubt: Callable[[Tx], None]
) -> None:
    old, _ = cloud.complete(400), cloud.complete(399)
    cloud.policy(count=1)
    cloud.store.transact(doubt)
    assert cloud.run() == set()
    assert old in cloud.there()
    assert cloud.kept_row().trouble
    look = cloud.kept_row().next_look
    assert look is not None
    assert look > cloud.store.read(lambda tx: tx.now.lease)


def test_many_go_in_several_transactions(cloud: Keeping) -> None:
    count = retention_work.AT_ONCE + 3
    for number in range(count):
        cloud.complete(100 + number)
    cloud.policy(count=1)
    assert len(cloud.run()) == retention_work.AT_ONCE
    assert cloud.due() == [cloud.instance]
    assert len(cloud.run()) == 2
    assert cloud.due() == []


def test_after_an_instance_has_gone_its_automatic_backups_follow(cloud: Keeping) -> None:
    old, new, asked = cloud.complete(8), cloud.complete(6), cloud.complete(90, asked=True)
    set_instance(cloud.store, cloud.instance, deleted=True, deleted_wall=1.0)
    assert cloud.run() == set()
    set_instance(cloud.store, cloud.instance, removed=True)
    assert cloud.run() == {old}
    assert cloud.kept_row().next_look is not None
    wall = cloud.store.read(lambda tx: tx.now.wall)
    cloud.change(sa.update(table).where(table.c.id == new).values(created_wall=wall - 9 * DAY))
    assert cloud.run() == {new}
    assert cloud.there() == {asked}
    assert cloud.kept_row().next_look is None
    assert cloud.due() == []


def test_policies_are_their_owners_and_have_a_time_zone_that_there_is(cloud: Keeping) -> None:
    with pytest.raises(NotFound):
        cloud.store.transact(retention.set_policy, cloud.instance, "another", Policy(count=1))
    with pytest.raises(Invalid, match=r"retention\.timezone"):
        cloud.policy(count=1, timezone="Mars/Base")
    cloud.policy(count=3)
    assert cloud.kept_row().policy == Policy(count=3)
    cloud.store.transact(retention.set_policy, cloud.instance, "project", None)
    assert cloud.kept_row().policy is None


def test_a_policy_that_cannot_be_read_lets_nothing_go(cloud: Keeping) -> None:
    cloud.complete(400)
    cloud.complete(401)
    cloud.policy(count=1)
    cloud.change(sa.update(backup_retention).values(policy="}"))
    assert cloud.run() == set()


def test_a_schedule_makes_every_so_many_th_backup_a_full_one(cloud: Keeping) -> None:
    new = NewSchedule(id="s", instance_id=cloud.instance, name="n", cron="* * * * *", full_every=3)
    cloud.store.transact(schedules.create_schedule, new, "project")

    def next_is_incremental() -> bool:
        def read(tx: Tx) -> bool:
            return schedule_work._incremental(tx, schedules.get_schedule(tx, "s", None))

        return cloud.store.read(read)

    assert not next_is_incremental()
    full = cloud.complete(9)
    assert next_is_incremental()
    one = cloud.complete(8, parent=full)
    assert next_is_incremental()
    cloud.complete(7, parent=one)
    assert not next_is_incremental()
    cloud.complete(6)
    assert next_is_incremental()
    failed = cloud.backup()
    cloud.store.transact(backups.cancel_backup, failed, None)
    assert not next_is_incremental()


def test_a_child_that_comes_while_retention_looks_finds_or_keeps_its_parent(
    postgres_store: Store, tmp_path: Path
) -> None:
    """Whoever comes second waits for the project, and decides on what there is then."""
    cloud = Keeping(postgres_store, tmp_path)
    old, _ = cloud.complete(9), cloud.complete(0.5)
    cloud.policy(count=1)
    cloud.make_due()
    child = cloud.new()

    def create(tx: Tx) -> str:
        made = cloud.create_tx(tx, child).id
        tx.execute(sa.update(table).where(table.c.id == made).values(parent_id=old))
        return made

    _, second = overlap(cloud.store, create, lambda tx: retention_work.run_retention(tx, cloud.instance))
    assert second.removed == ()
    assert old in cloud.there()
