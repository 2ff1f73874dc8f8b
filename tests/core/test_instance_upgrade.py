"""An upgrade comes about, or goes back to its former version, and says why; it never stays in between."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.instance_states import (
    ACTIVE,
    AGAIN,
    AWAY_HOST,
    BROKEN,
    FINAL,
    NOW,
    PASSING,
    REBOOTING,
    backup,
    but,
    pending,
    server,
    view,
)
from tests.core.test_instance_control import what
from unstuck.core.instance.control import LOOK, pending_outcome, plan_control
from unstuck.core.instance.data import Instance, Pending, PendingKind, System
from unstuck.core.instance.explain import explain
from unstuck.core.instance.status import status
from unstuck.core.instance.view import ServerState

NEW, OLD = System("new", "image-new", ()), System("old", "image-old", ())


def upgrade(
    *, applied: float | None = None, guest: int = -1, since: float = 1990.0, back: str = ""
) -> Pending:
    made = pending(PendingKind.UPGRADE, since=since, applied=applied, guest=guest)
    return msgspec.structs.replace(made, system=NEW, before=OLD, back=back)


TOLD = upgrade(applied=1995.0, guest=1)
BACK = upgrade(applied=1995.0, guest=2, back="it did not come up")
LATE = upgrade(since=1000.0, applied=1001.0, guest=1)
SLOW = view(server=ServerState.DOWN, trouble=PASSING)
DOWN = view(server=ServerState.DOWN, trouble=FINAL)


@pytest.mark.parametrize(
    ("instance", "plan", "outcome"),
    [
        (but(ACTIVE, pending=upgrade()), "Apply", None),
        (but(ACTIVE, pending=upgrade(), backup=backup()), "look 29", None),
        (but(ACTIVE, pending=upgrade(since=1000.0)), "Apply", "failed"),  # nobody was told: nothing to undo
        (but(ACTIVE, pending=TOLD, server=REBOOTING), f"look {LOOK:g}", None),
        (but(ACTIVE, pending=TOLD, server=AGAIN, guest=2), f"look {LOOK:g}", "done"),
        (but(ACTIVE, pending=TOLD, server=BROKEN), "GoBack", None),
        (but(ACTIVE, pending=TOLD, server=AGAIN, guest=2, seen=DOWN), "GoBack", None),
        # What the former guest said last, or one that is silent, says nothing of the new version.
        (but(ACTIVE, pending=TOLD, server=REBOOTING, seen=DOWN), f"look {LOOK:g}", None),
        (but(ACTIVE, pending=TOLD, server=AGAIN, guest=2, alive=False, seen=DOWN), f"look {LOOK:g}", None),
        (but(ACTIVE, pending=TOLD, server=AGAIN, guest=2, seen=SLOW),
         f"look {LOOK:g}", None),
        (but(ACTIVE, pending=LATE, server=REBOOTING), "GoBack", None),
        (but(ACTIVE, pending=LATE, server=server(host=AWAY_HOST)),
         "GoBack", None),
        (but(ACTIVE, pending=BACK, server=REBOOTING, guest=2), f"look {LOOK:g}", None),
        (but(ACTIVE, pending=BACK, server=AGAIN, guest=3), f"look {LOOK:g}", "failed"),
        (but(ACTIVE, pending=BACK, server=BROKEN), f"look {LOOK:g}", "failed"),
        (but(ACTIVE, pending=TOLD, server=BROKEN, deleted=True), "DeleteServer", "superseded"),
        (but(ACTIVE, pending=TOLD, server=None), "fail server-gone", "failed"),
    ],
)  # fmt: skip
def test_an_upgrade(instance: Instance, plan: str, outcome: str | None) -> None:
    assert what(plan_control(instance, NOW)) == plan
    found = pending_outcome(instance, NOW)
    assert (None if found is None else found.state) == outcome
    if outcome == "failed" and instance.pending is not None and instance.pending.back:
        assert found is not None
        assert "it did not come up" in found.reason


def test_it_shows_upgrade_and_why_it_goes_back() -> None:
    assert status(but(ACTIVE, pending=TOLD, server=REBOOTING), NOW).status == "UPGRADE"
    assert "another version" in explain(but(ACTIVE, pending=upgrade()), NOW).reason
    said = explain(but(ACTIVE, pending=BACK, server=REBOOTING), NOW).reason
    assert "did not come up; it goes back to its former version" in said
