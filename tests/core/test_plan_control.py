"""The control plane's planner and the status function, over every state a server can be in."""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest

from unstuck.core.server.control import (
    AWAY,
    NO_HOST_DEADLINE,
    EndCapture,
    FailIt,
    FinishDelete,
    LookAgain,
    Outcome,
    PlaceIt,
    Settled,
    operation_outcome,
    plan_control,
    satisfied,
)
from unstuck.core.server.data import (
    Failure,
    Fence,
    Flavor,
    Former,
    Gone,
    Guest,
    HostSeen,
    Mute,
    Observation,
    Off,
    Operation,
    OperationKind,
    Paused,
    Place,
    Power,
    Running,
    Server,
    Shelf,
    Step,
    Thing,
    Trouble,
    Unclear,
)
from unstuck.core.server.status import status
from unstuck.core.time import Now

NOW = Now(wall=5000.0, lease=2000.0)
HOST = HostSeen("h", "h", NOW.lease - 1, 1, enabled=True)
AWAY_HOST = msgspec.structs.replace(HOST, seen=NOW.lease - AWAY)
NEW = Server(
    id="a",
    created=NOW.lease - 1,
    power=Power.ON,
    intent=1,
    edge=1,
    deleted=False,
    removed=False,
    place=None,
    host=None,
    seen=None,
    seen_at=0.0,
    disk_recorded=False,
    launched_wall=None,
    lease_incarnation=None,
    work_deadline=None,
    operation=None,
    failure=None,
)
PLACED = msgspec.structs.replace(NEW, place=Place("h", Fence(1, 1), "n"), host=HOST)


def seen(
    guest: Guest, *, intent: int = 1, step: Step = Step.AT_REST, trouble: Trouble | None = None
) -> Observation:
    return Observation(intent, guest, Thing.PRESENT, step, trouble)


ACTIVE = msgspec.structs.replace(PLACED, seen=seen(Running(1)), disk_recorded=True, launched_wall=1.0)


def replaced(server: Server, **values: object) -> Server:
    return msgspec.structs.replace(server, **values)


def test_a_new_server_is_placed() -> None:
    assert plan_control(NEW, NOW) == PlaceIt()


def test_a_server_that_found_no_host_in_time_fails_with_a_remedy() -> None:
    plan = plan_control(replaced(NEW, created=NOW.lease - NO_HOST_DEADLINE), NOW)
    assert isinstance(plan, FailIt)
    assert plan.remedy


def test_what_failed_is_left_alone_until_somebody_deletes_it() -> None:
    failed = replaced(NEW, failure=Failure("no-host", "r", "m", 1.0))
    assert plan_control(failed, NOW) == Settled()
    assert plan_control(replaced(failed, deleted=True), NOW) == FinishDelete(tombstone=False)


def test_after_an_operators_mark_it_waits_for_a_host_again() -> None:
    old = replaced(NEW, created=NOW.lease - 2 * NO_HOST_DEADLINE)
    assert isinstance(plan_control(old, NOW), FailIt)
    assert plan_control(replaced(old, waiting=NOW.lease - 1), NOW) == PlaceIt()


def test_a_server_whose_guest_runs_is_settled() -> None:
    assert plan_control(ACTIVE, NOW) == Settled()


DELETED = replaced(ACTIVE, deleted=True, intent=2)
DELETES = [
    (replaced(NEW, deleted=True), FinishDelete(tombstone=False)),
    (replaced(DELETED, seen=seen(Gone(), intent=2, step=Step.REMOVED)), FinishDelete(tombstone=False)),
    (replaced(DELETED, host=AWAY_HOST), FinishDelete(tombstone=True)),
    (replaced(DELETED, removed=True), Settled()),
]


@pytest.mark.parametrize(("server", "plan"), DELETES)
def test_delete_ends_when_nothing_is_left_or_nobody_answers(server: Server, plan: object) -> None:
    assert plan_control(server, NOW) == plan


def test_delete_waits_for_a_living_host() -> None:
    plan = plan_control(DELETED, NOW)
    assert isinstance(plan, LookAgain)
    assert plan.at > NOW.lease


