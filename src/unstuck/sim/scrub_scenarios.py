"""Bit rot in the simulated store of objects: found, whoever is killed meanwhile; nothing is made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from unstuck.core.errors import Conflict
from unstuck.sim.blobs import Mode
from unstuck.store.backup_rows import load_backup
from unstuck.store.scrub_work import read_scrub

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

Script = Callable[["DatabaseUser"], Awaitable[None]]
AFTER: Final = 20.0
"""Seconds after its end until a backup is read again, and between passes."""
PATIENT: Final = 1500.0


async def _backed_up(user: DatabaseUser) -> None:
    await user.create_db("db")
    await user.ready()
    await user.write("db", 3)
    await user.backup("b")
    await user.ended("b", "COMPLETED")


async def _until(user: DatabaseUser, what: str, holds: Callable[[], bool]) -> None:
    began = user.now()
    while not holds():
        if user.now() > began + PATIENT:
            user.fail(f"{what}: not within {PATIENT:.0f} s")
        await user.wait(5.0)


def _damaged(user: DatabaseUser) -> str | None:
    row = user.transact(lambda tx: load_backup(tx, "b"))
    return None if row is None else row.damaged


def _whole(user: DatabaseUser) -> float:
    row = user.transact(lambda tx: load_backup(tx, "b"))
    found = None if row is None else read_scrub(row.scrub).whole
    return found or 0.0


async def stored_backups_are_read_again(user: DatabaseUser) -> None:
    await _backed_up(user)
    await _until(user, "all of it is read", lambda: _whole(user) > 0)
    if _damaged(user) is not None:
        user.fail(f"nobody has spoiled it: {_damaged(user)}")


async def a_piece_rots(user: DatabaseUser) -> None:
    """Found, told, and refused; then the piece is put back."""
    await _backed_up(user)
    kept = await user.damage("flipped", "b")
    await _until(user, "the damage is found", lambda: _damaged(user) is not None)
    try:
        await user.create_db("copy", backup="b")
    except Conflict:
        pass
    else:
        user.fail("an instance is made from a damaged backup")
    await user.put_back(kept, "b")
    await _until(user, "the damage is over", lambda: _damaged(user) is None)


async def a_piece_is_lost_while_the_blob_store_comes_and_goes(user: DatabaseUser) -> None:
    await _backed_up(user)
    await user.damage("missing", "b")
    await user.blobs(Mode.PARTIAL)
    await user.wait(120.0)
    await user.blobs(Mode.OK)
    await _until(user, "the damage is found", lambda: _damaged(user) is not None)


SCRUB_SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        stored_backups_are_read_again,
        a_piece_rots,
        a_piece_is_lost_while_the_blob_store_comes_and_goes,
    )
}
