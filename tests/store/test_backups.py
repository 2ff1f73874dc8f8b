"""Backups in the store, on both databases: one live backup, fenced agents, ends that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.backup_world import PLACES, add_instance, set_instance
from tests.store.backup_play import DIGEST, Databases
from unstuck.blobs.stores import Places
from unstuck.core.backup.control import Collect, Verify
from unstuck.core.backup.data import Absent, Done, Ending, Gave, Rotten, Unanswered, Verified
from unstuck.core.backup.limits import Wish
from unstuck.core.errors import Conflict, Invalid, NotFound, TooLarge
from unstuck.store import backup_attempts, backup_work, backups
from unstuck.store.agents import Stale, Superseded
from unstuck.store.backup_work import Written
from unstuck.store.engine import Store
from unstuck.store.generation import rise
from unstuck.store.schema.database import backup_attempts as attempts_table
from unstuck.store.schema.database import backup_strategies
from unstuck.store.schema.database import backups as table


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Databases:
    return Databases(any_store, tmp_path)


def completed(cloud: Databases) -> str:
    backup_id = cloud.backup()
    grant = cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    work = cloud.begin(backup_id).work
    assert work is not None
    assert work.plan == Verify(1, DIGEST)
    written = Written(grant.prefix, DIGEST, 99, "{}")
    cloud.store.transact(backup_work.store_verified, backup_id, "me", Verified(99), written)
    return backup_id


def failed(cloud: Databases) -> str:
    backup_id = cloud.backup()
    cloud.store.transact(backups.cancel_backup, backup_id, "project")
    return backup_id


def test_a_backup_is_offered_to_the_instances_agent_until_it_has_ended(cloud: Databases) -> None:
    assert cloud.store.read(backups.backup_want, cloud.instance) is None
    backup_id = cloud.backup()
    want = cloud.store.read(backups.backup_want, cloud.instance)
    assert want is not None
    assert (want.backup_id, want.attempt, want.stop) == (backup_id, 1, None)
    assert want.recipient.startswith("age1")
    cloud.take(backup_id)
    assert cloud.store.read(backups.backup_want, cloud.instance) == want
    cloud.end(backup_id, Done(DIGEST))
    assert cloud.store.read(backups.backup_want, cloud.instance) is None


def test_what_is_new_about_a_backup_is_news_to_its_host(cloud: Databases) -> None:
    def version() -> int:
        return cloud.wants()["a"].version

    before = version()
    backup_id = cloud.backup()
    created = version()
    cloud.take(backup_id)
    cloud.store.transact(backups.cancel_backup, backup_id, "project")
    assert before < created < version()


def test_a_second_backup_of_an_instance_is_refused_while_the_first_is_under_way(cloud: Databases) -> None:
    first = cloud.backup()
    with pytest.raises(Conflict, match=first):
        cloud.backup()
    cloud.store.transact(backups.cancel_backup, first, "project")
    assert cloud.backup() != first


def test_an_instance_of_another_project_and_a_deleted_one_have_no_backups(cloud: Databases) -> None:
    with pytest.raises(NotFound):
        cloud.store.transact(cloud.create_tx, cloud.new(), "other")
    set_instance(cloud.store, cloud.instance, deleted=True, deleted_wall=1.0)
    with pytest.raises(NotFound):
        cloud.backup()


def test_the_quota_counts_what_is_not_deleted(cloud: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backups.database_quotas.DEFAULTS, "backups", 2)
    first = failed(cloud)
    failed(cloud)
    with pytest.raises(TooLarge, match="2 of 2"):
        cloud.backup()
    cloud.store.transact(backups.delete_backup, first, "project")
    cloud.backup()


def test_deadlines_are_the_operators_changed_by_the_instance_and_the_request(cloud: Databases) -> None:
    set_instance(cloud.store, cloud.instance, backup_limits='{"claim": 77, "copying": 55}')
    places = Places(("local",), "local", Wish(claim=99, total=1000))
    new = cloud.new(limits={"copying": 44, "attempts": 1})
    row = cloud.store.transact(backups.create_backup, new, "project", keyring=cloud.keyring, places=places)
    limits = row.backup.limits
    assert (limits.claim, limits.stalls["copying"], limits.total, limits.attempts) == (77, 44, 1000, 1)
    assert limits.stalls["finishing"] == 900.0


def test_a_backup_goes_where_the_strategy_says(cloud: Databases) -> None:
    places = Places(("local", "far", "vault"), "local")

    def place(**more: str) -> str:
        new = cloud.new(**more)
        row = cloud.store.transact(
            backups.create_backup, new, "project", keyring=cloud.keyring, places=places
        )
        cloud.store.transact(backups.delete_backup, row.id, "project")
        return row.location

    def strategy(instance: str, container: str) -> None:
        values = {"project_id": "project", "instance_id": instance, "container": container}
        cloud.store.transact(lambda tx: tx.execute(sa.insert(backup_strategies).values(**values)))

    assert place() == "local"
    strategy("", "far")
    assert place() == "far"
    strategy(cloud.instance, "vault")
    assert place() == "vault"
    assert place(location="local") == "local"
    with pytest.raises(Invalid, match="swift_container"):
        place(location="nowhere")


def test_the_same_agent_asking_again_gets_the_same_grant_and_another_none(cloud: Databases) -> None:
    backup_id = cloud.backup()
    first = cloud.take(backup_id)
    again = cloud.take(backup_id)
    assert (again.frame, again.prefix) == (first.frame, first.prefix)
    set_instance(cloud.store, cloud.instance, guest=2)
    for guest in (1, 2):
        with pytest.raises(Stale):
            cloud.take(backup_id, guest)


def test_the_grant_says_what_the_manifest_has_to_and_how_to_open_it(cloud: Databases) -> None:
    backup_id = cloud.backup()
    grant, row = cloud.take(backup_id), cloud.row(backup_id)
    frame = grant.frame
    assert (frame.backup_id, frame.instance_id, frame.attempt) == (backup_id, cloud.instance, 1)
    assert frame.recipients == (row.recipients[0], cloud.keyring.public.recovery)
    assert frame.key == row.key
    assert "AGE-SECRET-KEY" not in repr((frame, row))


def test_a_host_agent_that_was_superseded_does_nothing_for_its_guests(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    asks = (
        lambda who: cloud.store.transact(
            backup_attempts.end_attempt, "h",
            backup_attempts.EndAttempt(who, backup_id, cloud.nonce(backup_id), Done(DIGEST)),
        ),
        lambda who: cloud.store.read(
            backup_attempts.may_write, "h", who, backup_id, 1, cloud.nonce(backup_id)
        ),
    )  # fmt: skip
    old = cloud.who()
    cloud.register("h")
    for ask in asks:
        with pytest.raises(Superseded):
            ask(old)
    assert cloud.store.read(backup_attempts.may_write, "h", cloud.who(), backup_id, 1, cloud.nonce(backup_id))


def test_a_backup_of_another_instance_is_out_of_reach(cloud: Databases) -> None:
    cloud.active("b")
    other = cloud.store.transact(add_instance, "b")
    backup_id = cloud.backup(instance=other)
    for call in (cloud.take, cloud.renew, lambda b: cloud.end(b, Done(DIGEST))):
        with pytest.raises(Stale):
            call(backup_id)
    with pytest.raises(Stale):
        cloud.store.read(backup_attempts.may_write, "h", cloud.who(), backup_id, 1, cloud.nonce(backup_id))


def test_a_late_agent_cannot_touch_an_attempt_that_was_given_up(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    old = cloud.nonce(backup_id)
    next_attempt(cloud, backup_id)
    assert cloud.nonce(backup_id) != old
    for call in (
        lambda: cloud.renew(backup_id, nonce=old), lambda: cloud.end(backup_id, Done(DIGEST), nonce=old),
        lambda: cloud.take(backup_id, nonce=old),
        lambda: cloud.store.read(backup_attempts.may_write, "h", cloud.who(), backup_id, 1, old),
    ):  # fmt: skip
        with pytest.raises(Stale):
            call()
    cloud.take(backup_id)
    assert cloud.facts(backup_id).attempt.number == 2


def next_attempt(cloud: Databases, backup_id: str) -> None:
    """Its agent falls silent, the blob store has nothing, and it is offered anew."""
    cloud.age(backup_id, 60.0)
    assert cloud.begin(backup_id).work is not None
    number = cloud.facts(backup_id).attempt.number
    cloud.store.transact(backup_work.store_said, backup_id, "me", Absent(number))
    assert cloud.begin(backup_id).work is None
    assert cloud.facts(backup_id).attempt.number == number + 1


def test_nobody_comes_and_it_fails_with_the_reason(cloud: Databases) -> None:
    backup_id = cloud.backup()
    assert cloud.due() == []
    cloud.age(backup_id, 301.0)
    assert cloud.due() == [backup_id]
    cloud.begin(backup_id)
    ended = cloud.facts(backup_id).ended
    assert ended is not None
    assert ended.reason == "no agent of the instance took it within 300 s"


def test_after_so_many_attempts_it_fails_with_the_reason_of_the_last(cloud: Databases) -> None:
    backup_id = cloud.backup(limits={"attempts": 2})
    cloud.take(backup_id)
    next_attempt(cloud, backup_id)
    cloud.take(backup_id)
    cloud.end(backup_id, Gave("the disk is full"))
    cloud.begin(backup_id)
    cloud.store.transact(backup_work.store_said, backup_id, "me", Absent(2))
    cloud.begin(backup_id)
    ended = cloud.facts(backup_id).ended
    assert ended is not None
    assert ended.reason == "the disk is full"
    reasons = sa.select(attempts_table.c.reason).where(attempts_table.c.backup_id == backup_id)
    found = cloud.store.read(lambda tx: list(tx.execute(reasons).scalars()))
    assert sorted(found) == ["its agent was not heard of any more", "the disk is full"]


def test_what_one_controller_looks_at_no_other_takes_up_before_its_lease_ends(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    assert cloud.begin(backup_id, "one").work is not None
    assert cloud.due() == []
    assert cloud.begin(backup_id, "two").work is None
    expired = sa.update(table).values(lease_until=0.0)
    cloud.store.transact(lambda tx: tx.execute(expired))
    assert cloud.due() == [backup_id]
    assert cloud.begin(backup_id, "two").work is not None
    cloud.store.transact(backup_work.store_verified, backup_id, "one", Rotten("late"), None)
    assert isinstance(cloud.facts(backup_id).verdict, Unanswered)  # that "one" has said nothing in its time


def test_a_controller_that_dies_while_it_verifies_fails_no_backup_whose_deadline_is_shorter_than_its_lease(
    cloud: Databases,
) -> None:
    backup_id = cloud.backup(limits={"verify": 30.0})
    cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    for controller in ("one", "two"):
        assert cloud.begin(backup_id, controller).work is not None
        cloud.age(backup_id, 121.0)
    assert cloud.begin(backup_id, "three").work is None  # it cannot be verified: two have tried, time is over
    ended = cloud.facts(backup_id).ended
    assert ended is not None
    assert ended.ending is Ending.FAILED

    cloud.store.transact(backups.delete_backup, backup_id, "project")
    backup_id = cloud.backup(limits={"verify": 30.0})
    grant = cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    assert cloud.begin(backup_id, "one").work is not None
    cloud.age(backup_id, 121.0)
    assert cloud.begin(backup_id, "two").work is not None
    written = Written(grant.prefix, DIGEST, 99, "{}")
    cloud.store.transact(backup_work.store_verified, backup_id, "two", Verified(99), written)
    assert cloud.shown(backup_id) == "COMPLETED"


def test_a_verified_backup_is_complete_and_says_what_was_verified(cloud: Databases) -> None:
    backup_id = completed(cloud)
    row = cloud.row(backup_id)
    assert (cloud.shown(backup_id), row.size, row.digest, row.settled) == ("COMPLETED", 99, DIGEST, True)


def test_what_is_not_sound_is_tried_again_and_fails_in_the_end_with_what_was_wrong(cloud: Databases) -> None:
    backup_id = cloud.backup(limits={"attempts": 2})
    for number in (1, 2):
        cloud.take(backup_id)
        cloud.end(backup_id, Done(DIGEST))
        assert cloud.begin(backup_id).work is not None
        cloud.store.transact(
            backup_work.store_verified, backup_id, "me", Rotten(f"piece {number} is missing"), None
        )
        cloud.begin(backup_id)
    ended = cloud.facts(backup_id).ended
    assert ended is not None
    assert ended.reason == "piece 2 is missing"


def test_a_blob_store_that_gives_no_answer_is_asked_again_and_not_at_once(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    work = cloud.begin(backup_id).work
    assert work is not None
    said = Unanswered(work.began, "away")
    cloud.store.transact(backup_work.store_verified, backup_id, "me", said, None)
    assert cloud.due() == []
    assert cloud.row(backup_id).next_look is not None


def test_a_newer_process_of_the_agent_gives_up_what_an_older_one_held(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    set_instance(cloud.store, cloud.instance, guest=2)
    cloud.store.transact(backups.guest_superseded, cloud.instance, 2)
    assert cloud.facts(backup_id).attempt.report == Gave("its agent was started anew")
    assert cloud.due() == [backup_id]


def test_cancelled_before_anybody_took_it_it_has_ended_at_once(cloud: Databases) -> None:
    backup_id = failed(cloud)
    assert cloud.shown(backup_id) == "FAILED"
    with pytest.raises(Conflict):
        cloud.store.transact(backups.cancel_backup, backup_id, "project")


def test_cancelled_while_it_runs_its_agent_is_told_with_each_answer(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    assert cloud.renew(backup_id) is None
    cloud.store.transact(backups.cancel_live, cloud.instance, "a restart was waited for")
    assert cloud.renew(backup_id) == "a restart was waited for"
    want = cloud.store.read(backups.backup_want, cloud.instance)
    assert want is not None
    assert want.stop == "a restart was waited for"
    cloud.age(backup_id, 61.0)
    cloud.renew(backup_id)
    assert cloud.begin(backup_id).work is not None, "an agent that does not stop is not waited for"


def test_an_instance_that_is_deleted_ends_its_backup_and_keeps_those_that_are_complete(
    cloud: Databases,
) -> None:
    kept = completed(cloud)
    backup_id = cloud.backup()
    cloud.store.transact(backups.instance_deleted, cloud.instance)
    cloud.begin(backup_id)
    ended = cloud.facts(backup_id).ended
    assert ended is not None
    assert ended.reason == "the instance was deleted"
    assert cloud.shown(kept) == "COMPLETED"


@pytest.mark.parametrize("state", ["offered", "taken", "told to stop", "verifying", "complete", "failed"])
def test_delete_is_accepted_in_every_state_and_final_for_its_user_at_once(
    cloud: Databases, state: str
) -> None:
    backup_id = {"complete": completed, "failed": failed}.get(state, lambda c: c.backup())(cloud)
    if state in ("taken", "told to stop", "verifying"):
        cloud.take(backup_id)
    if state == "told to stop":
        cloud.store.transact(backups.cancel_backup, backup_id, "project")
    if state == "verifying":
        cloud.end(backup_id, Done(DIGEST))
        assert cloud.begin(backup_id).work is not None
    cloud.store.transact(backups.delete_backup, backup_id, "project")
    for gone in (
        lambda: cloud.store.read(backups.get_backup, backup_id, "project"),
        lambda: cloud.store.transact(backups.delete_backup, backup_id, "project"),
        lambda: cloud.store.transact(backups.cancel_backup, backup_id, "project"),
    ):
        with pytest.raises(NotFound):
            gone()
    assert cloud.store.read(backups.list_backups, "project", limit=10) == []
    if state == "verifying":
        cloud.store.transact(
            backup_work.store_verified, backup_id, "me", Verified(99), Written("p", DIGEST, 99, "{}")
        )
    cloud.age(backup_id, 61.0)
    for _ in range(4):
        work = cloud.begin(backup_id).work
        if work is not None and isinstance(work.plan, Collect):
            assert work.plan.everything
            cloud.store.transact(backup_work.store_collected, work, "me", None, 0.0)
            cloud.age(backup_id, 601.0)
    row = cloud.row(backup_id)
    assert (row.removed, row.settled) == (True, True)
    assert row.backup.ended is not None


def test_a_backup_deleted_while_its_litter_is_removed_is_not_taken_for_removed(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.take(backup_id)
    next_attempt(cloud, backup_id)
    grant = cloud.take(backup_id)
    cloud.end(backup_id, Done(DIGEST))
    assert cloud.begin(backup_id).work is not None
    written = Written(grant.prefix, DIGEST, 99, "{}")
    cloud.store.transact(backup_work.store_verified, backup_id, "me", Verified(99), written)
    cloud.age(backup_id, 601.0)
    work = cloud.begin(backup_id).work
    assert work is not None
    assert work.plan == Collect(everything=False)
    cloud.store.transact(backups.delete_backup, backup_id, "project")
    cloud.store.transact(backup_work.store_collected, work, "me", None, 0.0)
    assert not cloud.row(backup_id).removed
    again = cloud.begin(backup_id).work
    assert again is not None
    assert again.plan == Collect(everything=True)


def test_a_deleted_backup_waits_for_a_restore_that_lives_and_not_for_one_that_does_not(
    cloud: Databases,
) -> None:
    backup_id = completed(cloud)
    cloud.active("b")
    reader = cloud.store.transact(add_instance, "b", restores=backup_id)
    cloud.store.transact(backups.delete_backup, backup_id, "project")
    cloud.look_now(backup_id)
    assert cloud.begin(backup_id).work is None
    assert cloud.facts(backup_id).readers == 1
    who = cloud.who("b")
    assert [row.id for row in cloud.store.read(backup_attempts.may_read, "h", who)] == [backup_id]
    set_instance(cloud.store, reader, alive=False, seen_at=0.0, created=cloud.row(backup_id).since - 601.0)
    with pytest.raises(Stale, match="deleted"):
        cloud.store.read(backup_attempts.may_read, "h", who)
    work = cloud.begin(backup_id).work
    assert work is not None
    assert work.plan == Collect(everything=True)


def test_a_restore_reads_its_own_backup_and_only_until_its_data_is_there(cloud: Databases) -> None:
    backup_id = completed(cloud)
    with pytest.raises(Stale, match="restores nothing"):
        cloud.store.read(backup_attempts.grant_restore, "h", cloud.who(), cloud.keyring)
    cloud.active("b")
    reader = cloud.store.transact(add_instance, "b", restores=backup_id)
    granted = cloud.store.read(backup_attempts.grant_restore, "h", cloud.who("b"), cloud.keyring)
    assert (granted.row.id, granted.parent, granted.parents) == (backup_id, None, 0)
    assert granted.identity.startswith("AGE-SECRET-KEY-1")
    set_instance(cloud.store, reader, data_recorded=True)
    with pytest.raises(Stale):
        cloud.store.read(backup_attempts.grant_restore, "h", cloud.who("b"), cloud.keyring)


def test_a_failed_backup_is_tried_again_as_a_new_one(cloud: Databases) -> None:
    old = failed(cloud)
    row = cloud.store.transact(
        backups.retry_backup, old, "project", new_id="b-new", nonce="n-new", keyring=cloud.keyring,
        places=PLACES,
    )  # fmt: skip
    assert (row.retry_of, row.name, row.backup.ended) == (old, "nightly", None)
    with pytest.raises(Conflict, match="only a FAILED one"):
        cloud.store.transact(
            backups.retry_backup, "b-new", "project", new_id="b-x", nonce="n-x", keyring=cloud.keyring,
            places=PLACES,
        )  # fmt: skip


def test_pages_of_a_list_follow_on_each_other_without_a_gap_or_a_repetition(cloud: Databases) -> None:
    made = [failed(cloud) for _ in range(7)]
    found: list[str] = []
    marker = None
    while True:
        page = cloud.store.read(backups.list_backups, "project", limit=3, marker=marker)
        if not page:
            break
        found += [row.id for row in page]
        marker = found[-1]
        failed(cloud)  # what is new comes first, and shifts nothing
    assert found == made[::-1]
    assert cloud.store.read(backups.list_backups, "other", limit=10) == []
    assert cloud.store.read(backups.list_backups, None, limit=1, instance_id="none") == []
    with pytest.raises(Invalid, match="marker"):
        cloud.store.read(backups.list_backups, "project", limit=3, marker="nothing")


def test_a_backup_that_cannot_be_read_is_shown_and_deleted_and_spoils_no_list(cloud: Databases) -> None:
    bad, good = failed(cloud), failed(cloud)
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).where(table.c.id == bad).values(facts="{")))
    listed = cloud.store.read(backups.list_backups, "project", limit=10)
    assert [(row.id, row.readable) for row in listed] == [(good, True), (bad, False)]
    cloud.store.transact(backups.delete_backup, bad, "project")
    work = cloud.begin(bad).work
    assert work is not None
    assert work.plan == Collect(everything=True)


def test_a_store_that_was_set_back_asks_before_it_gives_up_what_nobody_took(cloud: Databases) -> None:
    backup_id = cloud.backup()
    cloud.store.transact(rise, "a test put a copy back")
    cloud.age(backup_id, 301.0)
    work = cloud.begin(backup_id).work
    assert work is not None, "an attempt of the lost future may have ended well"
    cloud.store.transact(backup_work.store_said, backup_id, "me", Absent(1))
    cloud.begin(backup_id)
    assert cloud.shown(backup_id) == "FAILED"
    assert cloud.begin(backup_id).work is None, "nothing is removed while the store is in dispute"
    assert cloud.due() == []
