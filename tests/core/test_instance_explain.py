"""Every state of an instance explains itself: why, who has the next step, which it is, and by when."""

from __future__ import annotations

import pytest

from tests.core.instance_states import (
    ACTIVE,
    BROKEN,
    BUILDING,
    FAILURE,
    FINAL,
    NEW,
    NOW,
    PASSING,
    SILENT_HOST,
    UNPLACED,
    backup,
    but,
    pending,
    server,
    view,
)
from tests.core.test_instance_control import everything
from unstuck.core.instance.control import Settled, plan_control
from unstuck.core.instance.data import Instance, PendingKind
from unstuck.core.instance.explain import AGENT, CONTROL, NOBODY, explain
from unstuck.core.instance.view import GuestStep, ServerState

CELLS: list[tuple[str, Instance, str, str]] = [
    ("no host yet", but(NEW, server=UNPLACED), "its server is built", CONTROL),
    ("its server is built", but(NEW, server=BUILDING), "its server is built", "its host"),
    (
        "its data is restored",
        but(NEW, guest=1, alive=True, seen=view(applied=False, step=GuestStep.RESTORING)),
        "restoring",
        AGENT,
    ),
    ("it is usable", ACTIVE, "its database answers", NOBODY),
    ("a backup runs", but(ACTIVE, backup=backup()), "a backup runs; the instance is usable", NOBODY),
    ("its database crashed", but(ACTIVE, seen=view(server=ServerState.CRASHED)), "crashed", NOBODY),
    ("its agent is silent", but(ACTIVE, alive=False), "agent is silent", NOBODY),
    ("its host is silent", but(ACTIVE, server=server(host=SILENT_HOST)), "host has been silent", NOBODY),
    ("a passing trouble", but(ACTIVE, seen=view(trouble=PASSING)), "it is slow", NOBODY),
    (
        "a final trouble",
        but(ACTIVE, seen=view(server=ServerState.DOWN, trouble=FINAL)),
        "it is broken",
        NOBODY,
    ),
    ("a recorded failure", but(NEW, failure=FAILURE), "it failed", NOBODY),
    ("its server is broken", but(ACTIVE, server=BROKEN), "it is broken", NOBODY),
    (
        "a restart waits",
        but(ACTIVE, pending=pending(PendingKind.RESTART)),
        "a restart was asked for",
        CONTROL,
    ),
]


@pytest.mark.parametrize(("name", "instance", "why", "holder"), CELLS, ids=[cell[0] for cell in CELLS])
def test_a_state_says_why(name: str, instance: Instance, why: str, holder: str) -> None:
    said = explain(instance, NOW)
    assert why in said.why
    assert said.holder == holder


def test_whatever_goes_wrong_says_what_helps() -> None:
    assert explain(but(NEW, failure=FAILURE), NOW).next == "help it"
    assert explain(but(ACTIVE, server=BROKEN), NOW).next == "mend it"


def test_everything_has_a_reason_and_what_is_not_settled_a_time() -> None:
    seen = 0
    for instance in everything():
        said = explain(instance, NOW)
        assert said.why
        assert said.holder
        assert said.next
        settled = isinstance(plan_control(instance, NOW), Settled)
        assert (said.by is None) == settled
        assert said.by is None or said.by >= NOW.lease
        seen += 1
    assert seen > 1000
