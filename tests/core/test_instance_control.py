"""What the control plane does next for an instance: every cell of its plan, and when a request is over."""

from __future__ import annotations

import itertools

import pytest

from tests.core.instance_states import (
    ACTIVE,
    AGAIN,
    AWAY_HOST,
    BROKEN,
    BUILDING,
    FAILURE,
    FINAL,
    NEW,
    NOW,
    OFF,
    PASSING,
    REBOOTING,
    SERVER,
    SILENT_HOST,
    STOPPING,
    UNPLACED,
    UP,
    backup,
    but,
    observed,
    pending,
    server,
    view,
)
from unstuck.core.instance.control import (
    AGENT_ABSENT,
    LOOK,
    LOOK_BUILD,
    LOOK_HELD,
    LOOK_TRASH,
    NO_AGENT,
    SERVER_GONE,
    Apply,
    CancelBackup,
    DeleteServer,
    FailIt,
    FinishDelete,
    LookAgain,
    Plan,
    Settled,
    Shelve,
    StopServer,
    pending_outcome,
    plan_control,
    ready,
)
from unstuck.core.instance.data import Instance, LiveBackup, PendingKind
from unstuck.core.instance.view import ServerState
from unstuck.core.server.control import Outcome
from unstuck.core.server.data import Failure, Gone, Power, Running, Thing
from unstuck.store.instance_rows import next_look

GONE_FAILURE = Failure(SERVER_GONE, "gone", "none", 4000.0)


def what(plan: Plan) -> str:
    """A plan in one word, with the time of its look from now."""
    match plan:
        case LookAgain(at, _):
            return f"look {at - NOW.lease:g}"
        case FailIt(code):
            return f"fail {code}"
        case _:
            return type(plan).__name__


BUILDS: list[tuple[str, Instance, str]] = [
    ("no host yet", but(NEW, server=UNPLACED), f"look {LOOK_BUILD:g}"),
    ("placed, nothing seen", but(NEW, server=BUILDING), f"look {LOOK_BUILD:g}"),
    ("the server runs", but(NEW, server=server(seen_at=NOW.lease)), f"look {LOOK_BUILD:g}"),
    ("its agent is late", but(NEW, server=server(seen_at=NOW.lease - NO_AGENT)), f"fail {AGENT_ABSENT}"),
    ("its agent is nearly late", but(NEW, server=server(seen_at=NOW.lease - NO_AGENT + 3)), "look 3"),
    ("late, but its host is silent", but(NEW, server=server(seen_at=NOW.lease - NO_AGENT, host=SILENT_HOST)),
     f"look {LOOK_BUILD:g}"),
    ("its agent came", but(NEW, guest=1, server=server(seen_at=0.0)), f"look {LOOK_BUILD:g}"),
    ("it failed", but(NEW, failure=FAILURE), "Settled"),
    ("its server failed", but(NEW, server=server(UNPLACED, failure=FAILURE)), "Settled"),
    ("its host gave up", but(NEW, server=BROKEN), "Settled"),
    ("its guest gave up", but(NEW, guest=1, seen=view(server=ServerState.DOWN, trouble=FINAL)), "Settled"),
    ("its guest has a passing trouble",
     but(NEW, guest=1, seen=view(server=ServerState.DOWN, trouble=PASSING)),
     f"look {LOOK_BUILD:g}"),
    ("it is ready", ACTIVE, "Settled"),
    ("it is ready, and its agent is silent", but(ACTIVE, alive=False), "Settled"),
    ("its server is gone", but(ACTIVE, server=None), f"fail {SERVER_GONE}"),
    ("its server was deleted", but(ACTIVE, server=server(deleted=True)), f"fail {SERVER_GONE}"),
    ("its server was removed", but(ACTIVE, server=server(removed=True)), f"fail {SERVER_GONE}"),
    ("its server is gone, as is known", but(ACTIVE, server=None, failure=GONE_FAILURE), "Settled"),
]  # fmt: skip


@pytest.mark.parametrize(("instance", "plan"), [row[1:] for row in BUILDS], ids=[row[0] for row in BUILDS])
def test_a_new_instance(instance: Instance, plan: str) -> None:
    assert what(plan_control(instance, NOW)) == plan


@pytest.mark.parametrize("kind", list(PendingKind))
@pytest.mark.parametrize(
    ("age", "live", "plan"),
    [
        (0, None, "Apply"),
        (0, backup(heard=None), "Apply"),  # one that nobody has taken is in nobody's way
        (0, backup(), "look 29"),
        (40, backup(), "look 20"),
        (60, backup(), "CancelBackup"),
        (60, backup(cancelled=True), "Apply"),
        (0, backup(cancelled=True), "Apply"),
        (0, backup(heard=NOW.lease - 30), "Apply"),  # its agent's lease is over
    ],
)
def test_what_takes_the_datastore_down_waits_for_a_backup_a_minute_at_most(
    kind: PendingKind, age: float, live: LiveBackup | None, plan: str
) -> None:
    instance = but(ACTIVE, pending=pending(kind, since=NOW.lease - age), backup=live)
    assert what(plan_control(instance, NOW)) == plan


