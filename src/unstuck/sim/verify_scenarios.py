"""Verifications by a restore in the simulated cloud: nothing of them stays but the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from unstuck.core.backup.verification import Result, Verified
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.sim.blobs import Mode
from unstuck.store.backup_rows import load_backup
from unstuck.store.engine import Tx
from unstuck.store.schema.database import instances
from unstuck.store.schema.schedules import backup_verifications
from unstuck.store.verifications import (
    NewVerification,
    VerificationRow,
    load_verification,
    read_verified,
    verify_backup,
)

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

Script = Callable[["DatabaseUser"], Awaitable[None]]
PATIENT: Final = 1500.0
WRONG: Final = "select wrong"
"""The statement that the simulated database finds untrue."""


async def _backed_up(user: DatabaseUser) -> None:
    await user.create_db("db")
    await user.ready()
    await user.write("db", 3)
    await user.backup("b")
    await user.ended("b", "COMPLETED")
    await user.write("db")


async def _verify(user: DatabaseUser, name: str = "v", query: str = "") -> None:
    new = NewVerification(id=name, backup_id="b", query=query)
    await user.request("verify", verify_backup, new, "p")


def _row(user: DatabaseUser, name: str) -> VerificationRow:
    found = user.transact(lambda tx: load_verification(tx, name))
    assert found is not None
    return found


async def _settles(user: DatabaseUser, *results: Result, name: str = "v") -> None:
    """With one of these results, and with nothing left of the instance."""
    began = user.now()
    while not _row(user, name).settled:
        if user.now() > began + PATIENT:
            user.fail(f"verification {name} is not settled: {_row(user, name)}")
        await user.wait(5.0)
    verdict = _row(user, name).verdict
    assert verdict is not None
    if verdict.result not in results:
        user.fail(f"verification {name} found {verdict}, expected {results}")
    left = user.transact(throw_away)
    if left:
        user.fail(f"throw-away instances are there still: {left}")


def _found(user: DatabaseUser) -> Verified | None:
    def read(tx: Tx) -> Verified | None:
        row = load_backup(tx, "b")
        return None if row is None else read_verified(row.verified)

    return user.transact(read)


def throw_away(tx: Tx) -> list[str]:
    """Throw-away instances that are not removed, and whose verification has settled."""
    query = (
        sa.select(instances.c.id)
        .outerjoin(backup_verifications, backup_verifications.c.instance_id == instances.c.id)
        .where(
            instances.c.project_id == SERVICE_PROJECT, sa.not_(instances.c.removed),
            sa.func.coalesce(backup_verifications.c.settled, sa.true()),
        )
    )  # fmt: skip
    return list(tx.execute(query).scalars())


async def verify_a_backup(user: DatabaseUser) -> None:
    await _backed_up(user)
    await _verify(user)
    await _settles(user, Result.SOUND)
    found = _found(user)
    if found is None or found.seconds is None or "3 rows" not in found.detail:
        user.fail(f"what was verified does not stand on the backup: {found}")


async def verify_with_a_statement_that_fails(user: DatabaseUser) -> None:
    await _backed_up(user)
    await _verify(user, query=WRONG)
    await _settles(user, Result.DAMAGED)


async def verify_a_damaged_backup(user: DatabaseUser) -> None:
    await _backed_up(user)
    await user.damage("flipped", "b")
    await _verify(user)
    await _settles(user, Result.DAMAGED)


async def verify_while_the_blob_store_is_away(user: DatabaseUser) -> None:
    """What could not be read says nothing of the backup."""
    await _backed_up(user)
    await user.blobs(Mode.HANG)
    await _verify(user)
    await user.wait(60.0)
    await user.blobs(Mode.OK)
    await _settles(user, Result.SOUND)


async def delete_a_backup_while_it_is_verified(user: DatabaseUser) -> None:
    await _backed_up(user)
    await _verify(user)
    await user.wait(6.0)
    await user.delete_backup("b")
    await _settles(user, Result.UNKNOWN, Result.SOUND)


async def control_plane_away_during_a_verification(user: DatabaseUser) -> None:
    await _backed_up(user)
    await _verify(user)
    await user.wait(5.0)
    await user.control_away(100.0)
    await _settles(user, Result.SOUND)


VERIFY_SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        verify_a_backup,
        verify_with_a_statement_that_fails,
        verify_a_damaged_backup,
        verify_while_the_blob_store_is_away,
        delete_a_backup_while_it_is_verified,
        control_plane_away_during_a_verification,
    )
}