GUESTS: list[Guest] = [
    Running(1),
    Running(2),
    Paused(1),
    Paused(2),
    Paused(2, "io-error"),
    Off(1),
    Mute(1),
    Gone(),
    Gone(5),
    Unclear("?"),
]
TROUBLES = [None, Trouble("x", "reason", "remedy"), Trouble("y", "reason", "remedy", final=True)]
OPERATIONS = [None] + [
    Operation("o", kind, 2, soft, NOW.lease - 5, deadline)
    for kind in OperationKind
    for soft in (True, False)
    for deadline in (NOW.lease + 50, NOW.lease - 50)
]
SEEN = [None] + [
    seen(guest, intent=intent, step=step, trouble=trouble)
    for guest in GUESTS
    for intent in (1, 2)
    for step in (Step.AT_REST, Step.FETCHING, Step.REMOVED)
    for trouble in TROUBLES
]


@functools.cache
def everything() -> list[Server]:
    """Every state there is; made when it is asked for, because every process of a run imports this."""
    return [
        replaced(
            base,
            seen=observation,
            operation=operation,
            deleted=deleted,
            power=power,
            intent=2,
            edge=2,
            launched_wall=launched,
            disk_recorded=launched is not None,
            work_deadline=NOW.lease - 1,
        )
        for base, observation, operation, deleted, power, launched in itertools.product(
            (NEW, PLACED, replaced(PLACED, host=AWAY_HOST)),
            SEEN,
            OPERATIONS,
            (True, False),
            Power,
            (None, 1.0),
        )
    ]


def test_no_state_is_left_without_a_next_look_that_lies_ahead() -> None:
    """Law 2 for every state there is: settled, due now, or looked at again later than now."""
    for server in everything():
        plan = plan_control(server, NOW)
        if isinstance(plan, LookAgain):
            assert plan.at > NOW.lease, server
            assert plan.reason


def test_a_delete_is_never_called_settled_before_it_is_done() -> None:
    for server in everything():
        if server.deleted:
            assert plan_control(server, NOW) != Settled(), server


def test_active_is_claimed_only_for_what_once_ran() -> None:
    for server in everything():
        if server.launched_wall is None and server.power is Power.ON and server.marked_wall is None:
            assert status(server, NOW).status in ("BUILD", "ERROR"), server


def test_a_silent_host_changes_no_status() -> None:
    for server in everything():
        if server.host is not HOST:
            continue
        silent = status(replaced(server, host=AWAY_HOST), NOW)
        heard = status(server, NOW)
        assert (silent.status, silent.vm_state, silent.task_state) == (
            heard.status,
            heard.vm_state,
            heard.task_state,
        )
        assert silent.host_status == "DOWN"


def test_every_error_explains_itself() -> None:
    for server in everything():
        shown = status(server, NOW)
        if shown.status == "ERROR":
            assert shown.fault is not None
            assert shown.fault[0]
            assert shown.fault[1]


def test_an_operation_is_done_only_when_the_facts_say_so() -> None:
    for server in everything():
        if server.operation is None:
            continue
        outcome = operation_outcome(server, server.operation)
        if outcome is not None and outcome.state == "done" and not server.deleted:
            assert satisfied(server), server


def asked(kind: OperationKind, power: Power, guest: Guest = ACTIVE.seen.guest) -> Server:  # type: ignore[union-attr]
    operation = Operation("o", kind, 1, False, NOW.lease - 1, NOW.lease + 50)
    return replaced(ACTIVE, power=power, intent=2, seen=seen(guest), operation=operation)


OFF = replaced(ACTIVE, power=Power.OFF, seen=seen(Gone()))


def pictured(observation: Observation) -> Server:
    return replaced(asked(OperationKind.IMAGE, Power.ON), capture="i", seen=observation)


def test_an_image_that_has_not_come_in_time_is_given_up_and_never_before() -> None:
    server = pictured(seen(Running(1), intent=2, step=Step.CAPTURING))
    assert server.operation is not None
    assert isinstance(plan_control(server, NOW), LookAgain)
    late = Now(wall=NOW.wall, lease=server.operation.deadline)
    assert plan_control(server, late) == EndCapture()
    assert plan_control(replaced(server, host=AWAY_HOST), late) == EndCapture(), "whoever does not answer"
    assert not isinstance(plan_control(replaced(server, deleted=True), late), EndCapture)


