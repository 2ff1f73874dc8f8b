"""Incremental backups in the store, on both databases: whose child one is, and what keeps a parent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.backup_world import add_instance, set_instance
from tests.store.backup_play import DIGEST, Databases
from unstuck.core.backup.content import Datastore, Parent, Position
from unstuck.core.backup.control import Collect
from unstuck.core.backup.data import Absent, Done, Gave, Verified
from unstuck.core.backup.status import status
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.store import backup_attempts, backup_work, backups
from unstuck.store.agents import Stale
from unstuck.store.backup_chain import Checked
from unstuck.store.backup_work import Written
from unstuck.store.engine import Store


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Databases:
    return Databases(any_store, tmp_path)


def complete(cloud: Databases, **more: object) -> str:
    """Made, and verified; its log goes on where its parent's ends."""
    backup_id = cloud.backup(**more)
    grant = cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    work = cloud.begin(backup_id).work
    assert work is not None
    says = Checked(
        Datastore("postgresql", "15", "15.9"), "7300", Position(1, "0/1"), Position(1, "0/2"),
        generation="g", parent=grant.frame.parent,
    )  # fmt: skip
    text = msgspec.json.encode(says).decode()
    written = Written(grant.prefix, DIGEST, 99, text)
    cloud.store.transact(backup_work.store_verified, backup_id, "me", Verified(99), written)
    return backup_id


def delete(cloud: Databases, backup_id: str, *, cascade: bool = False) -> None:
    cloud.store.transact(backups.delete_backup, backup_id, "project", cascade=cascade)


def collected(cloud: Databases, backup_id: str) -> bool:
    """Whether its objects are to go now; if so, they are gone."""
    work = cloud.begin(backup_id).work
    if work is None:
        return False
    assert work.plan == Collect(everything=True)
    cloud.store.transact(backup_work.store_collected, work, "me", None, 0.0)
    return True


def test_a_childs_grant_and_order_name_its_parent(cloud: Databases) -> None:
    parent = complete(cloud)
    child = cloud.backup(parent_id=parent)
    want = cloud.store.read(backups.backup_want, cloud.instance)
    assert want is not None
    assert (want.since, want.generation) == (Parent(parent, DIGEST), "g")
    assert want.since_content is not None
    assert (want.since_content.stop, want.since_content.chunks) == (Position(1, "0/2"), ())
    frame = cloud.take(child).frame
    assert (frame.parent, frame.generation) == (Parent(parent, DIGEST), "g")
    assert cloud.row(child).parent_id == parent


def test_incremental_builds_on_the_newest_complete_backup_and_is_full_where_there_is_none(
    cloud: Databases,
) -> None:
    first = complete(cloud, incremental=True)
    assert cloud.row(first).parent_id is None
    second = complete(cloud, incremental=True)
    assert cloud.row(second).parent_id == first
    failed = cloud.backup(incremental=True)
    cloud.store.transact(backups.cancel_backup, failed, "project")
    third = complete(cloud, incremental=True)
    assert cloud.row(third).parent_id == second
    assert cloud.row(complete(cloud)).parent_id is None


def test_a_parent_is_a_complete_backup_of_the_same_data(cloud: Databases) -> None:
    parent = complete(cloud)
    live = cloud.backup()
    with pytest.raises(Conflict):
        cloud.backup(parent_id=live)
    cloud.store.transact(backups.cancel_backup, live, "project")
    with pytest.raises(Conflict, match=r"parent_id.*FAILED"):
        cloud.backup(parent_id=live)
    with pytest.raises(NotFound, match="parent_id"):
        cloud.backup(parent_id="nothing")
    cloud.active("b")
    other = cloud.store.transact(add_instance, "b")
    with pytest.raises(Invalid, match=r"parent_id.*is of instance"):
        cloud.backup(instance=other, parent_id=parent)
    set_instance(cloud.store, cloud.instance, generation="another")
    with pytest.raises(Conflict, match="not of the data"):
        cloud.backup(parent_id=parent)
    full = cloud.backup(incremental=True)
    assert cloud.row(full).parent_id is None
    cloud.store.transact(backups.cancel_backup, full, "project")
    set_instance(cloud.store, cloud.instance, generation="g")
    delete(cloud, parent)
    with pytest.raises(NotFound, match="parent_id"):
        cloud.backup(parent_id=parent)


