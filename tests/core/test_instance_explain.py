"""Every state of an instance explains itself: why, who holds it, what comes next, by when."""

from __future__ import annotations

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
    REBOOTING,
    SILENT_HOST,
    UNPLACED,
    backup,
    but,
    pending,
    server,
    view,
)
from tests.core.test_instance_control import everything
from unstuck.core.instance.control import LookAgain, Settled, plan_control
from unstuck.core.instance.data import Instance, PendingKind
from unstuck.core.instance.explain import explain
from unstuck.core.instance.view import GuestStep, ServerState
from unstuck.core.server.explain import NOBODY

RESTORING = view(server=ServerState.DOWN, step=GuestStep.RESTORING, done=5, total=10, applied=False)
TRASHED = but(ACTIVE, deleted=True, trash_until_wall=NOW.wall + 100, server=OFF, room_mb=0)

CASES: list[tuple[Instance, str, str, str]] = [
    (but(NEW, server=UNPLACED), "waits for a host", "looks for a host", "the control plane"),
    (but(NEW, server=BUILDING), "was given to the host", "fetches the image", "host agent on h"),
    (NEW, "has not said hello yet", "if none does in half an hour", NOBODY),
    (but(NEW, guest=1), "said hello, and is silent now", "started anew", NOBODY),
    (but(NEW, guest=1, alive=True, seen=RESTORING), "backup (5 of 10 bytes)", "answers", "process 1"),
    (ACTIVE, "answers, as it should", "nothing, until", "process 1"),
    (but(ACTIVE, alive=False), "agent is silent; the database may well be in use", "restart", "process 1"),
    (but(ACTIVE, seen=view(server=ServerState.CRASHED)), "is crashed", "brings it up", "process 1"),
    (but(ACTIVE, server=server(host=SILENT_HOST)), "was seen in this state last", "nothing", "host agent"),
    (but(ACTIVE, server=server(host=AWAY_HOST)), "has been silent for 60 s", "when the agent", NOBODY),
    (but(ACTIVE, server=OFF), "its server is off", "a restart", NOBODY),
    (but(ACTIVE, backup=backup()), "backup b runs in it; it can", "ends with its reason", "process 1"),
    (but(ACTIVE, pending=pending(), backup=backup()), "waits for backup b", "cancelled for this", "control"),
    (but(ACTIVE, pending=pending()), "is to be restarted", "are told", "the control plane"),
    (but(ACTIVE, pending=pending(applied=1995.0)), "is to be restarted; ", "answers again", "process 1"),
    (but(ACTIVE, pending=pending(PendingKind.RESIZE, applied=1995.0), server=REBOOTING), "another flavor: ",
     "", "host agent on h"),
    (but(ACTIVE, pending=pending(PendingKind.RESIZE_VOLUME, applied=1995.0), server=AGAIN, alive=False),
     "a larger volume; its guest agent has not said anything", "answers again", "process 1"),
    (but(ACTIVE, pending=pending(PendingKind.REBUILD), server=server(host=AWAY_HOST)), "its host is away",
     "", NOBODY),
    (but(ACTIVE, failure=FAILURE), "it failed", "help it", NOBODY),
    (but(ACTIVE, server=BROKEN), "it is broken", "mend it", NOBODY),
    (but(ACTIVE, seen=view(server=ServerState.DOWN, trouble=FINAL)), "it is broken", "mend it", NOBODY),
    (but(ACTIVE, server=None), "its server is gone", "takes note", "the control plane"),
    (TRASHED, "in the trash; it stands still", "undelete", NOBODY),
    (but(TRASHED, server=server()), "in the trash; its server stops", "undelete", NOBODY),
    (but(TRASHED, trash_until_wall=NOW.wall), "its time in the trash is over", "removed, with the volume",
     "the control plane"),
    (but(TRASHED, trash_until_wall=None), "the instance is deleted", "with the volume", "the control"),
    (but(TRASHED, server=server(deleted=True)), "the instance is removed: ", "", "host agent on h"),
    (but(TRASHED, server=None), "its server is gone", "what is left of its row", "the control plane"),
    (but(TRASHED, removed=True, server=None), "nothing is left of it", "this is final", NOBODY),
]  # fmt: skip


@pytest.mark.parametrize(("instance", "reason", "following", "holder"), CASES)
def test_an_instance_explains_itself(instance: Instance, reason: str, following: str, holder: str) -> None:
    said = explain(instance, NOW)
    assert reason in said.reason
    assert following in said.next
    assert holder in said.holder


def test_every_state_has_a_reason_and_what_comes_next() -> None:
    for instance in everything():
        said = explain(instance, NOW)
        assert said.reason
        assert said.next
        assert said.holder


def test_what_the_control_plane_does_next_has_a_time() -> None:
    for instance in everything():
        if not isinstance(plan_control(instance, NOW), LookAgain | Settled):
            said = explain(instance, NOW)
            assert said.by_seconds is not None or said.status == "ERROR"


def test_conditions_stand_beside_the_reason() -> None:
    silent = explain(but(ACTIVE, alive=False, protected=True, unreadable=("seen",)), NOW)
    assert {one.code for one in silent.conditions} == {"agent-silent", "protected", "record-unreadable"}
    away = explain(but(ACTIVE, alive=False, server=server(host=AWAY_HOST)), NOW)
    assert [one.code for one in away.conditions] == ["host-away"]
