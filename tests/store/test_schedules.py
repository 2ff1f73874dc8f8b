"""Schedules in the store, on both databases: a tick, what it made and the next one are one transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.backup_world import PLACES, set_instance
from tests.store.backup_play import Databases
from tests.store.test_backups import completed
from tests.store.test_barriers import overlap
from unstuck.core.backup.schedule import Happened, Kind, Missed
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.store import backups, schedule_work, schedules
from unstuck.store.engine import Store
from unstuck.store.schedules import Changes, NewSchedule, ScheduleRow
from unstuck.store.schema.schedules import backup_schedules as table
from unstuck.store.verifications import verifications_of

HOURLY = "0 * * * *"


class Scheduled(Databases):
    """With one hourly schedule ``s``."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store, folder)
        self._made = 0
        self.schedule("s")

    def schedule(self, name: str, **more: Any) -> ScheduleRow:
        new = NewSchedule(
            **{"id": name, "instance_id": self.instance, "name": "nightly", "cron": HOURLY, **more}
        )
        return self.store.transact(schedules.create_schedule, new, "project")

    def wall(self) -> float:
        return self.store.read(lambda tx: tx.now.wall)

    def row_of(self, name: str = "s") -> ScheduleRow:
        return self.store.read(schedules.get_schedule, name, None)

    def planned(self, wall: float, name: str = "s") -> None:
        self.set(name, planned=wall)

    def set(self, name: str, **values: Any) -> None:
        self.store.transact(
            lambda tx: tx.execute(sa.update(table).where(table.c.id == name).values(**values))
        )

    def hour(self) -> float:
        """The last full hour."""
        return self.wall() // 3600 * 3600

    def run_tx(self, name: str = "s") -> Any:
        self._made += 1
        new_id, nonce = f"made-{self._made}", f"tick{self._made}"
        return lambda tx: schedule_work.run_schedule(
            tx, name, new_id=new_id, nonce=nonce, keyring=self.keyring, places=PLACES
        )

    def run(self, name: str = "s") -> str | None:
        host: str | None = self.store.transact(self.run_tx(name))
        return host

    def ids(self) -> list[str]:
        return self.store.read(schedule_work.due_schedules, 10)

    def made(self) -> list[str]:
        return [row.id for row in self.store.read(backups.list_backups, None, limit=100)]


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Scheduled:
    return Scheduled(any_store, tmp_path)


def test_a_tick_makes_a_backup_once_and_plans_the_next_one(cloud: Scheduled) -> None:
    assert cloud.ids() == []
    cloud.planned(cloud.hour())
    assert cloud.ids() == ["s"]
    assert cloud.run() == "h"
    after = cloud.row_of()
    assert after.planned == cloud.hour() + 3600
    assert (after.made_count, after.skipped_count, after.missed_count) == (1, 0, 0)
    assert after.last_run == cloud.hour()
    [backup] = cloud.made()
    assert after.history[0].made == backup
    assert cloud.row(backup).made_by == "schedule:s"
    assert cloud.row(backup).name.startswith("nightly-2")
    assert cloud.ids() == []
    assert cloud.run() is None
    assert cloud.made() == [backup]


def test_a_tick_that_comes_again_after_the_clock_went_back_makes_nothing(cloud: Scheduled) -> None:
    cloud.planned(cloud.hour())
    cloud.run()
    [backup] = cloud.made()
    cloud.store.transact(backups.cancel_backup, backup, None)
    cloud.planned(cloud.hour())
    cloud.run()
    assert cloud.made() == [backup]
    after = cloud.row_of()
    assert (after.made_count, after.skipped_count) == (1, 1)
    assert after.history[0].what is Happened.SKIPPED
    assert after.history[0].made == backup


def test_of_what_was_missed_one_is_run_and_the_others_are_counted(cloud: Scheduled) -> None:
    cloud.planned(cloud.hour() - 5 * 3600)
    cloud.run()
    assert len(cloud.made()) == 1
    after = cloud.row_of()
    assert (after.made_count, after.missed_count) == (1, 5)
    assert after.history[0].missed == 5


def test_a_schedule_that_passes_over_what_it_missed_makes_nothing_and_says_why(cloud: Scheduled) -> None:
    cloud.schedule("skips", cron="0 0 1 1 *", missed=Missed.SKIP)
    cloud.planned(cloud.hour() - 400 * 86400, "skips")
    cloud.run("skips")
    after = cloud.row_of("skips")
    assert cloud.made() == []
    assert after.made_count == 0
    assert after.missed_count in (1, 2)
    assert after.history[0].what is Happened.MISSED
    assert "late" in after.history[0].reason


def test_a_tick_that_finds_a_backup_under_way_is_skipped_visibly(cloud: Scheduled) -> None:
    running = cloud.backup()
    cloud.planned(cloud.hour())
    cloud.run()
    after = cloud.row_of()
    assert cloud.made() == [running]
    assert after.skipped_count == 1
    assert running in after.history[0].reason


