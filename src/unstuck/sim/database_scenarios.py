"""What the users of simulated databases do, and what happens to them. The runner adds faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from unstuck.core.backup.data import Phase
from unstuck.sim.archive_scenarios import ARCHIVE_SCENARIOS
from unstuck.sim.blobs import DIRECT, Mode
from unstuck.sim.parameters import TOO_MANY
from unstuck.sim.schedule_scenarios import SCHEDULE_SCENARIOS
from unstuck.sim.scrub_scenarios import SCRUB_SCENARIOS
from unstuck.sim.verify_scenarios import VERIFY_SCENARIOS

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

Script = Callable[["DatabaseUser"], Awaitable[None]]


async def _with_rows(user: DatabaseUser, count: int = 2) -> None:
    await user.create_db("db")
    await user.ready()
    await user.write("db", count)


async def create_instance_and_user(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.create_user("db", "berta")


async def restart_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.restart_db("db")
    await user.ready()
    await user.write("db")


async def resize_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.resize_db("db")
    await user.ready()
    await user.resize_volume("db")
    await user.ready()
    await user.write("db")


async def rebuild_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.rebuild_db("db")
    await user.ready()
    await user.write("db")


async def upgrade_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.upgrade_db("db")
    await user.ready()
    await user.write("db")


async def upgrade_that_fails(user: DatabaseUser) -> None:
    """It is back on its former version, with its data, and can be used."""
    await _with_rows(user)
    await user.upgrade_db("db", "bad")
    await user.ready()
    await user.write("db")


async def delete_while_upgrading_an_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.upgrade_db("db", "bad")
    await user.wait(4.0)
    await user.delete_db("db")


async def delete_while_building_an_instance(user: DatabaseUser) -> None:
    await user.create_db("db")
    await user.wait(3.0)
    await user.delete_db("db")


async def delete_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.delete_db("db", trash=100.0)


async def delete_while_restarting_an_instance(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.restart_db("db")
    await user.delete_db("db")


async def trash_and_undelete(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.delete_db("db", trash=86_400.0)
    await user.wait(30.0)
    await user.undelete_db("db")
    await user.ready()
    await user.write("db")


async def stay_in_the_trash(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.delete_db("db", trash=86_400.0)


async def backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.write("db", 3)
    await user.ended("b", "COMPLETED")


async def backup_to_a_remote_store(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b", location=DIRECT)
    await user.ended("b", "COMPLETED")


async def two_backups_at_once(user: DatabaseUser) -> None:
    """One of them is taken; a second is refused while it runs, and not after."""
    await _with_rows(user)
    first = await user.backup("b")
    second = await user.backup("c")
    if first and second:
        user.fail("two live backups of one instance")
    await user.ended("b", "COMPLETED")
    if not await user.backup("d"):
        user.fail("no backup is taken, and none is under way")
    await user.ended("d", "COMPLETED")


async def cancel_a_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.cancel("b")
    await user.ended("b")
    await user.ready()


async def cancel_before_it_is_taken(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.no_agent("db")
    await user.agent_dies("db", back_after=None)
    await user.backup("b")
    await user.cancel("b")
    await user.ended("b", "FAILED")
    await user.agent_comes("db")
    await user.ready()


async def retry_a_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.blobs(Mode.REFUSED)
    await user.backup("b")
    if await user.ended("b") == "COMPLETED":
        user.fail("complete, and the blob store refused everything")
    await user.blobs(Mode.OK)
    await user.retry("b", "c")
    await user.ended("c", "COMPLETED")


async def delete_a_backup_while_it_runs(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.delete_backup("b")
    await user.ready()


async def delete_instance_during_its_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.delete_db("db", trash=50.0)
    await user.ended("b")


async def delete_instance_during_its_backup_without_an_agent(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.agent_dies("db", back_after=None)
    await user.delete_db("db")
    await user.ended("b")


async def _backed_up(user: DatabaseUser) -> list[str]:
    await _with_rows(user)
    await user.backup("b")
    await user.ended("b", "COMPLETED")
    await user.write("db", 2)
    return user.written["db"][:2]


async def restore_into_a_new_instance(user: DatabaseUser) -> None:
    rows = await _backed_up(user)
    await user.create_db("new", backup="b")
    await user.ready("new")
    await user.expect_rows("new", rows)
    await user.write("new")


async def _with_a_child(user: DatabaseUser) -> list[str]:
    """A full backup ``b`` and its child ``c``; the rows that the child restores."""
    await _backed_up(user)
    if not await user.backup("c", parent="b"):
        user.fail("an incremental backup is refused, and its parent is complete")
    await user.ended("c", "COMPLETED")
    rows = list(user.written["db"])
    await user.write("db")
    return rows


async def restore_a_chain_whose_parents_were_deleted(user: DatabaseUser) -> None:
    """The child stays what it is; what its parents consist of stays for it, and goes with it."""
    await _with_a_child(user)
    if not await user.backup("d", incremental=True):
        user.fail("an incremental backup is refused")
    await user.ended("d", "COMPLETED")
    rows = list(user.written["db"])
    await user.delete_backup("b")
    await user.delete_backup("c")
    await user.create_db("new", backup="d")
    await user.ready("new")
    await user.expect_rows("new", rows)
    await user.delete_backup("d")


async def delete_a_parent_while_its_child_is_made(user: DatabaseUser) -> None:
    await _backed_up(user)
    await user.backup("c", parent="b")
    await user.claimed("c", Phase.COPYING)
    await user.delete_backup("b")
    await user.ended("c", "COMPLETED")
    rows = user.written["db"][:4]
    await user.create_db("new", backup="c")
    await user.ready("new")
    await user.expect_rows("new", rows)


async def delete_a_chain_while_it_is_restored_from(user: DatabaseUser) -> None:
    """The restore that has begun ends well, from all of its parents; and then all objects go."""
    rows = await _with_a_child(user)
    await user.create_db("new", backup="c")
    await user.wait(4.0)
    await user.delete_backup("b", cascade=True)
    user.asked["backup c"] = "DELETED"
    await user.ready("new")
    await user.expect_rows("new", rows)


async def agent_dies_during_an_incremental_backup(user: DatabaseUser) -> None:
    await _backed_up(user)
    await user.backup("c", parent="b")
    await user.claimed("c", Phase.COPYING)
    await user.agent_dies("db")
    await user.write("db")
    await user.ended("c", "COMPLETED")
    await user.delete_backup("b")


async def delete_a_backup_while_it_is_restored_from(user: DatabaseUser) -> None:
    """The restore that has begun ends well; and then the objects go."""
    rows = await _backed_up(user)
    await user.create_db("new", backup="b")
    await user.wait(4.0)
    await user.delete_backup("b")
    await user.ready("new")
    await user.expect_rows("new", rows)


async def delete_the_instance_that_is_restored(user: DatabaseUser) -> None:
    await _backed_up(user)
    await user.create_db("new", backup="b")
    await user.wait(6.0)
    await user.delete_db("new")


def _damaged(how: str) -> Script:
    async def restore_a_damaged_backup(user: DatabaseUser) -> None:
        """It fails closed: ERROR, and never an empty database that looks healthy."""
        await _backed_up(user)
        await user.damage(how, "b")
        await user.create_db("new", backup="b")
        await user.db_until("new", ("ERROR", ""))
        await user.delete_db("new")

    restore_a_damaged_backup.__name__ = f"restore_a_backup_with_a_{how}_piece"
    return restore_a_damaged_backup


async def leave_a_restore_that_failed(user: DatabaseUser) -> None:
    """It is over, and shown so, whether or not anybody deletes it."""
    await _backed_up(user)
    await user.damage("missing", "b")
    await user.create_db("new", backup="b")
    await user.db_until("new", ("ERROR", ""))
    user.asked["new"] = "ERROR"


async def restore_while_the_blob_store_is_away(user: DatabaseUser) -> None:
    rows = await _backed_up(user)
    await user.blobs(Mode.FAULT)
    await user.create_db("new", backup="b")
    await user.wait(90.0)
    await user.blobs(Mode.OK)
    await user.ready("new")
    await user.expect_rows("new", rows)


async def restore_into_a_full_volume(user: DatabaseUser) -> None:
    """It goes on by itself when there is room."""
    rows = await _backed_up(user)
    await user.create_db("new", backup="b")
    await user.wait(5.0)
    await user.volume_full("new", full=True)
    await user.wait(60.0)
    await user.volume_full("new", full=False)
    await user.ready("new")
    await user.expect_rows("new", rows)


async def agent_never_existed(user: DatabaseUser) -> None:
    """The backup ends with that reason; the instance can be deleted all the same."""
    await user.no_agent("db")
    await user.create_db("db")
    await user.wait(30.0)
    await user.backup("b")
    await user.ended("b", "FAILED")
    await user.delete_db("db")


async def agent_dead_before_the_request(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.agent_dies("db", back_after=None)
    await user.backup("b")
    await user.ended("b", "FAILED")
    await user.agent_comes("db")
    await user.ready()
    await user.backup("c")
    await user.ended("c", "COMPLETED")


async def agent_dies_during_the_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.agent_dies("db")
    await user.write("db")
    await user.ended("b", "COMPLETED")


async def agent_dies_during_the_backup_for_good(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.agent_dies("db", back_after=None)
    await user.write("db")
    await user.ended("b")
    await user.agent_comes("db")
    await user.ready()


async def agent_frozen_shortly(user: DatabaseUser) -> None:
    """Shorter than its lease: it goes on."""
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.freeze_agent("db", 20.0)
    await user.ended("b", "COMPLETED")


async def agent_frozen_for_longer_than_its_lease(user: DatabaseUser) -> None:
    """Its attempt is given up; thawed, it harms nothing."""
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.freeze_agent("db", 50.0)
    await user.ended("b")
    await user.ready()


async def agent_frozen_at_the_end(user: DatabaseUser) -> None:
    """The manifest may be written, or not: found in the blob store either way."""
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.UPLOADING)
    await user.freeze_agent("db", 45.0)
    await user.ended("b")


async def agent_late_before_its_offer_is_over(user: DatabaseUser) -> None:
    """It hears of the request 45 s late, and nobody has given up."""
    await _with_rows(user)
    await user.freeze_agent("db", 45.0)
    await user.backup("b")
    await user.ended("b", "COMPLETED")


async def agent_late_after_its_offer_was_over(user: DatabaseUser) -> None:
    """It finds nothing to do, resurrects nothing, and makes the next one."""
    await _with_rows(user)
    await user.freeze_agent("db", 145.0)
    await user.backup("b")
    await user.ended("b")
    await user.ready()
    await user.backup("c")
    await user.ended("c", "COMPLETED")


async def agent_late_after_it_was_given_up(user: DatabaseUser) -> None:
    """45 s late, and another attempt runs."""
    await _with_rows(user)
    await user.backup("b", location=DIRECT)
    await user.claimed("b", Phase.FINISHING)
    await user.freeze_agent("db", 45.0)
    await user.ended("b")
    await user.backup("c")
    await user.ended("c", "COMPLETED")


def _hanging(phase: Phase) -> Script:
    async def tool_hangs(user: DatabaseUser) -> None:
        await _with_rows(user)
        await user.hang("db", phase)
        await user.backup("b")
        await user.ended("b", "FAILED")
        await user.hang("db", None)
        await user.ready()
        await user.backup("c")
        await user.ended("c", "COMPLETED")

    tool_hangs.__name__ = f"tool_hangs_while_{phase.value}"
    return tool_hangs


def _store_is(mode: Mode) -> Script:
    async def blob_store(user: DatabaseUser) -> None:
        """From half way on; the instance is usable all the time, and the next backup succeeds."""
        await _with_rows(user)
        await user.backup("b")
        await user.claimed("b", Phase.COPYING)
        await user.blobs(mode)
        await user.write("db")
        await user.ended("b")
        await user.blobs(Mode.OK)
        await user.backup("c")
        await user.ended("c", "COMPLETED")

    blob_store.__name__ = f"blob_store_{mode.value}"
    return blob_store


def _store_was(mode: Mode) -> Script:
    async def blob_store_for_a_while(user: DatabaseUser) -> None:
        await _with_rows(user)
        await user.blobs(mode)
        await user.backup("b")
        await user.wait(40.0)
        await user.blobs(Mode.OK)
        await user.ended("b")

    blob_store_for_a_while.__name__ = f"blob_store_{mode.value}_for_a_while"
    return blob_store_for_a_while


async def late_uploads(user: DatabaseUser) -> None:
    """What the store accepted and did not carry out arrives after the end, and goes with the second look."""
    user.patient()
    await _with_rows(user)
    await user.backup("b", location=DIRECT)
    await user.claimed("b", Phase.COPYING)
    await user.blobs(Mode.HANG)
    await user.ended("b")
    await user.blobs(Mode.OK)


async def control_plane_away_for_longer_than_the_lease(user: DatabaseUser) -> None:
    """The work goes on, and nobody is fenced by its waking up."""
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.control_away(50.0)
    await user.ended("b", "COMPLETED")


async def host_agent_restarts_during_the_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.restart_host_agents()
    await user.ended("b", "COMPLETED")


async def restart_waits_for_the_backup(user: DatabaseUser) -> None:
    """It waits its turn, and goes first after a minute: the backup is cancelled visibly."""
    await _with_rows(user)
    await user.hang("db", Phase.COPYING)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.restart_db("db")
    await user.ended("b", "FAILED")
    await user.hang("db", None)
    await user.ready()


async def server_crashes_during_the_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.crash_server("db")
    await user.ended("b", "COMPLETED")
    await user.ready()


async def volume_full_during_the_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.volume_full("db", full=True)
    await user.ended("b")
    await user.volume_full("db", full=False)
    await user.ready()
    await user.write("db")


async def guest_paused_during_the_backup(user: DatabaseUser) -> None:
    await _with_rows(user)
    await user.backup("b")
    await user.claimed("b", Phase.COPYING)
    await user.pause_guest("db", paused=True)
    await user.wait(100.0)
    await user.pause_guest("db", paused=False)
    await user.ended("b")
    await user.ready()


async def volume_lost(user: DatabaseUser) -> None:
    """It is shown, and never made up for by an empty database."""
    await _with_rows(user)
    await user.lose_volume("db")
    await user.db_until("db", ("ERROR", ""))
    await user.delete_db("db")


async def agent_of_another_version(user: DatabaseUser) -> None:
    """Said, and waited for: it goes on with the right one."""
    await user.create_db("db")
    await user.agent_speaks("db", other=True)
    await user.wait(60.0)
    await user.backup("b")
    await user.ended("b", "FAILED")
    await user.agent_speaks("db", other=False)
    await user.ready()
    await user.write("db")


async def lives_of_databases(user: DatabaseUser) -> None:
    """Every kind of commit: what a copy of the store knows of it differs after each."""
    await _backed_up(user)
    await user.delete_backup("b")
    await user.backup("c")
    await user.claimed("c", Phase.COPYING)
    await user.agent_dies("db")
    await user.ended("c", "COMPLETED")
    rows = user.written["db"]
    await user.create_db("second", backup="c")
    await user.ready("second")
    await user.expect_rows("second", rows)
    await user.delete_db("db", trash=20.0)
    await user.backup("d", "second")
    await user.ended("d", "COMPLETED")


_CONFIGURED = (("RESTART_REQUIRED", "HEALTHY"), ("ACTIVE", "HEALTHY"))
"""Where a fault has started it anew, nothing waits for a restart."""


async def parameters_change(user: DatabaseUser) -> None:
    """A group before and after its instance, a restart for what needs one, other values, and none."""
    await _with_rows(user)
    await user.configure(work_mem="4MB", max_connections=50)
    await user.attach("db")
    await user.db_until("db", *_CONFIGURED)
    await user.restart_db("db")
    await user.ready()
    await user.configure(work_mem="8MB", max_connections=50)
    await user.write("db")
    await user.attach("db", None)
    await user.db_until("db", *_CONFIGURED)
    await user.restart_db("db")
    await user.ready()


async def parameters_of_many(user: DatabaseUser) -> None:
    """Two instances of one group; what it says last, both have in the end."""
    await user.configure(work_mem="4MB")
    for name in ("db", "second"):
        await user.create_db(name)
        await user.ready(name)
        await user.attach(name)
    await user.wait(30.0)
    await user.configure(work_mem="8MB")
    await user.wait(30.0)


async def parameters_no_server_starts_with(user: DatabaseUser) -> None:
    """It is up again with those that worked, and a mended group is applied."""
    await _with_rows(user)
    await user.configure(max_connections=int(TOO_MANY))
    await user.attach("db")
    await user.restart_db("db")
    await user.ready()
    await user.write("db")
    await user.configure(max_connections=60)
    await user.restart_db("db")
    await user.ready()


DATABASE_SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        create_instance_and_user,
        restart_instance,
        resize_instance,
        rebuild_instance,
        upgrade_instance,
        upgrade_that_fails,
        delete_while_upgrading_an_instance,
        delete_while_building_an_instance,
        delete_instance,
        delete_while_restarting_an_instance,
        trash_and_undelete,
        stay_in_the_trash,
        backup,
        backup_to_a_remote_store,
        two_backups_at_once,
        cancel_a_backup,
        cancel_before_it_is_taken,
        retry_a_backup,
        delete_a_backup_while_it_runs,
        delete_instance_during_its_backup,
        delete_instance_during_its_backup_without_an_agent,
        restore_into_a_new_instance,
        delete_a_backup_while_it_is_restored_from,
        restore_a_chain_whose_parents_were_deleted,
        delete_a_parent_while_its_child_is_made,
        delete_a_chain_while_it_is_restored_from,
        agent_dies_during_an_incremental_backup,
        delete_the_instance_that_is_restored,
        *(_damaged(how) for how in ("missing", "flipped", "swapped", "truncated")),
        leave_a_restore_that_failed,
        restore_while_the_blob_store_is_away,
        restore_into_a_full_volume,
        agent_never_existed,
        agent_dead_before_the_request,
        agent_dies_during_the_backup,
        agent_dies_during_the_backup_for_good,
        agent_frozen_shortly,
        agent_frozen_for_longer_than_its_lease,
        agent_frozen_at_the_end,
        agent_late_before_its_offer_is_over,
        agent_late_after_its_offer_was_over,
        agent_late_after_it_was_given_up,
        *(_hanging(phase) for phase in (Phase.STARTING, Phase.COPYING, Phase.FINISHING)),
        *(_store_is(mode) for mode in (Mode.FAULT, Mode.REFUSED, Mode.FULL, Mode.HANG)),
        *(_store_was(mode) for mode in (Mode.DEAF, Mode.PARTIAL, Mode.HANG)),
        late_uploads,
        control_plane_away_for_longer_than_the_lease,
        host_agent_restarts_during_the_backup,
        restart_waits_for_the_backup,
        server_crashes_during_the_backup,
        volume_full_during_the_backup,
        guest_paused_during_the_backup,
        volume_lost,
        *ARCHIVE_SCENARIOS.values(),
        lives_of_databases,
        agent_of_another_version,
        parameters_change,
        parameters_of_many,
        parameters_no_server_starts_with,
    )
} | SCHEDULE_SCENARIOS
DATABASE_SCENARIOS |= VERIFY_SCENARIOS
DATABASE_SCENARIOS |= SCRUB_SCENARIOS
