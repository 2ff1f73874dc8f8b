"""Verifications in the store, on both databases: hidden, bounded, made once, and always thrown away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from tests.compute_site import add_image
from tests.store.instance_play import Databases
from tests.store.test_barriers import overlap
from tests.store.test_instance_barriers import add_backup
from unstuck.core.backup.verification import LIMIT, Result
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.requests import Checked, Failed, Ok
from unstuck.store import (
    asks,
    database_quotas,
    datastores,
    retention,
    scrub_work,
    verification_work,
    verifications,
)
from unstuck.store.backup_rows import load_backup
from unstuck.store.engine import Store, Tx
from unstuck.store.instance_lists import list_instances, show_instance
from unstuck.store.schema.compute import asks as asks_table
from unstuck.store.schema.database import backups
from unstuck.store.schema.database import instances as instances_table
from unstuck.store.schema.schedules import backup_verifications
from unstuck.store.verifications import NewVerification, VerificationRow, read_verified


class Verifying(Databases):
    """With an instance ``db`` and its complete backup ``b``."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.active_db()
        store.transact(add_backup)

    def verify(self, name: str = "v", backup: str = "b", project: str | None = "p") -> VerificationRow:
        new = NewVerification(id=name, backup_id=backup, query="select true")
        return self.store.transact(verifications.verify_backup, new, project)

    def row(self, name: str = "v") -> VerificationRow:
        found = self.store.read(verifications.load_verification, name)
        assert found is not None
        return found

    def step_tx(self, name: str = "v") -> Any:
        return lambda tx: verification_work.step_verification(tx, name, ask_id=f"ask-{name}")

    def go(self, name: str = "v") -> verification_work.Step:
        step: verification_work.Step = self.store.transact(self.step_tx(name))
        return step

    def late(self) -> None:
        self.pass_time(LIMIT + 1)

    def thrown_away(self, name: str = "v") -> bool:
        query = sa.select(instances_table.c.deleted).where(instances_table.c.id == self.row(name).instance_id)
        return self.store.read(lambda tx: bool(tx.execute(query).scalar_one()))


@pytest.fixture
def cloud(any_store: Store) -> Verifying:
    return Verifying(any_store)


def test_only_a_complete_backup_of_ones_own_and_one_at_a_time(cloud: Verifying) -> None:
    with pytest.raises(NotFound):
        cloud.verify(project="q")
    with pytest.raises(NotFound):
        cloud.verify(backup="nothing")
    cloud.verify()
    with pytest.raises(Conflict, match="already"):
        cloud.verify("again")
    cloud.store.transact(lambda tx: tx.execute(sa.update(backups).values(ended="FAILED")))
    cloud.store.transact(verification_work.give_up, "v", "no reason")
    with pytest.raises(Conflict, match="FAILED"):
        cloud.verify("again")


def test_it_is_restored_where_its_owner_does_not_see_it_and_nobody_can_connect(cloud: Verifying) -> None:
    cloud.verify()
    before = cloud.store.read(database_quotas.usage, "p")
    cloud.go()
    made = cloud.row().instance_id
    assert [item.id for item in cloud.store.read(list_instances, "p", limit=10).items] == ["db"]
    with pytest.raises(NotFound):
        cloud.store.read(show_instance, made, "p")
    shown = cloud.store.read(show_instance, made, None).item
    assert (shown.project_id, shown.allowed_cidrs) == (SERVICE_PROJECT, ("127.0.0.1/32",))
    assert shown.facts.restores == "b"
    assert cloud.store.read(database_quotas.usage, "p") == before
    kept = cloud.store.read(retention.preview, "db", None, retention.Policy(count=1, manual=True))
    assert kept.decisions[0].keep
    cloud.go()
    assert not cloud.row().settled


def test_a_step_that_is_taken_twice_makes_one_instance(cloud: Verifying) -> None:
    cloud.verify()
    cloud.go()
    cloud.go()
    query = sa.select(sa.func.count()).where(instances_table.c.project_id == SERVICE_PROJECT)
    assert cloud.store.read(lambda tx: tx.execute(query).scalar_one()) == 1


