"""Crash points that are a matter of the planners alone: no passing of time ends a build."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from tests.core.test_plan_control import HOST, NEW, NOW
from tests.proof import proves
from unstuck.core.server.control import FailIt, plan_control
from unstuck.core.server.data import Fence, Gone, Observation, Place, Step, Thing
from unstuck.core.server.status import status
from unstuck.core.time import Now

BUILDING = msgspec.structs.replace(
    NEW, place=Place("h", Fence(1, 1), "n1"), host=HOST, lease_incarnation=1, work_deadline=NOW.lease + 30.0
)
STEPS = (None, Step.FETCHING, Step.DISK, Step.NETWORK, Step.STARTING, Step.WAITING)
TIMES = (60.0, 600.0, 3_600.0, 86_400.0, 30 * 86_400.0)


@proves("P21", ends="BUILD while it works, with the condition `stalled` when nothing moves; then ACTIVE")
@pytest.mark.parametrize(("step", "passed"), list(itertools.product(STEPS, TIMES)))
def test_p21_no_passing_of_time_turns_a_build_into_an_error(step: Step | None, passed: float) -> None:
    seen = None if step is None else Observation(1, Gone(), Thing.ABSENT, step)
    now = Now(wall=NOW.wall + passed, lease=NOW.lease + passed)
    host = msgspec.structs.replace(HOST, seen=now.lease - 1)
    server = msgspec.structs.replace(BUILDING, seen=seen, host=host)
    assert status(server, now).status == "BUILD"
    assert not isinstance(plan_control(server, now), FailIt)


@proves(
    "P23", ends="BUILD with the condition `host-away`, until its user deletes it or the host is struck off"
)
@pytest.mark.parametrize("passed", TIMES)
def test_p23_a_build_on_a_silent_host_stays_a_build(passed: float) -> None:
    now = Now(wall=NOW.wall + passed, lease=NOW.lease + passed)
    assert status(BUILDING, now).status == "BUILD"
    assert not isinstance(plan_control(BUILDING, now), FailIt)
