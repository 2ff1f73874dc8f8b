"""Backups that are made by themselves: one of each occasion, and why there is none can be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backup_world import PLACES, set_instance
from tests.store.backup_play import Databases
from tests.store.test_barriers import overlap
from unstuck.store import backups, database_quotas
from unstuck.store.automatic_backups import Made, NotMade, Why, make_automatic_backup
from unstuck.store.engine import Store, Tx


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Databases:
    return Databases(any_store, tmp_path)


def make_tx(cloud: Databases, key: str, **more: Any) -> Any:
    new = cloud.new(made_by="schedule:s", made_key=key, **more)
    return lambda tx: make_automatic_backup(tx, new, keyring=cloud.keyring, places=PLACES)


def make(cloud: Databases, key: str, **more: Any) -> Made | NotMade:
    outcome: Made | NotMade = cloud.store.transact(make_tx(cloud, key, **more))
    return outcome


def made(cloud: Databases, key: str) -> str:
    outcome = make(cloud, key)
    assert isinstance(outcome, Made)
    return outcome.backup_id


def count(cloud: Databases) -> int:
    return len(cloud.store.read(backups.list_backups, None, limit=100))


def test_an_occasion_has_one_backup_however_often_it_is_asked_for(cloud: Databases) -> None:
    first = make(cloud, "noon")
    assert isinstance(first, Made)
    assert (first.new, first.host_id) == (True, "h")
    assert make(cloud, "noon") == Made(first.backup_id, new=False)
    assert count(cloud) == 1
    assert cloud.row(first.backup_id).made_by == "schedule:s"


def test_an_occasion_whose_backup_was_deleted_does_not_come_again(cloud: Databases) -> None:
    backup_id = made(cloud, "noon")
    cloud.store.transact(backups.delete_backup, backup_id, None)
    assert make(cloud, "noon") == Made(backup_id, new=False)
    assert made(cloud, "one") != backup_id


def test_one_that_is_under_way_is_an_outcome_that_names_it(cloud: Databases) -> None:
    asked_for = cloud.backup()
    outcome = make(cloud, "noon")
    assert isinstance(outcome, NotMade)
    assert (outcome.why, outcome.backup_id) == (Why.UNDER_WAY, asked_for)
    cloud.store.transact(backups.cancel_backup, asked_for, None)
    assert isinstance(make(cloud, "noon"), Made)


def test_automatic_backups_have_a_quota_of_their_own(cloud: Databases) -> None:
    cloud.store.transact(database_quotas.set_limits, "project", {"automatic_backups": 1, "backups": 1})
    first = made(cloud, "noon")
    cloud.store.transact(backups.cancel_backup, first, None)
    outcome = make(cloud, "one")
    assert isinstance(outcome, NotMade)
    assert outcome.why is Why.QUOTA
    assert "1 of 1" in outcome.reason
    cloud.backup()
    used = cloud.store.read(database_quotas.usage, "project")
    assert (used.backups, used.automatic_backups) == (1, 1)


def test_an_instance_that_is_gone_and_a_store_that_is_not_set_up_are_outcomes(cloud: Databases) -> None:
    outcome = make(cloud, "noon", location="nowhere")
    assert isinstance(outcome, NotMade)
    assert outcome.why is Why.REFUSED
    set_instance(cloud.store, cloud.instance, deleted=True, deleted_wall=1.0)
    outcome = make(cloud, "noon")
    assert isinstance(outcome, NotMade)
    assert outcome.why is Why.INSTANCE_GONE
    assert count(cloud) == 0


def test_a_retry_of_an_automatic_backup_is_an_automatic_one_of_no_occasion(cloud: Databases) -> None:
    old = made(cloud, "noon")
    cloud.store.transact(backups.cancel_backup, old, None)

    def retry(tx: Tx) -> str:
        return backups.retry_backup(
            tx, old, None, new_id="again", nonce="other", keyring=cloud.keyring, places=PLACES
        ).id

    assert cloud.row(cloud.store.transact(retry)).made_by == "schedule:s"


def test_of_two_control_planes_with_one_occasion_the_second_finds_the_firsts(
    postgres_store: Store, tmp_path: Path
) -> None:
    cloud = Databases(postgres_store, tmp_path)
    first, second = overlap(cloud.store, make_tx(cloud, "noon"), make_tx(cloud, "noon"))
    assert isinstance(first, Made)
    assert second == Made(first.backup_id, new=False)
