"""Schedules in the simulator: faults that we plant are noticed."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from unstuck.core.backup.schedule import Schedule, first_tick
from unstuck.core.time import Now
from unstuck.sim.runner import simulate
from unstuck.store import schedule_work
from unstuck.store.backups import NewBackup


def test_a_tick_without_a_name_of_its_own_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    def nameless(**values: Any) -> NewBackup:
        return NewBackup(**{**values, "made_key": str(next(numbers))})

    monkeypatch.setattr(schedule_work, "NewBackup", nameless)
    assert any("a tick came twice" in word for word in simulate("clock_goes_back_over_ticks").violations)


def test_a_schedule_that_does_not_look_at_the_clock_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a jump forward and back it would be silent for 40 days."""

    def times(schedule: Schedule, now: Now, *, paused: bool) -> dict[str, Any]:
        planned = first_tick(msgspec.structs.replace(schedule, starts=0.0), now)
        assert planned is not None
        far = now.lease + 1e9
        return {
            "planned": None if paused else planned,
            "settled": paused,
            "next_look": None if paused else far,
        }

    monkeypatch.setattr(schedule_work, "times", times)
    found = simulate("clock_jumps_forward_and_back").violations
    assert any("did not come to it in time" in word for word in found)