def test_a_guest_that_runs_does_not_mean_that_the_image_is_there() -> None:
    server = pictured(seen(Running(1), intent=2))
    assert not satisfied(server)
    assert server.operation is not None
    assert operation_outcome(server, server.operation) is None
    failed = Trouble("image-failed", "why", "again")
    server = replaced(server, seen=seen(Running(1), intent=2, trouble=failed))
    assert server.operation is not None
    assert operation_outcome(server, server.operation) == Outcome("failed", "why")


FORMER = Former("1", "{}", Flavor(1, 64, 1))


def resizing(observation: Observation) -> Server:
    server = asked(OperationKind.RESIZE, Power.ON)
    return replaced(server, before=FORMER, edge=2, seen=observation)


def test_what_is_off_is_resized_when_its_host_rests() -> None:
    server = replaced(resizing(seen(Gone(), intent=2, step=Step.DISK)), power=Power.OFF, edge=1)
    assert server.operation is not None
    assert operation_outcome(server, server.operation) is None
    server = replaced(server, seen=seen(Gone(), intent=2))
    assert server.operation is not None
    assert operation_outcome(server, server.operation) is not None


SAVED = msgspec.structs.replace(seen(Gone()), memory=Thing.PRESENT)
STATUSES = [
    ("new", NEW, "BUILD", "scheduling"),
    ("placed, nothing seen", PLACED, "BUILD", None),
    ("fetching", replaced(PLACED, seen=seen(Gone(), step=Step.FETCHING)), "BUILD", "block_device_mapping"),
    ("ports", replaced(PLACED, seen=seen(Gone(), step=Step.NETWORK)), "BUILD", "networking"),
    ("starting", replaced(PLACED, seen=seen(Gone(), step=Step.STARTING)), "BUILD", "spawning"),
    ("running", ACTIVE, "ACTIVE", None),
    ("paused", replaced(ACTIVE, power=Power.PAUSED, seen=seen(Paused(1))), "PAUSED", None),
    ("stands still by itself", replaced(ACTIVE, seen=seen(Paused(1, "io-error"))), "PAUSED", None),
    ("to be paused", asked(OperationKind.PAUSE, Power.PAUSED), "ACTIVE", "pausing"),
    ("to be unpaused", asked(OperationKind.UNPAUSE, Power.ON, Paused(1)), "PAUSED", "unpausing"),
    (
        "paused, crashed, to be started again",
        replaced(ACTIVE, power=Power.PAUSED, seen=seen(Gone())),
        "PAUSED",
        None,
    ),
    ("to be suspended", asked(OperationKind.SUSPEND, Power.SUSPENDED), "ACTIVE", "suspending"),
    ("suspended", replaced(ACTIVE, power=Power.SUSPENDED, seen=SAVED), "SUSPENDED", None),
    ("to be resumed", replaced(asked(OperationKind.RESUME, Power.ON), seen=SAVED), "SUSPENDED", "resuming"),
    ("to be rebuilt", asked(OperationKind.REBUILD, Power.ON), "REBUILD", "rebuilding"),
    (
        "rebuilding",
        replaced(
            asked(OperationKind.REBUILD, Power.ON),
            disk_recorded=False,
            replaced=("n",),
            seen=seen(Gone(), intent=2, step=Step.DISK),
        ),
        "REBUILD",
        "rebuild_block_device_mapping",
    ),
    (
        "rebuilt, starting",
        replaced(
            asked(OperationKind.REBUILD, Power.ON),
            replaced=("n",),
            seen=seen(Gone(), intent=2, step=Step.STARTING),
        ),
        "REBUILD",
        "rebuild_spawning",
    ),
    (
        "rebuilding what is off",
        replaced(
            asked(OperationKind.REBUILD, Power.OFF),
            disk_recorded=False,
            replaced=("n",),
            seen=seen(Gone(), intent=2),
        ),
        "REBUILD",
        "rebuild_block_device_mapping",
    ),
    ("rebuilt, off", replaced(ACTIVE, power=Power.OFF, replaced=("n",), seen=seen(Gone())), "SHUTOFF", None),
    ("to be resized", resizing(seen(Running(1))), "RESIZE", "resize_prep"),
    (
        "its guest ends",
        resizing(seen(Running(1), intent=2, step=Step.STOPPING)),
        "RESIZE",
        "resize_migrating",
    ),
    ("its disk grows", resizing(seen(Gone(), intent=2, step=Step.DISK)), "RESIZE", "resize_migrated"),
    ("it starts", resizing(seen(Gone(), intent=2, step=Step.STARTING)), "RESIZE", "resize_finish"),
    (
        "what is off is resized",
        replaced(resizing(seen(Gone())), power=Power.OFF, edge=1),
        "RESIZE",
        "resize_prep",
    ),
    ("resized", replaced(ACTIVE, before=FORMER), "VERIFY_RESIZE", None),
    (
        "resized, off",
        replaced(ACTIVE, before=FORMER, power=Power.OFF, seen=seen(Gone())),
        "VERIFY_RESIZE",
        None,
    ),
    ("taken back", asked(OperationKind.REVERT, Power.ON), "REVERT_RESIZE", "resize_reverting"),
    (
        "a resize that failed",
        replaced(ACTIVE, before=FORMER, seen=seen(Gone(), trouble=TROUBLES[2])),
        "ERROR",
        None,
    ),
    ("an image is wanted", pictured(seen(Running(1))), "ACTIVE", "image_snapshot"),
    (
        "it is made",
        pictured(seen(Running(1), intent=2, step=Step.CAPTURING)),
        "ACTIVE",
        "image_uploading",
    ),
    (
        "of what is off",
        replaced(pictured(seen(Gone(), intent=2, step=Step.CAPTURING)), power=Power.OFF),
        "SHUTOFF",
        "image_uploading",
    ),
    (
        "to be shelved",
        replaced(asked(OperationKind.SHELVE, Power.OFF), shelved=Shelf.KEPT),
        "ACTIVE",
        "shelving",
    ),
    ("shelved", replaced(OFF, shelved=Shelf.KEPT), "SHELVED", None),
    ("offloaded", replaced(OFF, shelved=Shelf.OFFLOADED), "SHELVED_OFFLOADED", None),
    ("to be unshelved", asked(OperationKind.UNSHELVE, Power.ON, Gone()), "SHELVED", "unshelving"),
    ("shelved, marked by an operator", replaced(OFF, shelved=Shelf.KEPT, marked_wall=1.0), "ERROR", None),
    ("marked by an operator", replaced(ACTIVE, marked_wall=4000.0), "ERROR", None),
    (
        "its failure, looked at anew",
        replaced(ACTIVE, intent=2, seen=seen(Gone(), trouble=TROUBLES[2])),
        "ERROR",
        None,
    ),
    ("mute", replaced(ACTIVE, seen=seen(Mute(1))), "ACTIVE", None),
    ("crashed, to be started again", replaced(ACTIVE, seen=seen(Gone())), "ACTIVE", None),
    ("stopped", replaced(ACTIVE, seen=seen(Gone()), power=Power.OFF), "SHUTOFF", None),
    ("stopping", replaced(ACTIVE, power=Power.OFF, intent=2), "ACTIVE", "powering-off"),
    ("deleting", DELETED, "ACTIVE", "deleting"),
    ("deleted", replaced(DELETED, removed=True), "DELETED", None),
]


@pytest.mark.parametrize(("what", "server", "shown", "task"), STATUSES, ids=[row[0] for row in STATUSES])
def test_the_status_follows_from_the_facts(what: str, server: Server, shown: str, task: str | None) -> None:
    got = status(server, NOW)
    assert (got.status, got.task_state) == (shown, task)


def test_a_suspended_server_is_shut_down_as_the_compute_api_counts() -> None:
    assert status(replaced(ACTIVE, power=Power.SUSPENDED, seen=SAVED), NOW).power_state == 4
