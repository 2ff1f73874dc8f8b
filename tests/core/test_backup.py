"""A backup always ends: the planner over every state, and over every behaviour of agent and blob store."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstuck.core.backup import change
from unstuck.core.backup.control import (
    LEASE,
    STOP,
    AskStore,
    Collect,
    End,
    LookAgain,
    NextAttempt,
    Plan,
    Settled,
    Verify,
    plan_backup,
    stop_wanted,
)
from unstuck.core.backup.data import (
    Absent,
    Attempt,
    Backup,
    Done,
    Ended,
    Ending,
    Gave,
    Limits,
    Phase,
    Present,
    Rotten,
    Unanswered,
    Verified,
)
from unstuck.core.backup.explain import explain
from unstuck.core.backup.status import status

NOW = 1000.0
NEW = Backup(id="b", created=NOW, limits=Limits(), attempt=Attempt(1, "n1", NOW))
TAKEN = change.claim(NEW, "n1", 7, NOW)
COPYING = change.renew(TAKEN, "n1", 7, Phase.COPYING, 10, 0.0, NOW)
SILENT = NOW + LEASE


def second(backup: Backup = COPYING) -> Backup:
    return change.next_attempt(backup, "n2", NOW)


def test_a_new_backup_waits_for_its_agent_and_no_longer_than_its_claim_deadline() -> None:
    assert status(NEW) == "NEW"
    assert plan_backup(NEW, NOW) == LookAgain(NOW + 300.0, "the instance's agent takes it")
    ends = plan_backup(NEW, NOW + 300.0)
    assert ends == End(Ended(Ending.FAILED, "no agent of the instance took it within 300 s"))


def test_a_taken_backup_is_looked_at_when_its_lease_ends() -> None:
    assert status(TAKEN) == "BUILDING"
    assert plan_backup(TAKEN, NOW) == LookAgain(NOW + LEASE, "its agent works on it")


def test_before_a_silent_attempt_is_given_up_the_blob_store_is_asked() -> None:
    assert isinstance(plan_backup(COPYING, SILENT), AskStore)
    absent = change.store_said(COPYING, Absent(1))
    assert isinstance(plan_backup(absent, SILENT), NextAttempt)


def test_a_finished_backup_whose_report_was_lost_is_verified_and_complete() -> None:
    found = change.store_said(COPYING, Present(1, "d"))
    assert plan_backup(found, SILENT) == Verify(1, "d")
    checked = change.verified(change.verifying(found, SILENT), Verified(99))
    assert status(checked) == "SAVING"
    assert plan_backup(checked, SILENT) == End(Ended(Ending.COMPLETED, ""))


def test_a_blob_store_that_does_not_answer_is_waited_for_and_not_for_ever() -> None:
    asked = change.store_said(COPYING, Unanswered(SILENT, "away"))
    again = change.store_said(asked, Unanswered(SILENT + 100.0, "away"))
    assert isinstance(plan_backup(again, SILENT + 299.0), AskStore)
    assert isinstance(plan_backup(again, SILENT + 300.0), NextAttempt)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_limit_of_its_own_for_standing_still(phase: Phase) -> None:
    at = change.renew(TAKEN, "n1", 7, phase, 0, 0.0, NOW)
    limit = at.limits.stalls[phase]
    hung = change.store_said(change.renew(at, "n1", 7, phase, 0, limit, NOW + limit), Absent(1))
    plan = plan_backup(hung, NOW + limit)
    assert isinstance(plan, NextAttempt)
    assert f"nothing moved for {limit:.0f} s" in plan.reason


def test_what_the_blob_store_said_is_in_the_reason_and_forgotten_once_it_takes_pieces() -> None:
    limit = TAKEN.limits.stalls[Phase.UPLOADING]
    full = change.renew(TAKEN, "n1", 7, Phase.UPLOADING, 9, limit, NOW + limit, "507 full")
    assert "9 bytes so far: 507 full" in explain(full, NOW + limit - 1).why
    plan = plan_backup(change.store_said(full, Absent(1)), NOW + limit)
    assert isinstance(plan, NextAttempt)
    assert plan.reason == f"it waited for the blob store and nothing moved for {limit:.0f} s: 507 full"
    goes_on = change.renew(full, "n1", 7, Phase.COPYING, 9, 0.0, NOW + limit)
    assert "507" not in explain(goes_on, NOW + limit).why


def test_an_agent_that_is_heard_but_does_not_work_is_not_alive() -> None:
    """Liveness and progress are different things: a healthy agent whose tool hangs."""
    backup, now = COPYING, NOW
    for _ in range(60):
        now += 10.0
        backup = change.renew(backup, "n1", 7, Phase.COPYING, 10, now - NOW, now)
    assert isinstance(plan_backup(backup, now), AskStore)


def test_a_silence_of_the_control_plane_is_not_charged_to_the_work() -> None:
    later = NOW + 3600.0
    working = change.renew(COPYING, "n1", 7, Phase.COPYING, 5000, 0.5, later)
    assert plan_backup(working, later) == LookAgain(later + LEASE, "its agent works on it")


def test_after_the_last_attempt_it_fails_with_the_reason_of_the_last() -> None:
    third = change.claim(change.next_attempt(second(), "n3", NOW), "n3", 9, NOW)
    gave = change.store_said(change.report(third, "n3", 9, Gave("disk full"), NOW), Absent(3))
    assert plan_backup(gave, NOW) == End(Ended(Ending.FAILED, "disk full"))


def test_what_no_other_attempt_can_mend_is_not_tried_again() -> None:
    gave = change.report(TAKEN, "n1", 7, Gave("no such database", final=True), NOW)
    gave = change.store_said(gave, Absent(1))
    assert plan_backup(gave, NOW) == End(Ended(Ending.FAILED, "no such database"))


@pytest.mark.parametrize("how", ["cancelled", "deleted", "instance_gone"])
def test_who_wants_it_stopped_is_told_to_the_agent_and_then_it_ends(how: str) -> None:
    unwanted = msgspec.structs.replace(COPYING, **{how: True})
    reason = stop_wanted(unwanted)
    assert reason is not None
    assert plan_backup(unwanted, NOW) == LookAgain(NOW + LEASE, "its agent stops it")
    stopped = change.store_said(change.report(unwanted, "n1", 7, Gave("stopped"), NOW), Absent(1))
    assert plan_backup(stopped, NOW) == End(Ended(Ending.FAILED, reason))


def test_cancelled_before_anybody_took_it_it_ends_at_once() -> None:
    assert plan_backup(change.cancel(NEW, NOW), NOW) == End(Ended(Ending.FAILED, "the backup was cancelled"))


def test_a_late_agent_cannot_touch_a_newer_attempt() -> None:
    newer = change.claim(second(), "n2", 8, NOW)
    for late in (
        lambda: change.renew(newer, "n1", 7, Phase.COPYING, 99, 0.0, NOW),
        lambda: change.report(newer, "n1", 7, Done("d"), NOW),
        lambda: change.claim(newer, "n1", 7, NOW),
        lambda: change.claim(newer, "n2", 9, NOW),
        lambda: change.renew(newer, "n2", 7, Phase.COPYING, 99, 0.0, NOW),
    ):
        with pytest.raises(change.Late):
            late()


def test_an_agent_that_was_started_anew_gives_up_what_its_forerunner_held() -> None:
    again = change.store_said(change.superseded(COPYING, 8), Absent(1))
    assert plan_backup(again, NOW) == NextAttempt("its agent was started anew")
    assert change.superseded(COPYING, 7) == COPYING
    assert change.superseded(NEW, 8) == NEW


def test_a_claim_whose_answer_was_lost_gets_the_same_grant() -> None:
    assert change.claim(TAKEN, "n1", 7, NOW + 1.0).attempt.nonce == "n1"


def test_nothing_changes_an_end() -> None:
    over = change.end(COPYING, Ended(Ending.FAILED, "x"), NOW)
    with pytest.raises(change.Late):
        change.report(over, "n1", 7, Done("d"), NOW)
    for after in (
        change.store_said(over, Present(1, "d")),
        change.verified(over, Verified(1)),
        change.verifying(over, NOW),
        change.cancel(over, NOW),
        change.end(over, Ended(Ending.COMPLETED, ""), NOW),
    ):
        assert after == over


def test_objects_of_a_failed_backup_go_at_once_and_again_when_late_uploads_cannot_arrive_any_more() -> None:
    over = change.end(COPYING, Ended(Ending.FAILED, "x"), NOW)
    assert plan_backup(over, NOW) == Collect(everything=True)
    over = change.collected(over, NOW)
    waits = plan_backup(over, NOW)
    assert waits == LookAgain(NOW + change.UPLOAD_AT_LONGEST, "late uploads can still arrive")
    assert plan_backup(over, waits.at) == Collect(everything=True)
    assert plan_backup(change.collected(over, waits.at), waits.at) == Settled()


def test_an_agent_that_works_on_though_it_was_told_to_stop_is_given_up() -> None:
    unwanted = change.cancel(COPYING, NOW)
    for passed in range(10, 60, 10):
        unwanted = change.renew(unwanted, "n1", 7, Phase.COPYING, passed, 0.0, NOW + passed)
        assert isinstance(plan_backup(unwanted, NOW + passed), LookAgain)
    asked = change.store_said(change.renew(unwanted, "n1", 7, Phase.COPYING, 99, 0.0, NOW + STOP), Absent(1))
    assert plan_backup(asked, NOW + STOP) == End(Ended(Ending.FAILED, "the backup was cancelled"))


def test_in_a_store_that_was_set_back_also_an_attempt_that_nobody_took_may_have_ended_well() -> None:
    back = msgspec.structs.replace(NEW, set_back=True)
    assert isinstance(plan_backup(back, NOW + 300.0), AskStore)
    assert plan_backup(change.store_said(back, Present(1, "d")), NOW + 300.0) == Verify(1, "d")


def test_the_end_told_again_is_no_news_even_after_the_end() -> None:
    done = change.report(COPYING, "n1", 7, Done("d"), NOW)
    over = change.end(done, Ended(Ending.COMPLETED, ""), NOW)
    assert change.report(over, "n1", 7, Done("d"), NOW + 99.0) == over


def test_a_complete_backup_loses_only_what_its_dead_attempts_left() -> None:
    over = change.end(change.claim(second(), "n2", 8, NOW), Ended(Ending.COMPLETED, ""), NOW)
    assert plan_backup(over, over.collect_after) == Collect(everything=False)


def test_a_deleted_backup_that_is_being_read_waits_for_its_readers() -> None:
    over = change.delete(change.end(TAKEN, Ended(Ending.COMPLETED, ""), NOW), NOW)
    read = msgspec.structs.replace(over, readers=1)
    assert isinstance(plan_backup(read, over.collect_after), LookAgain)
    assert plan_backup(over, over.collect_after) == Collect(everything=True)


def test_what_was_written_and_is_no_backup_is_not_complete() -> None:
    done = change.report(TAKEN, "n1", 7, Done("d"), NOW)
    bad = change.verified(change.verifying(done, NOW), Rotten("piece 3 is missing"))
    assert plan_backup(bad, NOW) == NextAttempt("piece 3 is missing")


def test_a_verification_whose_controller_vanished_is_tried_once_more_whatever_the_deadline() -> None:
    """A deadline shorter than a controller's lease condemns no good backup for the controller's crash."""
    done = change.verifying(change.report(TAKEN, "n1", 7, Done("d"), NOW), NOW)
    much_later = NOW + 2 * done.limits.verify
    assert plan_backup(done, much_later) == Verify(1, "d")
    again = change.verifier_vanished(done, much_later)
    assert plan_backup(change.verified(again, Verified(9)), much_later) == End(Ended(Ending.COMPLETED, ""))
    match plan_backup(again, much_later):
        case End(ended):
            assert ended.reason == "it could not be verified in time: the controller that asked has vanished"
        case other:
            raise AssertionError(other)
    early = change.verifier_vanished(done, NOW + 1.0)
    assert plan_backup(early, NOW + done.limits.verify - 1.0) == Verify(1, "d")
    said = change.verified(done, Rotten("piece 3 is missing"))
    assert change.verifier_vanished(said, much_later) == said


# Any world: whatever agent and blob store do, it ends within its deadlines.

AGENT = st.sampled_from(["nothing", "claim", "work", "idle", "done", "gave", "late", "vanish"])
STORE = st.sampled_from(["absent", "present", "away"])
VERDICT = st.sampled_from(["good", "rotten", "away", "lost"])
USER = st.sampled_from(["nothing"] * 12 + ["cancel", "delete", "instance"])
STEP = st.tuples(AGENT, STORE, VERDICT, USER, st.floats(0.1, 60.0))


def longest(limits: Limits) -> float:
    """What the deadlines add up to, and a minute for looking."""
    stall = max(limits.stalls.values())
    one = limits.claim + stall + LEASE + limits.unknown + limits.verify
    return limits.attempts * (one + 60.0)


class World:
    """The planner's actions carried out, against an agent and a blob store that do as the data says."""

    def __init__(self) -> None:
        self.backup, self.now, self.incarnation = NEW, NOW, 1
        self.moved, self.size = NOW, 0
        self.written: int | None = None
        self.lost = False

    def agent(self, what: str) -> None:
        nonce, attempt = self.backup.attempt.nonce, self.backup.attempt
        try:
            match what:
                case "claim" if attempt.claimed is None:
                    self.backup = change.claim(self.backup, nonce, self.incarnation, self.now)
                    self.moved = self.now
                case "work" | "idle":
                    if what == "work":
                        self.moved, self.size = self.now, self.size + 1
                    idle = self.now - self.moved
                    self.backup = change.renew(
                        self.backup, nonce, self.incarnation, Phase.COPYING, self.size, idle, self.now
                    )
                case "done":
                    self.backup = change.report(self.backup, nonce, self.incarnation, Done("d"), self.now)
                    self.written = attempt.number
                case "gave":
                    self.backup = change.report(self.backup, nonce, self.incarnation, Gave("x"), self.now)
                case "late":
                    change.report(self.backup, "n0", 1, Done("old"), self.now)
                case "vanish":
                    self.incarnation += 1
        except change.Late:
            pass

    def control(self, plan: Plan, store: str, verdict: str) -> None:
        match plan:
            case NextAttempt():
                nonce = f"n{self.backup.attempt.number + 1}"
                self.backup = change.next_attempt(self.backup, nonce, self.now)
            case AskStore():
                number = self.backup.attempt.number
                said = {"absent": Absent(number), "present": Present(number, "d")}
                answer = said.get(store, Unanswered(self.now, "away"))
                self.backup = change.store_said(self.backup, answer)
            case Verify():
                if self.lost:
                    self.backup = change.verifier_vanished(self.backup, self.now)
                self.backup = change.verifying(self.backup, self.now)
                self.lost = verdict == "lost"
                if self.lost:
                    return
                found = {"good": Verified(1), "rotten": Rotten("r")}
                answer_ = found.get(verdict, Unanswered(self.now, "away"))
                self.backup = change.verified(self.backup, answer_)
            case End(ended):
                self.backup = change.end(self.backup, ended, self.now)
            case Collect():
                self.backup = change.collected(self.backup, self.now)
            case LookAgain(at, _):
                assert at > self.now, "a look that is due already would spin"
            case Settled():
                pass

    def step(self, agent: str, store: str, verdict: str, seconds: float) -> None:
        before = self.backup.ended
        self.agent(agent)
        self.control(plan_backup(self.backup, self.now), store, verdict)
        assert before is None or self.backup.ended == before
        self.now += seconds

    def user(self, what: str) -> None:
        match what:
            case "cancel":
                self.backup = change.cancel(self.backup, self.now)
            case "delete":
                self.backup = change.delete(self.backup, self.now)
            case "instance":
                self.backup = change.instance_deleted(self.backup, self.now)