def test_where_there_is_no_room_nothing_is_changed_and_it_is_tried_again(cloud: Verifying) -> None:
    cloud.verify()
    cloud.store.transact(lambda tx: tx.execute(sa.text("UPDATE hosts SET no_networks = 'none'")))
    with pytest.raises(Conflict):
        cloud.go()
    query = sa.select(sa.func.count()).where(instances_table.c.project_id == SERVICE_PROJECT)
    assert cloud.store.read(lambda tx: tx.execute(query).scalar_one()) == 0
    cloud.store.transact(verification_work.postpone_verification, "v", 30.0, "no host")
    assert cloud.row().trouble == "no host"
    assert cloud.store.read(verification_work.due_verifications, 10) == []


def test_no_more_than_a_few_are_restored_at_a_time(cloud: Verifying) -> None:
    for number in range(verification_work.AT_ONCE + 1):

        def copy(tx: Tx, name: str = f"b{number}") -> None:
            row = tx.execute(sa.select(backups).where(backups.c.id == "b")).one()
            tx.execute(sa.insert(backups).values(**{**row._mapping, "id": name}))

        cloud.store.transact(copy)
        cloud.verify(f"v{number}", f"b{number}")
        cloud.go(f"v{number}")
    waiting = cloud.row(f"v{verification_work.AT_ONCE}")
    assert waiting.trouble is not None
    assert "others" in waiting.trouble


def test_after_its_deadline_it_ends_without_a_word_on_the_backup_and_the_instance_goes(
    cloud: Verifying,
) -> None:
    cloud.verify()
    cloud.go()
    cloud.late()
    done = cloud.go().done
    assert done is not None
    assert done.result is Result.UNKNOWN
    found = cloud.store.read(load_backup, "b")
    assert found is not None
    assert found.damaged is None
    said = read_verified(found.verified)
    assert said is not None
    assert (said.result, said.seconds) == (Result.UNKNOWN, None)
    assert not cloud.thrown_away()
    cloud.go()
    assert cloud.thrown_away()
    cloud.go()
    assert not cloud.row().settled
    cloud.store.transact(
        lambda tx: tx.execute(
            sa.update(instances_table)
            .where(instances_table.c.project_id == SERVICE_PROJECT)
            .values(removed=True, settled=True, next_look=None)
        )
    )
    cloud.go()
    assert cloud.row().settled
    assert cloud.verify("again").id == "again"


def test_a_delete_of_the_backup_ends_it(cloud: Verifying) -> None:
    cloud.verify()
    cloud.go()
    cloud.store.transact(lambda tx: tx.execute(sa.update(backups).values(deleted=True)))
    done = cloud.go().done
    assert done is not None
    assert done.reason


@pytest.mark.parametrize(
    ("said", "result", "word"),
    [
        (Ok(checked=Checked(1, 2, 2, 30, "t")), Result.SOUND, "2 of 2 tables in 1 databases, 30 rows"),
        (Failed("wrong", "invalid page\x00\n in block 7"), Result.DAMAGED, "invalid page in block 7"),
        (Failed("invalid", "syntax error"), Result.UNKNOWN, "syntax error"),
        (Ok(), Result.UNKNOWN, "knows no such request"),
    ],
)
def test_what_is_read_in_it_stands_on_the_backup(
    cloud: Verifying, said: Ok | Failed, result: Result, word: str
) -> None:
    cloud.verify()
    cloud.go()

    def answer(tx: Tx) -> None:
        text = msgspec.json.encode(said).decode()
        tx.execute(
            sa.insert(asks_table).values(
                id="q", host_id="h", server_id="server-db", kind="guest", argument="{}", since=0.0,
                deadline=tx.now.lease + 60, answer=text,
            )
        )  # fmt: skip
        tx.execute(sa.update(backup_verifications).values(ask_id="q", asks=1, ask_until=tx.now.lease + 60))

    cloud.store.transact(answer)
    done = cloud.go().done
    assert done is not None
    assert done.result is result
    assert word in done.reason + done.detail
    found = cloud.store.read(load_backup, "b")
    assert found is not None
    assert (found.damaged is not None) == (result is Result.DAMAGED)
    assert cloud.store.read(asks.read_answer, "q") is None