def test_a_cancelled_backup_is_told_what_for() -> None:
    for kind, word in ((PendingKind.RESTART, "restart"), (PendingKind.RESIZE_VOLUME, "resize"),
                       (PendingKind.REBUILD, "rebuild")):  # fmt: skip
        plan = plan_control(but(ACTIVE, pending=pending(kind, since=1900.0), backup=backup()), NOW)
        assert isinstance(plan, CancelBackup)
        assert (plan.backup_id, word in plan.reason) == ("b", True)


@pytest.mark.parametrize(
    ("instance", "plan"),
    [
        (but(ACTIVE, pending=pending(), server=server(host=AWAY_HOST)), f"look {LOOK:g}"),
        (but(ACTIVE, pending=pending(), server=server(host=SILENT_HOST)), "Apply"),
        (but(ACTIVE, pending=pending(), server=OFF), "Apply"),
        (but(ACTIVE, pending=pending(), server=BROKEN), "Apply"),
        (but(ACTIVE, pending=pending(applied=1995.0)), f"look {LOOK:g}"),
        (but(ACTIVE, pending=pending(applied=1995.0), backup=backup()), f"look {LOOK:g}"),
        (but(ACTIVE, pending=pending(since=1641.0, applied=1995.0)), "look 1"),
        (but(ACTIVE, pending=pending(), server=None), f"fail {SERVER_GONE}"),
    ],
)
def test_a_request_that_is_pending(instance: Instance, plan: str) -> None:
    assert what(plan_control(instance, NOW)) == plan


IN_TRASH = but(ACTIVE, deleted=True, trash_until_wall=NOW.wall + 10_000)


@pytest.mark.parametrize(
    ("instance", "plan"),
    [
        (IN_TRASH, "StopServer"),
        (but(IN_TRASH, server=STOPPING), f"look {LOOK:g}"),
        (but(IN_TRASH, server=server(OFF, seen=None)), f"look {LOOK:g}"),
        (but(IN_TRASH, server=server(OFF, host=AWAY_HOST)), f"look {LOOK_HELD:g}"),
        (but(IN_TRASH, server=OFF), "Shelve"),
        (but(IN_TRASH, server=OFF, room_mb=0), f"look {LOOK_TRASH:g}"),
        (but(IN_TRASH, server=OFF, room_mb=0, trash_until_wall=NOW.wall + 7), "look 7"),
        (but(IN_TRASH, server=OFF, room_mb=0, trash_until_wall=NOW.wall), "DeleteServer"),
        (but(IN_TRASH, server=server(host=AWAY_HOST), trash_until_wall=NOW.wall), "DeleteServer"),
        (but(IN_TRASH, trash_until_wall=None), "DeleteServer"),
        (but(IN_TRASH, trash_until_wall=None, server=UNPLACED), "DeleteServer"),
        (but(IN_TRASH, trash_until_wall=None, server=server(deleted=True)), f"look {LOOK:g}"),
        (but(IN_TRASH, trash_until_wall=None, server=server(removed=True)), "FinishDelete"),
        (but(IN_TRASH, trash_until_wall=None, server=None), "FinishDelete"),
        (but(IN_TRASH, server=None), "FinishDelete"),
        (but(IN_TRASH, pending=pending(), failure=FAILURE, backup=backup()), "StopServer"),
        (but(IN_TRASH, removed=True, server=None), "Settled"),
    ],
)
def test_delete_wins_and_keeps_the_volume_for_its_time(instance: Instance, plan: str) -> None:
    assert what(plan_control(instance, NOW)) == plan


def everything() -> list[Instance]:
    """Each combination of what an instance can be."""
    servers = [None, UNPLACED, BUILDING, SERVER, OFF, STOPPING, REBOOTING, AGAIN, BROKEN,
               server(deleted=True), server(removed=True), server(host=AWAY_HOST),
               server(seen=observed(Gone()))]  # fmt: skip
    views = [None, UP, view(server=ServerState.DOWN, trouble=FINAL), view(data=Thing.UNKNOWN)]
    waits = [None, pending(), pending(applied=1995.0), pending(since=1000.0)]
    trash = [None, NOW.wall - 1, NOW.wall + 1000]
    found = []
    for one, seen, wait, failure, live in itertools.product(
        servers, views, waits, [None, FAILURE], [None, backup()]
    ):
        base = but(ACTIVE, server=one, seen=seen, pending=wait, failure=failure, backup=live)
        found += [
            base,
            but(base, launched_wall=None, data_recorded=False),
            but(base, removed=True, deleted=True),
        ]
        found += [but(base, deleted=True, trash_until_wall=until) for until in trash]
    return found


