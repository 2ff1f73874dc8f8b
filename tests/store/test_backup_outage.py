"""A control plane that was away: its silence is charged to nobody's backup, and deadlines move with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.backup_play import Databases
from unstuck.core.backup.control import AskStore
from unstuck.store import clock
from unstuck.store.engine import Store


class Time:
    """The machine's clock, and a control plane that ticks or does not."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.store: Store

    def passes(self, seconds: int, *, ticking: bool = True) -> None:
        if not ticking:
            self.wall += seconds
            return
        for _ in range(seconds):
            self.wall += 1.0
            self.store.transact(clock.tick, lease_seconds=30.0)


@pytest.fixture
def time(tmp_path: Path) -> Iterator[Time]:
    made = Time()
    made.store = Store(f"sqlite:///{tmp_path}/own.db", wall=lambda: made.wall)
    made.store.create_all()
    made.store.transact(clock.init_clock, generation_id="0" * 32)
    yield made
    made.store.close()


def test_an_outage_longer_than_the_lease_gives_up_no_agent_that_lives(time: Time, tmp_path: Path) -> None:
    cloud = Databases(time.store, tmp_path)
    backup_id = cloud.backup()
    cloud.take(backup_id)
    time.passes(25)
    time.passes(3600, ticking=False)
    time.passes(29)
    assert cloud.begin(backup_id).work is None
    assert cloud.renew(backup_id) is None
    time.passes(29)
    assert cloud.begin(backup_id).work is None
    assert cloud.facts(backup_id).attempt.number == 1
    time.passes(3)
    work = cloud.begin(backup_id).work
    assert work is not None, "a silence of the agent's own is one"
    assert isinstance(work.plan, AskStore)


def test_a_claim_deadline_is_not_used_up_by_an_outage(time: Time, tmp_path: Path) -> None:
    cloud = Databases(time.store, tmp_path)
    backup_id = cloud.backup()
    time.passes(10)
    time.passes(86400, ticking=False)
    time.passes(10)
    cloud.begin(backup_id)
    assert cloud.shown(backup_id) == "NEW"
    assert cloud.due() == []
    cloud.take(backup_id)


def test_restarts_without_end_do_not_keep_a_dead_agents_attempt_alive(time: Time, tmp_path: Path) -> None:
    """One that comes up every 25 s for 8 s still judges, in the end."""
    cloud = Databases(time.store, tmp_path)
    backup_id = cloud.backup()
    cloud.take(backup_id)
    for _ in range(12):
        time.passes(25, ticking=False)
        time.passes(8)
    assert cloud.begin(backup_id).work is not None