def test_one_that_is_not_ready_to_be_read_is_asked_again_in_a_while(cloud: Verifying) -> None:
    cloud.verify()
    cloud.go()

    def answer(tx: Tx) -> None:
        text = msgspec.json.encode(Failed("unready", "it starts")).decode()
        tx.execute(
            sa.insert(asks_table).values(
                id="q", host_id="h", server_id="server-db", kind="guest", argument="{}", since=0.0,
                deadline=tx.now.lease + 60, answer=text,
            )
        )  # fmt: skip
        tx.execute(sa.update(backup_verifications).values(ask_id="q", asks=1, ask_until=tx.now.lease + 60))

    cloud.store.transact(answer)
    assert cloud.go().done is None
    row = cloud.row()
    assert (row.ask_id, row.trouble, row.verdict) == (None, "it starts", None)


def test_of_two_control_planes_at_one_step_one_makes_the_instance(postgres_store: Store) -> None:
    cloud = Verifying(postgres_store)
    cloud.verify()
    overlap(cloud.store, cloud.step_tx(), cloud.step_tx())
    query = sa.select(sa.func.count()).where(instances_table.c.project_id == SERVICE_PROJECT)
    assert cloud.store.read(lambda tx: tx.execute(query).scalar_one()) == 1


def damaged(cloud: Verifying, backup: str = "b") -> str | None:
    found = cloud.store.read(load_backup, backup)
    assert found is not None
    return found.damaged


def test_from_a_damaged_backup_nothing_is_restored_unless_it_is_asked_for(cloud: Verifying) -> None:
    cloud.store.transact(scrub_work.mark_damaged, "b", "piece 3 is missing")
    with pytest.raises(Conflict, match=r"cannot be restored: it is damaged \(piece 3 is missing\)"):
        cloud.create_db("copy", backup_id="b")
    cloud.create_db("copy", backup_id="b", accept_damage=True)
    cloud.verify()
    assert cloud.go() is not None  # a verification may find it to be sound after all
    assert cloud.row().instance_id


def test_what_is_built_on_a_damaged_backup_is_damaged_for_as_long(cloud: Verifying) -> None:
    def child(tx: Tx, name: str, parent: str) -> None:
        row = tx.execute(sa.select(backups).where(backups.c.id == "b")).one()._mapping
        tx.execute(sa.insert(backups).values({**row, "id": name, "parent_id": parent, "damaged": None}))

    cloud.store.transact(child, "c", "b")
    cloud.store.transact(child, "d", "c")
    cloud.store.transact(scrub_work.mark_damaged, "b", "piece 3 is missing")
    assert [damaged(cloud, name) for name in ("b", "c", "d")] == [
        "piece 3 is missing", *["a backup that it needs is damaged: b: piece 3 is missing"] * 2
    ]  # fmt: skip
    with pytest.raises(Conflict, match="it is damaged"):
        cloud.create_db("copy", backup_id="d")
    cloud.store.transact(scrub_work.mark_damaged, "d", "piece 9 is missing")
    cloud.store.transact(scrub_work.mark_sound, "b")
    assert [damaged(cloud, name) for name in ("b", "c", "d")] == [None, None, "piece 9 is missing"]


def test_an_upgrade_is_rehearsed_in_another_version_and_says_nothing_of_the_backup(cloud: Verifying) -> None:
    add_version(cloud, "v15-9", "15.9")
    add_version(cloud, "v16", "16.0")
    new = NewVerification(id="v", backup_id="b", version="15.9")
    with pytest.raises(Invalid, match="same major version"):
        cloud.store.transact(verifications.verify_backup, msgspec.structs.replace(new, version="16.0"), "p")
    with pytest.raises(Invalid, match="version"):
        cloud.store.transact(verifications.verify_backup, msgspec.structs.replace(new, version="none"), "p")
    cloud.store.transact(verifications.verify_backup, new, "p")
    cloud.go()
    item = cloud.store.read(show_instance, cloud.row().instance_id, None).item
    assert item.version_number == "15.9"
    cloud.store.transact(verification_work.give_up, "v", "no server comes up")
    held = cloud.store.read(load_backup, "b")
    assert held is not None
    assert (held.verified, held.damaged) == (None, None)
    found = cloud.store.read(verifications.verifications_of, "b", "p")[0]
    assert found.verdict is not None
    assert found.verdict.reason == "no server comes up"


def add_version(cloud: Verifying, key: str, number: str) -> None:
    image = cloud.store.transact(add_image, f"image-{key}")
    cloud.store.transact(
        datastores.register_version, version_id=key, datastore_id=datastores.POSTGRESQL,
        datastore="postgresql", name=number, manager="postgresql", version=number, image_id=image,
        active=True, default=False,
    )  # fmt: skip
