"""What users and operators may do with an instance, through the loop to host and guest, on both databases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from unstuck.core.errors import Conflict, Invalid, NotFound, TooLarge
from unstuck.core.instance.view import ServerState
from unstuck.core.server.data import Gone, Power, Thing
from unstuck.store import database_quotas, instance_work, instances
from unstuck.store import servers as actions
from unstuck.store.engine import Store, Tx
from unstuck.store.instance_lists import requests_of, show_instance
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import operations, placements, servers
from unstuck.store.schema.database import instances as table
from unstuck.store.schema.images import images


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    made = Databases(any_store, ram_mb=4000)
    made.active_db()
    return made


def outcomes(cloud: Databases, name: str = "db") -> dict[str, str]:
    return {one.kind: one.state for one in cloud.store.read(requests_of, name)}


def room(cloud: Databases) -> tuple[int, int]:
    """(MiB, GiB) that the host keeps for the server."""
    query = sa.select(placements.c.ram_mb, placements.c.disk_gb)
    row = cloud.store.read(lambda tx: tx.execute(query).one())
    return row.ram_mb, row.disk_gb


def test_a_restart_is_the_agent_s_work(cloud: Databases) -> None:
    assert cloud.act(instances.restart_instance) == "h"
    assert cloud.shown() == ("REBOOT", "")
    assert not cloud.settled()
    version = cloud.store.read(lambda tx: tx.execute(sa.select(servers.c.world_version)).scalar_one())
    assert cloud.steps() == ["Apply"]
    assert cloud.woken == ["host:h"]
    want = cloud.wants()["server-db"]
    assert want.database is not None
    assert (want.database.restart, want.edge) == (1, 1)
    assert want.version > version
    cloud.see(cloud.view(server=ServerState.STARTING, restart=1))
    assert cloud.shown()[0] == "REBOOT"
    cloud.see(cloud.view(restart=1))
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.settled()
    assert outcomes(cloud)["restart"] == "done"


def test_a_restart_of_one_whose_agent_is_silent_starts_its_guest_anew(cloud: Databases) -> None:
    cloud.see(None, alive=False)
    assert cloud.shown() == ("ACTIVE", "ERROR")
    cloud.act(instances.restart_instance)
    cloud.steps()
    want = cloud.wants()["server-db"]
    assert (want.edge, want.soft) == (2, False)
    cloud.again()
    assert cloud.shown()[0] == "REBOOT"
    cloud.see(cloud.view(restart=1))
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_second_restart_before_the_first_has_begun_is_the_same(cloud: Databases) -> None:
    cloud.act(instances.restart_instance)
    cloud.act(instances.restart_instance)
    cloud.steps()
    assert cloud.instance().restart == 1
    with pytest.raises(Conflict, match="restart was asked for"):
        cloud.act(instances.restart_instance)


def test_one_request_at_a_time(cloud: Databases) -> None:
    cloud.act(instances.resize_volume, "db", 2)
    for action, argument in ((instances.resize_instance, "4"), (instances.resize_volume, 3)):
        with pytest.raises(Conflict, match="resize-volume was asked for"):
            cloud.act(action, "db", argument)
    with pytest.raises(Conflict):
        cloud.act(instances.restart_instance)


def test_nothing_of_it_is_done_while_it_is_built(cloud: Databases) -> None:
    cloud.create_db("new")
    for action, more in (
        (instances.restart_instance, ()), (instances.resize_instance, ("4",)),
        (instances.resize_volume, (5,)),
    ):  # fmt: skip
        with pytest.raises(Conflict, match="being built"):
            cloud.act(action, "new", *more)


def test_a_flavor_in_which_the_datastore_could_never_start_is_refused(cloud: Databases) -> None:
    cloud.store.transact(lambda tx: tx.execute(sa.update(images).values(min_ram=128)))
    with pytest.raises(Invalid, match=r"flavorRef: flavor t\.nano has 64 MiB of memory, .* needs 128"):
        cloud.act(instances.resize_instance, "db", "1")
    with pytest.raises(Invalid, match=r"flavorRef: flavor t\.nano has 64 MiB of memory, .* needs 128"):
        cloud.create_db("small", flavor_id="1")
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    cloud.create_db("enough", flavor_id="2")


def test_another_flavor(cloud: Databases) -> None:
    cloud.act(instances.resize_instance, "db", "4")
    assert cloud.shown() == ("RESIZE", "")
    assert room(cloud) == (2048, 1)
    assert cloud.wants()["server-db"].spec.flavor.ram_mb == 512
    assert cloud.steps() == ["Apply"]
    want = cloud.wants()["server-db"]
    assert (want.spec.flavor.vcpus, want.spec.flavor.ram_mb, want.spec.flavor.disk_gb) == (1, 2048, 1)
    assert (want.edge, want.soft, want.patience > 0) == (2, True, True)
    assert want.database is not None
    assert want.database.ram_mb == 2048
    cloud.see(cloud.view(volume_used_mb=1))  # news of the guest as it was
    assert cloud.shown()[0] == "RESIZE"
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert outcomes(cloud)["resize"] == "done"
    assert cloud.store.read(show_instance, "db", "p").item.flavor_id == "4"
    assert cloud.store.read(database_quotas.usage, "p").ram == 2048


def test_a_smaller_flavor_gives_its_room_back_when_it_is_over(cloud: Databases) -> None:
    cloud.act(instances.resize_instance, "db", "2")
    assert room(cloud)[0] == 512
    cloud.steps()
    cloud.again()
    cloud.see(cloud.view())
    assert room(cloud)[0] == 128


@pytest.mark.parametrize(
    ("flavor", "error", "words"),
    [("3", Invalid, "already"), ("none", Invalid, "flavorRef"), ("5", Conflict, "no room")],
)
def test_a_flavor_that_cannot_be(cloud: Databases, flavor: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cloud.act(instances.resize_instance, "db", flavor)
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert room(cloud) == (512, 1)


def test_a_larger_volume_and_never_a_smaller_one(cloud: Databases) -> None:
    for size in (0, 1):
        with pytest.raises(Invalid, match="not larger"):
            cloud.act(instances.resize_volume, "db", size)
    with pytest.raises(TooLarge, match="volumes"):
        cloud.act(instances.resize_volume, "db", 100)
    cloud.act(instances.resize_volume, "db", 3)
    cloud.steps()
    assert cloud.wants()["server-db"].spec.flavor.disk_gb == 3
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.store.read(show_instance, "db", "p").item.volume_gb == 3
    assert room(cloud) == (512, 3)


def test_a_resize_that_nobody_came_for_ends_with_its_reason_and_changes_nothing(cloud: Databases) -> None:
    cloud.act(instances.resize_instance, "db", "4")
    cloud.pass_time(80, beat=False)
    assert cloud.step() == "LookAgain"
    cloud.pass_time(900, beat=False)
    cloud.step()
    last = cloud.store.read(requests_of, "db")[0]
    assert (last.kind, last.state) == ("resize", "failed")
    assert "host is away" in last.reason
    assert cloud.instance().pending is None
    assert cloud.store.read(show_instance, "db", "p").item.flavor_id == "3"
    assert room(cloud) == (512, 1)
    cloud.beat()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_restart_whose_database_stays_away_ends_with_its_reason(cloud: Databases) -> None:
    cloud.act(instances.restart_instance)
    cloud.steps()
    cloud.see(cloud.view(server=ServerState.CRASHED, restart=1))
    cloud.pass_time(400)
    cloud.step()
    last = cloud.store.read(requests_of, "db")[0]
    assert (last.kind, last.state) == ("restart", "failed")
    assert "does not answer" in last.reason
    assert cloud.shown() == ("ACTIVE", "SHUTDOWN")


def test_rebuild_gives_another_system_and_keeps_the_volume(cloud: Databases) -> None:
    disk = cloud.store.read(lambda tx: tx.execute(sa.select(servers.c.disk_id)).scalar_one())
    before = cloud.wants()["server-db"]
    cloud.store.transact(instances.rebuild_instance, "db", None, caller(admin=True))
    assert cloud.shown() == ("BUILD", "")
    cloud.steps()
    want = cloud.wants()["server-db"]
    assert want.edge > before.edge
    assert (want.nonce, want.replaced) == (before.nonce, ())
    assert cloud.store.read(lambda tx: tx.execute(sa.select(servers.c.disk_id)).scalar_one()) == disk
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_access_changes_without_a_restart(cloud: Databases) -> None:
    before = cloud.wants()["server-db"]
    cloud.act(instances.change_access, "db", is_public=None, cidrs=("192.0.2.0/24",))
    want = cloud.wants()["server-db"]
    assert want.version > before.version
    assert (want.edge, want.intent) == (before.edge, before.intent)
    assert want.spec.access is not None
    assert want.spec.access.cidrs == ("192.0.2.0/24",)
    assert want.database is not None
    assert want.database.cidrs == ("192.0.2.0/24",)
    cloud.act(instances.change_access, "db", is_public=True, cidrs=())
    public = cloud.wants()["server-db"].spec.access
    assert public is not None
    assert public.cidrs == ("0.0.0.0/0",)
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_deleted_instance_stands_still_in_the_trash_and_comes_back_with_its_data(cloud: Databases) -> None:
    assert cloud.act(instances.delete_instance) == "h"
    assert cloud.shown() == ("SHUTDOWN", "")
    with pytest.raises(NotFound):
        cloud.store.read(show_instance, "db", "p")
    assert cloud.steps() == ["StopServer"]
    assert cloud.wants()["server-db"].power is Power.OFF
    assert not cloud.wants()["server-db"].gone
    cloud.again()
    assert cloud.steps() == ["Shelve"]
    assert room(cloud) == (0, 1)
    assert cloud.store.read(database_quotas.usage, "p").instances == 0
    cloud.act(instances.undelete_instance)
    assert room(cloud) == (512, 1)
    assert cloud.shown()[0] == "REBOOT"
    assert cloud.wants()["server-db"].power is Power.ON
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    want = cloud.db_want()
    assert want is not None
    assert (want.data_recorded, want.generation) == (True, "generation-db")


def test_brought_back_before_it_was_stopped_it_just_runs_on(cloud: Databases) -> None:
    cloud.act(instances.delete_instance)
    cloud.act(instances.undelete_instance)
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.wants()["server-db"].power is Power.ON


def test_its_time_in_the_trash_ends_and_nothing_is_left(cloud: Databases) -> None:
    cloud.act(instances.delete_instance, trash_seconds=1000.0)
    cloud.steps()
    cloud.again()
    cloud.steps()
    cloud.pass_time(999)
    assert cloud.steps() == []
    cloud.pass_time(2)
    assert cloud.steps() == ["DeleteServer"]
    with pytest.raises(Conflict, match="not in the trash any more"):
        cloud.act(instances.undelete_instance)
    cloud.removed("server-db")
    assert cloud.steps() == ["FinishDelete"]
    assert cloud.instance().removed
    assert cloud.store.read(lambda tx: tx.execute(sa.select(placements)).all()) == []
    with pytest.raises(NotFound):
        cloud.act(instances.undelete_instance)


def test_force_delete_waits_for_no_trash(cloud: Databases) -> None:
    cloud.act(instances.delete_instance)
    cloud.steps()
    cloud.act(instances.delete_instance, force=True)
    assert cloud.steps() == ["DeleteServer"]
    cloud.removed("server-db")
    assert cloud.steps() == ["FinishDelete"]


def test_delete_wins_in_every_state(cloud: Databases) -> None:
    cloud.create_db("unplaced")
    cloud.create_db("placed")
    cloud.place("server-placed")
    cloud.active_db("restarting")
    cloud.act(instances.restart_instance, "restarting")
    cloud.active_db("resizing")
    cloud.act(instances.resize_volume, "resizing", 2)
    cloud.steps("resizing")
    cloud.active_db("broken")
    cloud.see(cloud.view("broken", server=ServerState.DOWN, trouble=cloud.trouble()), "broken")
    assert cloud.shown("broken")[0] == "ERROR"
    for name in ("unplaced", "placed", "restarting", "resizing", "broken"):
        cloud.act(instances.delete_instance, name, force=True)
        cloud.act(instances.delete_instance, name, force=True)
        assert cloud.steps(name)[0] == "DeleteServer"
        if name != "unplaced":
            cloud.removed(f"server-{name}")
        cloud.steps(name)
        assert cloud.instance(name).removed, name
        assert cloud.settled(name)


def test_time_removes_nothing_while_the_clock_is_in_doubt(cloud: Databases) -> None:
    cloud.act(instances.delete_instance, trash_seconds=1.0)
    cloud.steps()
    cloud.again()
    cloud.steps()
    cloud.pass_time(2)

    def doubt(tx: Tx) -> None:
        tx.execute(sa.update(clock).values(gap_tick=1, tick=2))

    cloud.store.transact(doubt)
    assert cloud.step() == "DeleteServer"
    assert not cloud.server("server-db").deleted
    assert cloud.instance().deleted
    cloud.act(instances.delete_instance, force=True)  # its user may
    cloud.step()
    assert cloud.server("server-db").deleted


def test_an_administrator_deletes_the_server_and_the_instance_says_so(cloud: Databases) -> None:
    cloud.store.transact(actions.delete_server, "server-db", caller(admin=True))
    cloud.store.transact(instance_work.review_instance, "db")
    cloud.store.transact(instances.reset_status, "db", None, caller(admin=True))
    assert cloud.steps() == ["FailIt"]
    assert cloud.shown() == ("ERROR", "")
    cloud.act(instances.delete_instance)
    cloud.removed("server-db")
    cloud.steps()
    assert cloud.instance().removed


def test_no_agent_within_half_an_hour_is_a_failure_that_its_first_word_lifts(cloud: Databases) -> None:
    cloud.create_db("mute")
    cloud.up("mute")
    assert cloud.steps("mute") == []
    cloud.pass_time(1900)
    assert cloud.steps("mute") == ["FailIt"]
    assert cloud.shown("mute") == ("ERROR", "")
    assert outcomes(cloud, "mute")["create"] == "failed"
    cloud.hello("mute")
    assert cloud.shown("mute") == ("BUILD", "")
    cloud.see(cloud.view("mute"), "mute")
    assert cloud.shown("mute") == ("ACTIVE", "HEALTHY")


def test_a_reset_is_a_mark_that_forces_a_look(cloud: Databases) -> None:
    cloud.see(cloud.view(server=ServerState.DOWN, trouble=cloud.trouble()))
    assert cloud.shown() == ("ERROR", "")
    before = cloud.wants()["server-db"]
    cloud.store.transact(instances.reset_status, "db", None, caller(admin=True))
    want = cloud.wants()["server-db"]
    assert want.mark > before.mark
    assert cloud.shown() == ("ERROR", "")  # nothing is written over what is so
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_restore_that_failed_shows_its_reason(cloud: Databases) -> None:
    cloud.create_db("restored")
    cloud.up("restored")
    cloud.hello("restored")
    bad = cloud.view(
        "restored", data=Thing.ABSENT, server=ServerState.DOWN, applied=False, trouble=cloud.trouble("rotten")
    )
    cloud.see(bad, "restored")
    assert cloud.shown("restored") == ("ERROR", "")
    assert not cloud.instance("restored").data_recorded
    assert cloud.settled("restored")


def test_its_server_powered_off_from_inside_shows_and_a_restart_starts_it(cloud: Databases) -> None:
    cloud.store.transact(actions.stop_server, "server-db", caller(admin=True))
    cloud.report(Gone(), "server-db")
    cloud.see(None, alive=False)
    assert cloud.shown() == ("SHUTDOWN", "")
    cloud.act(instances.restart_instance)
    cloud.steps()
    assert cloud.wants()["server-db"].power is Power.ON
    cloud.again()
    cloud.see(cloud.view(restart=1))
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_what_cannot_be_read_of_one_spoils_nobody_else(cloud: Databases) -> None:
    cloud.active_db("other")

    def spoil(tx: Tx) -> None:
        bad = {"seen": "no", "pending": "{", "failure": None, "settled": False, "next_look": 0.0}
        tx.execute(sa.update(table).where(table.c.id == "db").values(bad))

    cloud.store.transact(spoil)
    assert cloud.instance().unreadable == ("seen", "pending")
    assert cloud.shown("other") == ("ACTIVE", "HEALTHY")
    cloud.step()
    assert cloud.instance().pending is None
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.instance().unreadable == ()


def test_what_data_was_made_from_is_needed_only_until_it_is_made(cloud: Databases) -> None:
    cloud.create_db("new")
    cloud.place("server-new")
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(origin="{")))
    assert cloud.db_want("new") is None
    want = cloud.db_want()
    assert want is not None
    assert want.data_recorded


def test_history_is_kept_and_nothing_of_it_stays_open(cloud: Databases) -> None:
    cloud.act(instances.rename_instance, "db", "renamed")
    cloud.act(instances.delete_instance, force=True)
    cloud.steps()
    cloud.removed("server-db")
    cloud.steps()
    assert outcomes(cloud) == {"create": "done", "rename": "done", "delete": "done"}
    opened = sa.select(operations.c.id).where(operations.c.state == "open")
    assert cloud.store.read(lambda tx: tx.execute(opened).all()) == []
