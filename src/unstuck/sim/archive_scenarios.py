"""Stories of archives: restores to a moment, a gap, an agent that dies meanwhile, what goes in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from unstuck.sim.blobs import Mode

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

Script = Callable[["DatabaseUser"], Awaitable[None]]


async def _kept(user: DatabaseUser) -> None:
    """An instance whose log is kept, and whose base has made itself."""
    user.archive()
    await user.create_db("db")
    await user.ready()
    await user.write("db", 2)
    await user.kept_until("db", user.wall() + 30.0)


async def restore_to_a_moment(user: DatabaseUser) -> None:
    await _kept(user)
    while True:
        await user.write("db", 2)
        await user.wait(12.0)
        at, rows = user.wall(), list(user.written["db"])
        await user.wait(12.0)
        await user.write("db", 2)
        if await user.moment("db", at):
            break
    await user.create_db("new", of="db", at=at)
    await user.ready("new")
    # What a disturbed one has to hold depends on when which agent was late: the invariants know.
    await user.expect_rows("new", rows if user.undisturbed else [])
    await user.write("new")
    await user.kept_until("new", user.wall() + 30.0)


async def agent_dies_while_its_log_is_kept(user: DatabaseUser) -> None:
    await _kept(user)
    await user.write("db", 1)
    await user.wait(9.0)
    await user.agent_dies("db")
    await user.write("db", 1)
    await user.kept_until("db", user.wall() + 30.0)


async def log_is_let_go_while_the_blob_store_is_away(user: DatabaseUser) -> None:
    """The database lives on; what lies in the gap is never claimed, and a base follows by itself."""
    await _kept(user)
    before = user.windows("db")[0].earliest
    await user.blobs(Mode.FAULT)
    for _ in range(6):
        await user.write("db", 1)
        await user.wait(15.0)
    await user.wait(60.0)
    inside = user.wall()
    await user.blobs(Mode.OK)
    await user.write("db", 1)
    await user.kept_until("db", user.wall() + 60.0)
    if not user.claims("db", before):
        user.fail("a moment before the gap is claimed no more")
    if user.undisturbed and user.claims("db", inside):
        user.fail("a moment in the gap is claimed")


async def archive_goes_with_its_instance(user: DatabaseUser) -> None:
    await _kept(user)
    await user.delete_db("db")
    await user.no_archive()


ARCHIVE_SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        restore_to_a_moment,
        agent_dies_while_its_log_is_kept,
        log_is_let_go_while_the_blob_store_is_away,
        archive_goes_with_its_instance,
    )
}