AFTERWARDS = {
    "all is well": (["claim", "work", "done"], "absent", "good"),
    "the agent is dead": (["nothing"], "absent", "good"),
    "the agent lives and does nothing": (["claim", "idle"], "absent", "good"),
    "the agent comes back all the time": (["vanish", "claim", "work"], "absent", "good"),
    "the blob store is away": (["claim", "done"], "away", "away"),
    "the blob store rots": (["claim", "done"], "present", "rotten"),
}


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_whatever_has_happened_it_ends_within_its_deadlines_and_stays_ended(
    afterwards: str, steps: list[tuple[str, str, str, str, float]]
) -> None:
    world = World()
    for agent, store, verdict, user, seconds in steps:
        world.user(user)
        world.step(agent, store, verdict, seconds)
    agents, store, verdict = AFTERWARDS[afterwards]
    over = world.now + longest(NEW.limits)
    for agent in itertools.cycle(agents):
        if world.backup.ended is not None:
            break
        assert world.now < over, world.backup
        world.step(agent, store, verdict, 7.0)
    if afterwards == "all is well" and stop_wanted(world.backup) is None and not steps:
        assert world.backup.ended == Ended(Ending.COMPLETED, "")
    over = world.now + change.UPLOAD_AT_LONGEST + 60.0
    while not isinstance(plan_backup(world.backup, world.now), Settled):
        assert world.now < over, world.backup
        world.step("late", "absent", "good", 7.0)