def test_no_state_is_without_a_next_look_or_an_end() -> None:
    for instance in everything():
        settled, look = next_look(plan_control(instance, NOW), NOW)
        assert settled != (look is not None)
        assert look is None or look >= NOW.lease
        if instance.pending is not None and not (instance.removed or settled):
            assert look is not None


def test_a_pending_request_never_rests() -> None:
    for instance in everything():
        if instance.pending is not None and not instance.removed:
            assert not isinstance(plan_control(instance, NOW), Settled)


def test_nothing_of_an_instance_that_is_not_deleted_is_ever_removed() -> None:
    for instance in everything():
        if not instance.deleted:
            plan = plan_control(instance, NOW)
            assert not isinstance(plan, StopServer | Shelve | DeleteServer | FinishDelete)


RESIZED = pending(PendingKind.RESIZE, applied=1995.0, guest=1)


@pytest.mark.parametrize(
    ("instance", "outcome"),
    [
        (ACTIVE, None),
        (but(ACTIVE, pending=pending()), None),
        (but(ACTIVE, pending=pending(applied=1995.0), restart=1, seen=view(restart=0)), None),
        (but(ACTIVE, pending=pending(applied=1995.0), restart=1, seen=view(restart=1)), "done"),
        (but(ACTIVE, pending=pending(applied=1995.0), restart=1, seen=view(restart=1), alive=False), None),
        (but(ACTIVE, pending=RESIZED), None),  # its guest is the old one still
        (but(ACTIVE, pending=RESIZED, server=REBOOTING, guest=2), None),
        (but(ACTIVE, pending=RESIZED, server=AGAIN), None),
        (but(ACTIVE, pending=RESIZED, server=AGAIN, guest=2), "done"),
        (but(ACTIVE, pending=RESIZED, server=AGAIN, guest=2, alive=False), None),
        (but(ACTIVE, pending=RESIZED, server=AGAIN, guest=2, seen=view(server=ServerState.STARTING)), None),
        (but(ACTIVE, pending=RESIZED, server=BROKEN), "failed"),
        (but(ACTIVE, pending=pending(since=1000.0)), "failed"),
        (but(ACTIVE, pending=pending(since=1000.0, applied=1001.0), restart=1), "failed"),
        (but(ACTIVE, pending=pending(), server=None), "failed"),
        (but(ACTIVE, pending=pending(), server=server(removed=True)), "failed"),
        (but(ACTIVE, pending=pending(), deleted=True), "superseded"),
    ],
)
def test_when_a_request_is_over(instance: Instance, outcome: str | None) -> None:
    found = pending_outcome(instance, NOW)
    assert (None if found is None else found.state) == outcome


@pytest.mark.parametrize(
    ("instance", "word"),
    [
        (but(ACTIVE, server=server(host=AWAY_HOST)), "host is away"),
        (but(ACTIVE, backup=backup()), "backup was in its way"),
        (but(ACTIVE, alive=False, pending=pending(since=1000.0, applied=1001.0)), "agent is silent"),
        (but(ACTIVE, pending=pending(since=1000.0, applied=1001.0), server=REBOOTING), "server is not up"),
        (but(ACTIVE, pending=pending(since=1000.0, applied=1001.0), restart=1), "does not answer"),
    ],
)
def test_a_request_that_is_late_says_why(instance: Instance, word: str) -> None:
    late = instance if instance.pending else but(instance, pending=pending(since=1000.0))
    found = pending_outcome(late, NOW)
    assert isinstance(found, Outcome)
    assert (found.state, word in found.reason) == ("failed", True)


@pytest.mark.parametrize(
    ("instance", "is_ready"),
    [
        (ACTIVE, True),
        (but(ACTIVE, seen=None), False),
        (but(ACTIVE, alive=False), False),
        (but(ACTIVE, data_recorded=False), False),
        (but(ACTIVE, seen=view(data=Thing.ABSENT)), False),
        (but(ACTIVE, seen=view(data=Thing.UNKNOWN)), False),
        (but(ACTIVE, seen=view(generation="other")), False),
        (but(ACTIVE, seen=view(server=ServerState.STARTING)), False),
        (but(ACTIVE, seen=view(applied=False)), False),
        (but(ACTIVE, restart=2, seen=view(restart=1)), False),
        (but(ACTIVE, restart=2, seen=view(restart=3)), True),
    ],
)
def test_ready_means_that_the_wanted_data_answers(instance: Instance, is_ready: bool) -> None:
    assert ready(instance) is is_ready


def test_running_counts_only_with_power() -> None:
    """A server that was stopped and has not been seen to stop yet is not in the trash's rest."""
    resting = but(IN_TRASH, server=server(STOPPING, seen=observed(Running(1), intent=2)))
    assert isinstance(plan_control(resting, NOW), LookAgain)
    assert resting.server is not None
    assert resting.server.power is Power.OFF
    assert isinstance(plan_control(but(ACTIVE, pending=pending()), NOW), Apply)
