"""The figures of how databases are protected: damaged backups, ended logs, the worst lag."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases
from tests.store.test_instance_barriers import add_backup
from unstuck.core.archive.data import Closed
from unstuck.store import archives
from unstuck.store.engine import Store, Tx
from unstuck.store.figures import figures
from unstuck.store.protection import Protection, protection
from unstuck.store.schedules import NewSchedule, insert_schedule
from unstuck.store.schema.archive import archive_marks
from unstuck.store.schema.archive import archives as table
from unstuck.store.schema.schedules import backup_schedules
from unstuck.store.scrub_work import mark_damaged


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    found = Databases(any_store)
    found.active_db()
    return found


def told(cloud: Databases) -> Protection:
    return cloud.store.read(protection)


def test_backups_that_are_damaged_are_counted(cloud: Databases) -> None:
    assert (told(cloud).complete, told(cloud).damaged) == (0, 0)
    cloud.store.transact(add_backup)
    assert (told(cloud).complete, told(cloud).damaged) == (1, 0)
    cloud.store.transact(mark_damaged, "b", "piece 3 is missing")
    assert (told(cloud).complete, told(cloud).damaged) == (1, 1)


def test_a_log_that_waits_is_behind_since_what_happened_first_and_is_not_kept(cloud: Databases) -> None:
    def marks(tx: Tx, **stop: Any) -> None:
        archives.open_archive(tx, "db", "p", "g")
        archive = archives.open_id(tx, "db")
        tx.execute(sa.update(table).values(timeline=1, **stop))
        tx.execute(sa.delete(archive_marks))
        for position, ago in (("0A", 90.0), ("0B", 60.0), ("0C", 30.0)):
            values = {"archive_id": archive, "wall": tx.now.wall - ago, "timeline": 1, "position": position}
            tx.execute(sa.insert(archive_marks).values(values))

    cloud.store.transact(marks, start="00", stop="0A")
    found = told(cloud)
    assert 60 <= found.lag_seconds < 75
    assert found.archives == {"open": 1, "gap": 0, "diverged": 0}
    cloud.store.transact(marks, start="00", stop="0C")
    assert told(cloud).lag_seconds == 0
    cloud.store.transact(marks, start="00", stop="0A")
    archive = cloud.store.read(archives.open_id, "db")
    assert archive is not None
    cloud.store.transact(archives.close_archive, archive, Closed.GAP)
    found = told(cloud)
    assert (found.lag_seconds, found.archives) == (0, {"open": 1, "gap": 1, "diverged": 0})


def test_a_run_that_nobody_deals_with_is_overdue(cloud: Databases) -> None:
    new = NewSchedule(id="s", instance_id="db", name="often", cron="* * * * *")
    cloud.store.transact(insert_schedule, new, "p", starts=0.0)
    assert cloud.store.read(figures).moving["schedule_run"].overdue == 0
    late = sa.update(backup_schedules).where(backup_schedules.c.id == "s")
    cloud.store.transact(lambda tx: tx.execute(late.values(planned=tx.now.wall - 50)))
    found = cloud.store.read(figures).moving["schedule_run"]
    assert (found.count, found.overdue) == (1, 1)
    assert 50 <= found.oldest_seconds < 65
