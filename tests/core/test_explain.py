"""Every state explains itself: a table of states and what is said of them."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from unstuck.core.server.data import (
    Failure,
    Fence,
    Gone,
    HostSeen,
    Lock,
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
    Step,
    Thing,
    Trouble,
    Unclear,
)
from unstuck.core.server.explain import buried, explain
from unstuck.core.time import Now

NOW = Now(wall=2000.0, lease=1000.0)
PLACE = Place("h", Fence(1, 1), "n")
GUESTS = (Running(1), Paused(1), Off(1), Mute(1), Gone(), Unclear("dark"))


def host(silent: float = 1.0) -> HostSeen:
    return HostSeen("h", "host-1", NOW.lease - silent, 3, True)


def operation(kind: OperationKind, deadline: float = 1100.0) -> Operation:
    return Operation("o", kind, 1, False, 990.0, deadline)


FRESH = Server(
    id="s", created=900.0, power=Power.ON, intent=1, edge=1, deleted=False, removed=False, place=None,
    host=None, seen=None, seen_at=950.0, disk_recorded=False, launched_wall=None, lease_incarnation=None,
    work_deadline=None, operation=operation(OperationKind.CREATE), failure=None,
)  # fmt: skip


def but(**changes: object) -> Server:
    return msgspec.structs.replace(FRESH, **changes)


def seen(guest: object = None, step: Step = Step.AT_REST, trouble: Trouble | None = None) -> Observation:
    return Observation(1, guest or Running(1), Thing.PRESENT, step, trouble)  # type: ignore[arg-type]


FINAL = Trouble("disk-missing", "the disk is gone", "delete it", final=True)
FULL = Trouble("guest-io-error", "a write found no room", "make room")
MINOR = Trouble("image-slow", "the image cannot be fetched", "look at the network")
PLACED = {"place": PLACE, "host": host()}
RUNNING = {**PLACED, "seen": seen(), "disk_recorded": True, "launched_wall": 1.0, "operation": None}

TABLE = [
    (but(), "waits for a host", "the control plane", 200.0),
    (but(failure=Failure("no-host", "No room", "wait", 1.0), operation=None), "No room", "nobody", None),
    (but(**PLACED), "was given to the host", "host agent on host-1, incarnation 3", 100.0),
    (but(**PLACED, lease_incarnation=3, work_deadline=1050.0), "claimed", "host agent", 50.0),
    (but(**PLACED, seen=seen(Gone(), Step.FETCHING)), "fetches the image", "host agent", 100.0),
    (but(**PLACED, seen=seen(Gone(2, "no KVM"), Step.STARTING)), "last start failed: no KVM", "host", 100.0),
    (but(**PLACED, seen=seen(Gone(), Step.WAITING, MINOR)), "cannot be fetched", "host agent", 100.0),
    (but(**RUNNING), "the guest runs", "host agent", None),
    (but(**RUNNING | {"power": Power.PAUSED, "seen": seen(Paused(1))}), "is paused, as it", "host", None),
    (but(**RUNNING | {"seen": seen(Paused(1, "io-error"), Step.WAITING, FULL)}), "no room", "host", 59.0),
    (but(**RUNNING | {"intent": 2, "power": Power.PAUSED, "operation": operation(OperationKind.PAUSE)}),
     "to be paused; the host has not acted", "host agent", 100.0),
    (but(**RUNNING | {"power": Power.SUSPENDED,
                      "seen": msgspec.structs.replace(seen(Gone()), memory=Thing.PRESENT)}),
     "memory waits on the disk", "host agent", None),
    (but(waiting=950.0), "waits for a host", "the control plane", 250.0),
    (but(**RUNNING | {"host": host(75.0)}), "silent for 75 s; a guest that was started", "nobody", None),
    (but(**RUNNING | {"seen": seen(trouble=FINAL)}), "the disk is gone", "host agent", None),
    (but(**RUNNING | {"intent": 2, "power": Power.OFF, "operation": operation(OperationKind.STOP)}),
     "to be stopped; the host has not acted", "host agent", 100.0),
    (but(**RUNNING | {"power": Power.OFF, "seen": seen(Gone())}), "is off, as it should", "host agent", None),
    (but(**RUNNING | {"deleted": True}), "removes guest, ports, disk", "host agent", 59.0),
    (but(**RUNNING | {"deleted": True, "host": host(80.0)}), "silent for 80 s", "the control plane", 0.0),
    (but(deleted=True), "no host has anything", "the control plane", 0.0),
    (but(deleted=True, removed=True, operation=None), "nothing is left of it", "nobody", None),
    # docs/demo.txt said "makes the root disk" of a guest that had been running for ten seconds.
    (but(**PLACED, seen=seen(Gone(), Step.DISK)), "the host makes the root disk", "host agent", 100.0),
    (but(**PLACED, seen=seen(Gone(), Step.DISK), disk_recorded=True),
     "is made and recorded; the host makes the port and starts the guest, or", "host agent", 100.0),
    (but(**PLACED | {"host": host(75.0)}), "if a guest was started there, it runs on; what", "nobody", None),
    # Its stop is an intent of its own, which the host has yet to act on: nobody asked for something else.
    (but(**RUNNING | {"intent": 2, "power": Power.OFF, "seen": seen(Off(1))}),
     "the guest powered itself off; the host clears its process away", "host agent", 59.0),
]  # fmt: skip


@pytest.mark.parametrize(("server", "reason", "holder", "by"), TABLE)
def test_what_is_said(server: Server, reason: str, holder: str, by: float | None) -> None:
    told = explain(server, NOW)
    assert reason in told.reason
    assert told.holder.startswith(holder)
    assert told.by_seconds == by
    assert told.next


def test_a_tombstone_says_whom_it_waits_for() -> None:
    gone = explain(but(deleted=True, removed=True, operation=None), NOW)
    told = buried(gone, "host-1")
    assert "deleted while its host host-1 was silent" in told.reason
    assert told.holder == "host agent on host-1"
    assert "when the agent is back" in told.next
    assert told.status == "DELETED"


def test_conditions() -> None:
    late = but(**RUNNING | {"intent": 2, "operation": operation(OperationKind.STOP, 950.0)})
    assert [item.code for item in explain(late, NOW).conditions] == ["overdue"]
    stalled = but(**PLACED, lease_incarnation=3, work_deadline=900.0)
    assert [item.code for item in explain(stalled, NOW).conditions] == ["stalled"]
    quiet = but(**RUNNING | {"host": host(40.0)})
    assert [item.code for item in explain(quiet, NOW).conditions] == ["host-silent"]
    troubled = but(**RUNNING | {"seen": seen(trouble=FINAL)})
    assert explain(troubled, NOW).conditions[0].remedy == "delete it"


def test_marks_and_locks_are_told() -> None:
    marked = but(**RUNNING | {"marked_wall": 1.0, "locked": Lock(True, "audit")})
    told = explain(marked, NOW)
    assert told.status == "ERROR"
    assert "the guest runs" in told.reason
    assert [item.code for item in told.conditions] == ["marked", "locked"]
    assert told.conditions[1].message.endswith("an administrator, so that no member changes it: audit")


def test_it_is_total() -> None:
    """Whatever the facts, there is a reason and a next step, and no deadline without somebody behind it."""
    kinds = (None, *OperationKind)
    for guest, step, kind, power, deleted, silent, trouble in itertools.product(
        GUESTS, Step, kinds, Power, (False, True), (1.0, 40.0, 90.0), (None, MINOR, FINAL)
    ):
        for intent in (1, 2):
            told = explain(
                but(
                    place=PLACE, host=host(silent), seen=seen(guest, step, trouble), power=power,
                    deleted=deleted, intent=intent, operation=None if kind is None else operation(kind),
                ),
                NOW,
            )  # fmt: skip
            assert told.reason
            assert told.next
            assert told.by_seconds is None or told.holder != "nobody"