def test_an_instance_without_data_or_in_the_trash_is_not_backed_up(cloud: Scheduled) -> None:
    set_instance(cloud.store, cloud.instance, data_recorded=False)
    cloud.planned(cloud.hour())
    cloud.run()
    assert "no data yet" in cloud.row_of().history[0].reason
    set_instance(cloud.store, cloud.instance, data_recorded=True, deleted=True, deleted_wall=1.0)
    cloud.planned(cloud.hour())
    cloud.run()
    assert "trash" in cloud.row_of().history[0].reason
    assert cloud.made() == []
    set_instance(cloud.store, cloud.instance, removed=True)
    cloud.planned(cloud.hour())
    cloud.run()
    assert cloud.row_of().settled
    assert cloud.ids() == []


def test_a_paused_schedule_has_no_tick_and_a_resumed_one_makes_up_for_nothing(cloud: Scheduled) -> None:
    cloud.planned(cloud.hour() - 86400)
    cloud.store.transact(schedules.change_schedule, "s", "project", Changes(paused=True))
    assert cloud.row_of().planned is None
    assert cloud.ids() == []
    cloud.run()
    cloud.store.transact(schedules.change_schedule, "s", "project", Changes(paused=False))
    assert cloud.row_of().planned == cloud.hour() + 3600
    assert cloud.made() == []


def test_other_times_count_from_now_on(cloud: Scheduled) -> None:
    changes = Changes(cron="30 4 * * *", timezone="Asia/Kolkata")
    after = cloud.store.transact(schedules.change_schedule, "s", "project", changes)
    assert after.planned is not None
    assert after.planned % 86400 == 23 * 3600
    with pytest.raises(Invalid, match=r"backup_schedule\.cron"):
        cloud.store.transact(schedules.change_schedule, "s", "project", Changes(cron="0 0 30 2 *"))
    assert cloud.row_of().cron == "30 4 * * *"


def test_after_the_clock_went_back_the_next_tick_is_near_again(cloud: Scheduled) -> None:
    cloud.planned(cloud.hour() + 400 * 86400)
    cloud.set("s", next_look=0.0)
    assert cloud.ids() == ["s"]
    cloud.run()
    assert cloud.row_of().planned == cloud.hour() + 3600
    assert cloud.made() == []


def test_what_comes_with_an_instance_starts_a_day_later_at_a_time_of_its_own(cloud: Scheduled) -> None:
    def begin(name: str) -> ScheduleRow:
        new = schedules.daily(name, f"instance-{name}")
        new = NewSchedule(id=name, instance_id=cloud.instance, name=new.name, cron=new.cron)
        return cloud.store.transact(
            lambda tx: schedules.insert_schedule(tx, new, "project", starts=tx.now.lease + schedules.DELAY)
        )

    one, two = begin("one"), begin("two")
    assert one.planned is not None
    assert 86400 - 60 < one.planned - cloud.wall() < 2 * 86400 + 60
    assert one.cron != two.cron


def test_schedules_are_refused_with_their_field_and_beyond_their_number(cloud: Scheduled) -> None:
    for more, field in ({"cron": "x"}, "cron"), ({"timezone": "Mars"}, "timezone"):
        with pytest.raises(Invalid, match=rf"backup_schedule\.{field}"):
            cloud.schedule("bad", **more)
    for number in range(schedules.MOST - 1):
        cloud.schedule(f"more-{number}")
    with pytest.raises(Conflict):
        cloud.schedule("one too many")
    with pytest.raises(NotFound):
        cloud.store.transact(schedules.delete_schedule, "s", "another")
    cloud.store.transact(schedules.delete_schedule, "s", "project")
    cloud.schedule("again")


def test_a_schedule_may_verify_the_last_backup_instead(cloud: Scheduled) -> None:
    cloud.schedule("v", kind=Kind.VERIFY, query="select true")
    cloud.planned(cloud.hour(), "v")
    cloud.run("v")
    assert cloud.row_of("v").history[0].reason == "there is no complete backup"
    backup = completed(cloud)
    cloud.planned(cloud.hour(), "v")
    cloud.run("v")
    after = cloud.row_of("v")
    assert (after.made_count, after.history[0].what) == (1, Happened.MADE)
    [made] = cloud.store.read(verifications_of, backup, None)
    assert (made.id, made.query, made.made_by) == (after.history[0].made, "select true", "schedule:v")
    cloud.planned(cloud.hour(), "v")
    cloud.run("v")
    assert "the clock went back" in cloud.row_of("v").history[0].reason
    cloud.planned(cloud.hour() - 3600, "v")
    cloud.set("v", cron="0 */2 * * *")
    cloud.run("v")
    assert len(cloud.store.read(verifications_of, backup, None)) == 1
    assert len(cloud.made()) == 1


def test_one_that_failed_is_held_back_alone(cloud: Scheduled) -> None:
    cloud.schedule("other")
    for name in ("s", "other"):
        cloud.planned(cloud.hour(), name)
    cloud.store.transact(schedule_work.postpone_schedule, "s", 60.0)
    assert cloud.ids() == ["other"]


def test_of_two_control_planes_at_one_tick_one_runs_it(postgres_store: Store, tmp_path: Path) -> None:
    cloud = Scheduled(postgres_store, tmp_path)
    cloud.planned(cloud.hour())
    first, second = overlap(cloud.store, cloud.run_tx(), cloud.run_tx())
    assert (first, second) == ("h", None)
    assert len(cloud.made()) == 1
    assert cloud.row_of().made_count == 1
