"""Schedules in the simulated cloud: a control plane that is away, and a clock that jumps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from unstuck.core.backup.data import Phase
from unstuck.core.backup.retention import Policy
from unstuck.core.backup.schedule import Happened
from unstuck.store import retention, schedules
from unstuck.store.engine import Tx
from unstuck.store.retention import Kept
from unstuck.store.schedules import Changes, NewSchedule, ScheduleRow
from unstuck.store.schema.database import backups
from unstuck.store.schema.schedules import backup_schedules

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

Script = Callable[["DatabaseUser"], Awaitable[None]]

MINUTE: Final = 60.0
DAYS: Final = 150.0 / 86400.0
"""A window of two and a half minutes."""
PATIENT: Final = 900.0
"""Seconds within which retention removes something, also after its clock has jumped."""
SOON: Final = 400.0
"""Seconds within which a schedule of every minute has made another backup, whatever happened."""
LATE: Final = 90.0
"""Seconds by which a tick may be overdue: a control plane is killed or frozen for less."""


class Scheduled:
    """A schedule of every minute."""

    def __init__(self, user: DatabaseUser, name: str = "s") -> None:
        self._user = user
        self.name = name
        self.jumps = 0
        self._began = 0.0

    async def begin(self) -> None:
        user = self._user
        await user.create_db("db")
        await user.ready()
        await user.write("db", 2)
        user.short_deadlines("db")
        new = NewSchedule(id=self.name, instance_id="db", name="minutely", cron="* * * * *")
        await user.request("create-schedule", schedules.create_schedule, new, "p")
        self._began = user.now()

    def row(self) -> ScheduleRow:
        return self._user.transact(lambda tx: schedules.get_schedule(tx, self.name, None))

    def made(self) -> list[str]:
        return self._user.transact(lambda tx: _made_by(tx, self.name))

    async def until(self, what: str, over: Callable[[ScheduleRow], bool]) -> None:
        began = self._user.now()
        while not over(self.row()):
            if self._user.now() > began + SOON:
                self._user.fail(f"the schedule did not come to it in time: {what}")
            await self._user.wait(2.0)

    async def makes(self, more: int = 1) -> None:
        before = self.row().made_count
        await self.until(f"{more} more backups", lambda row: row.made_count >= before + more)

    async def keep(self, **rules: Any) -> None:
        policy = Policy(**rules)
        await self._user.request("set-policy", retention.set_policy, "db", "p", policy)

    def kept(self) -> Kept:
        return self._user.transact(lambda tx: retention.preview(tx, "db", None))

    async def until_some_go(self) -> None:
        before, began = len(self.kept().row.removed), self._user.now()
        while len(self.kept().row.removed) == before:
            if self._user.now() > began + PATIENT:
                self._user.fail("nothing goes, and there is more than the policy wants")
            await self._user.wait(5.0)

    def jump(self, seconds: float) -> None:
        self.jumps += 1
        self._user.jump(seconds)

    async def end(self) -> None:
        """No tick made two, none was forgotten, and all of them ended well."""
        user = self._user
        await user.request("pause-schedule", schedules.change_schedule, self.name, "p", Changes(paused=True))
        made, row = self.made(), self.row()
        if len(made) != row.made_count:
            user.fail(f"the schedule counts {row.made_count} backups, and made {len(made)}")
        runs = [item.planned for item in row.history if item.what is Happened.MADE]
        if len(runs) != len(set(runs)):
            user.fail("a tick came twice and made two backups")
        most = (user.now() - self._began) / MINUTE + 1 + self.jumps
        if len(made) > most:
            user.fail(f"a schedule of every minute made {len(made)} backups, {most:.0f} at most were due")
        for backup_id in made:
            await user.ended(backup_id)
            user.asked.pop(f"backup {backup_id}")  # it may go by itself


def _made_by(tx: Tx, name: str) -> list[str]:
    query = sa.select(backups.c.id).where(backups.c.made_by == f"schedule:{name}")
    return list(tx.execute(query.order_by(backups.c.created, backups.c.id)).scalars())


def overdue_ticks(tx: Tx) -> list[str]:
    """Schedules with a tick that has come and that nobody runs; jumps of the clock are looked at in time."""
    rows = tx.execute(sa.select(backup_schedules).where(sa.not_(backup_schedules.c.settled)))
    now = tx.now
    return [
        row.id
        for row in rows
        if (now.wall - row.planned > LATE and now.lease - max(row.held, 0.0) > LATE)
        or now.lease - row.next_look > LATE
    ]


async def back_up_every_minute(user: DatabaseUser) -> None:
    scheduled = Scheduled(user)
    await scheduled.begin()
    await scheduled.makes(2)
    await scheduled.end()


async def ticks_while_the_control_plane_is_away(user: DatabaseUser) -> None:
    scheduled = Scheduled(user)
    await scheduled.begin()
    await scheduled.makes()
    await user.control_away(200.0)
    await scheduled.makes(2)
    if scheduled.row().missed_count < 2:
        user.fail("ticks were missed, and the schedule does not say so")
    await scheduled.end()


def _clock_jumps(*seconds: float) -> Script:
    async def clock_jumps_around_ticks(user: DatabaseUser) -> None:
        scheduled = Scheduled(user)
        await scheduled.begin()
        await scheduled.makes()
        for jump in seconds:
            scheduled.jump(jump)
            await scheduled.makes()
        await scheduled.end()

    return clock_jumps_around_ticks


async def ticks_that_find_a_backup_under_way(user: DatabaseUser) -> None:
    scheduled = Scheduled(user)
    await scheduled.begin()
    await user.hang("db", Phase.COPYING)
    await scheduled.makes()
    await scheduled.until("a tick is skipped", lambda row: row.skipped_count > 0)
    if scheduled.row().history[0].what is not Happened.SKIPPED:
        user.fail("a tick found a backup under way, and the schedule does not say so")
    await user.hang("db", None)
    await scheduled.makes()
    await scheduled.end()


async def delete_an_instance_with_a_schedule(user: DatabaseUser) -> None:
    scheduled = Scheduled(user)
    await scheduled.begin()
    await scheduled.makes()
    await user.delete_db("db")
    await scheduled.until("the schedule rests with its instance", lambda row: row.settled)
    for backup_id in scheduled.made():
        await user.ended(backup_id)


async def clock_jumps_forward_and_back(user: DatabaseUser) -> None:
    """By days, with a tick in between each time; and what has ticked before does not tick again."""
    await _clock_jumps(40 * 86400.0, -40 * 86400.0)(user)


async def clock_goes_back_over_ticks(user: DatabaseUser) -> None:
    """By a few minutes, twice: the ticks that come again make nothing, and the ones after them do."""
    await _clock_jumps(-130.0, -70.0)(user)


async def retention_keeps_the_last_ones(user: DatabaseUser) -> None:
    scheduled = Scheduled(user)
    await scheduled.begin()
    await scheduled.keep(count=2)
    await scheduled.makes(4)
    await scheduled.until_some_go()
    await scheduled.end()


async def retention_while_the_clock_is_in_doubt(user: DatabaseUser) -> None:
    """After a jump by days everything is older than the window, and nothing goes for that."""
    scheduled = Scheduled(user)
    await scheduled.begin()
    await scheduled.keep(days=DAYS)
    await scheduled.makes(3)
    scheduled.jump(40 * 86400.0)
    await user.wait(70.0)
    before = len(scheduled.kept().row.removed)
    await scheduled.makes()
    await user.wait(130.0)
    if len(scheduled.kept().row.removed) > before or scheduled.kept().row.trouble is None:
        user.fail("the clock has jumped, and retention goes by it")
    scheduled.jump(-40 * 86400.0)
    await scheduled.until_some_go()
    await scheduled.end()


SCHEDULE_SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        back_up_every_minute,
        ticks_while_the_control_plane_is_away,
        clock_jumps_forward_and_back,
        clock_goes_back_over_ticks,
        ticks_that_find_a_backup_under_way,
        delete_an_instance_with_a_schedule,
        retention_keeps_the_last_ones,
        retention_while_the_clock_is_in_doubt,
    )
}
