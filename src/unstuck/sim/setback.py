"""The store is set back by N commits, and the clock jumps: schedules, and what happens afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.core.errors import Refused
from unstuck.core.generation import Mark
from unstuck.store import disputes
from unstuck.store.servers import Caller

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser
    from unstuck.sim.user import SimUser

DISTANCES = (1, 2, 5, 12)
"""By how many commits the store is set back."""
JUMPS = (3600.0, -3600.0, 86_400.0)
"""Seconds by which the clock jumps: an hour forward, back, and the whole machine asleep for a day."""
SETBACK_SCENARIOS = (
    "create",
    "one_after_another",
    "create_and_delete",
    "delete_while_building",
    "stop_and_start",
    "reboot_hard",
    "delete_while_stopping",
    "two_at_once",
)
DATABASE_SETBACK = "lives_of_databases"
JUMP_SCENARIOS = ("create_and_delete", "stop_and_start", "reboot_soft", "host_dies_in_delete")


OPERATOR = Caller("req-accept", "operator", "p")


class Setback(msgspec.Struct, frozen=True):
    """A copy is made after commit ``copy``, and put back after commit ``back``.

    ``record``: the control plane's own record of how far the store was survives, and the copy is older
    than its last tick; else only agents can tell. Users do not wait for that.
    ``impatient``: the user deletes everything at once, before an operator has settled what is in dispute.
    ``hasty``: the user deletes all that is there again as soon as there is a control plane.
    ``silent``: how long one host says nothing afterwards; its guests run on.
    """

    copy: int
    back: int
    record: bool = True
    impatient: bool = False
    silent: float = 0.0
    hasty: bool = False


class Jump(msgspec.Struct, frozen=True):
    """The store's clock jumps by ``seconds`` at an effect. ``asleep``: only the control plane stands still
    for so long, and everybody else goes on."""

    effect: int
    seconds: float
    asleep: bool = False


def setbacks(one: int, two: int) -> Iterator[tuple[int, Setback]]:
    """Schedules for a scenario that has ``one`` commits on one host and ``two`` on two; with their hosts.

    Every commit is the last one before the store is set back by several distances, and every commit is the
    copy that is put back in the end: noticed by hosts only, and with one host that is silent just then.
    """
    for back in range(1, one + 1):
        for turn, distance in enumerate(DISTANCES):
            if distance <= back:  # commit 0 is the store before anybody came
                record, impatient = (back + turn) % 2 == 0, (back // 2 + turn) % 2 == 0
                yield 1, Setback(back - distance, back, record=record, impatient=impatient)
    for copy in range(one):
        yield 1, Setback(copy, one, record=False, impatient=copy % 2 == 0)
    for copy in range(two):
        yield 2, Setback(copy, two, silent=40.0, impatient=copy % 2 == 1)
        for silent in (0.0, 40.0):
            hasty = (copy + (silent > 0)) % 2 == 0
            yield 2, Setback(copy, two, record=False, impatient=copy % 3 == 0, silent=silent, hasty=hasty)


def database_setbacks(commits: int) -> Iterator[Setback]:
    """The same distances from every third commit, and every sixth commit at the end."""
    for back in range(1, commits + 1, 3):
        distance = DISTANCES[(back // 3) % len(DISTANCES)]
        if distance <= back:
            yield Setback(back - distance, back, record=back % 2 == 0, impatient=back % 5 == 0)
    for copy in range(0, commits, 6):
        yield Setback(copy, commits, record=False, impatient=copy % 4 == 0)


async def aftermath(user: SimUser, plan: Setback) -> None:
    """What users and an operator do after the store was set back; in the end nothing is left of anything."""
    if plan.hasty:
        await user.delete_all()
    if plan.silent and plan.copy % 2:
        await user.wait(7.0)  # the clock has ticked since, and the other host has spoken
    await user.create("new")
    await user.until("new", "ACTIVE")
    if plan.impatient:
        await user.delete_all()
    await user.quiet()
    await user.check_nothing_lost()
    await accept(user)
    await user.quiet()
    if plan.impatient:
        return
    await user.check_agreement()
    await user.delete_all()


async def database_aftermath(user: DatabaseUser, plan: Setback) -> None:
    """The same with databases: new ones are made and backed up at once, and what there is goes on."""
    await user.create_db("new")
    await user.ready("new")
    await user.write("new")
    await user.backup("after", "new")
    await user.ended("after", "COMPLETED")
    if plan.impatient:
        await user.delete_databases()
    await user.quiet()
    await user.check_nothing_lost()
    await accept(user)
    await user.quiet()
    await user.check_backups()
    await user.delete_databases()
    await user.quiet()
    await user.delete_all()


async def accept(user: SimUser) -> None:
    """The operator accepts what is in dispute, as one diff."""
    for _ in range(100):
        found = user.transact(disputes.diff, disputes.Files())
        if found is None:
            return
        try:
            user.transact(
                disputes.accept, found.id, disputes.Files(), Caller("req-accept", "op", "p"), project="p"
            )
        except Refused as error:
            user.log(f"not accepted: {error}")
            await user.wait(2.0)
        else:
            user.log(f"accepted: {[(item.kind, item.id) for item in found.items]}")
            return
    user.fail("recovery mode does not end")


__all__ = [
    "DATABASE_SETBACK", "DISTANCES", "JUMPS", "Jump", "Mark", "Setback", "accept", "aftermath",
    "database_aftermath", "database_setbacks", "setbacks",
]  # fmt: skip