def test_a_deleted_parents_objects_go_with_its_last_child(cloud: Databases) -> None:
    parent = complete(cloud)
    first, second = complete(cloud, parent_id=parent), complete(cloud, parent_id=parent)
    delete(cloud, parent)
    with pytest.raises(NotFound):
        cloud.store.read(backups.get_backup, parent, "project")
    assert not collected(cloud, parent)
    assert cloud.row(parent).next_look is not None
    delete(cloud, first)
    assert collected(cloud, first)
    assert not collected(cloud, parent)
    delete(cloud, second)
    assert not collected(cloud, parent)  # until its child's are gone
    assert collected(cloud, second)
    row = cloud.row(parent)
    assert row.next_look is not None
    assert row.next_look <= cloud.store.read(lambda tx: tx.now.lease)
    assert collected(cloud, parent)
    assert cloud.row(parent).removed


def test_a_child_that_failed_keeps_nothing_and_one_that_is_made_does(cloud: Databases) -> None:
    parent = complete(cloud)
    child = cloud.backup(parent_id=parent)
    cloud.take(child)
    delete(cloud, parent)
    assert not collected(cloud, parent)
    cloud.end(child, Gave("no room", final=True))
    assert cloud.begin(child).work is not None
    cloud.store.transact(backup_work.store_said, child, "me", Absent(1))
    cloud.begin(child)
    assert status(cloud.row(child).backup) == "FAILED"
    assert collected(cloud, parent)


def test_with_cascade_all_children_are_deleted_with_it(cloud: Databases) -> None:
    root = complete(cloud)
    middle = complete(cloud, parent_id=root)
    leaf = complete(cloud, parent_id=middle)
    running = cloud.backup(parent_id=leaf)
    delete(cloud, middle)
    delete(cloud, root, cascade=True)
    for key in (root, middle, leaf, running):
        with pytest.raises(NotFound):
            cloud.store.read(backups.get_backup, key, "project")
    for key in (running, leaf, middle, root):
        assert collected(cloud, key), key


def test_a_restore_reads_the_whole_chain_each_link_with_its_own_key(cloud: Databases) -> None:
    root = complete(cloud)
    middle = complete(cloud, parent_id=root)
    leaf = complete(cloud, parent_id=middle)
    stranger = complete(cloud)
    cloud.active("b")
    cloud.store.transact(add_instance, "b", restores=leaf)
    grants = [
        cloud.store.read(backup_attempts.grant_restore, "h", cloud.who("b"), cloud.keyring, above)
        for above in range(3)
    ]
    assert [(g.row.id, g.parents) for g in grants] == [(leaf, 2), (middle, 1), (root, 0)]
    assert [g.parent for g in grants] == [Parent(middle, DIGEST), Parent(root, DIGEST), None]
    assert len({g.identity for g in grants}) == 3
    with pytest.raises(Stale):
        cloud.store.read(backup_attempts.grant_restore, "h", cloud.who("b"), cloud.keyring, 3)
    readable = [row.id for row in cloud.store.read(backup_attempts.may_read, "h", cloud.who("b"))]
    assert stranger not in readable
    # Deleted all the way, it is held for the one who reads it.
    delete(cloud, root, cascade=True)
    assert not collected(cloud, leaf)
    assert not collected(cloud, root)
    assert cloud.store.read(backup_attempts.may_read, "h", cloud.who("b"))


def test_a_retry_has_the_parent_of_the_one_that_failed_or_the_newest_there_is(cloud: Databases) -> None:
    from tests.backup_world import PLACES

    def retry(old: str, new: str) -> str | None:
        row = cloud.store.transact(
            backups.retry_backup, old, "project", new_id=new, nonce=f"n-{new}", keyring=cloud.keyring,
            places=PLACES,
        )  # fmt: skip
        cloud.store.transact(backups.cancel_backup, new, "project")
        return row.parent_id

    first = complete(cloud)
    second = complete(cloud)
    failed = cloud.backup(parent_id=first)
    cloud.store.transact(backups.cancel_backup, failed, "project")
    assert retry(failed, "r1") == first
    delete(cloud, first)
    assert retry(failed, "r2") == second
