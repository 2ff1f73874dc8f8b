"""Two connections at once on PostgreSQL, for each function of instances that decides on other rows."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from tests.store.test_barriers import overlap
from unstuck.core.errors import Conflict, TooLarge
from unstuck.core.instance.wire import GuestRegister, GuestReport
from unstuck.core.server.data import Power
from unstuck.store import database_quotas, instance_work, instances
from unstuck.store.engine import Store, Tx
from unstuck.store.instance_guests import GuestSuperseded, guest_register, guest_report
from unstuck.store.instances import NewIds
from unstuck.store.schema.compute import placements
from unstuck.store.schema.database import backups
from unstuck.store.schema.database import instances as table


@pytest.fixture
def cloud(postgres_store: Store) -> Databases:
    return Databases(postgres_store)


def create(cloud: Databases, name: str, **more: Any) -> Any:
    ids = NewIds(name, f"server-{name}", f"port-{name}", f"generation-{name}")
    return lambda tx: instances.create_instance(tx, cloud.ask(name, **more), ids, caller())


def test_two_creates_at_the_limit_are_counted_one_by_one(cloud: Databases) -> None:
    cloud.store.transact(database_quotas.set_limits, "p", {"instances": 1})
    first, second = overlap(cloud.store, create(cloud, "a"), create(cloud, "b"))
    assert first == "a"
    assert isinstance(second, TooLarge)


def test_two_larger_volumes_at_the_limit_are_counted_one_by_one(cloud: Databases) -> None:
    for name in ("a", "b"):
        cloud.active_db(name)
    cloud.store.transact(database_quotas.set_limits, "p", {"volumes": 3})
    first, second = overlap(
        cloud.store,
        lambda tx: instances.resize_volume(tx, "a", "p", 2, caller()),
        lambda tx: instances.resize_volume(tx, "b", "p", 2, caller()),
    )
    assert first == "h"
    assert isinstance(second, TooLarge)


def test_two_larger_flavors_never_oversubscribe_a_host(postgres_store: Store) -> None:
    cloud = Databases(postgres_store, ram_mb=4000)
    cloud.active_db("a")
    cloud.active_db("b", project="q")
    first, second = overlap(
        cloud.store,
        lambda tx: instances.resize_instance(tx, "a", "p", "4", caller()),
        lambda tx: instances.resize_instance(tx, "b", "q", "4", caller("q")),
    )
    assert first == "h"
    assert isinstance(second, Conflict)
    used = cloud.store.read(lambda tx: tx.execute(sa.select(sa.func.sum(placements.c.ram_mb))).scalar_one())
    assert used == 2048 + 512


def test_one_of_two_requests_is_accepted(cloud: Databases) -> None:
    cloud.active_db()
    first, second = overlap(
        cloud.store,
        lambda tx: instances.resize_volume(tx, "db", "p", 2, caller()),
        lambda tx: instances.restart_instance(tx, "db", "p", caller()),
    )
    assert first == "h"
    assert isinstance(second, Conflict)


def test_a_create_and_a_delete_of_its_backup_see_each_other(cloud: Databases) -> None:
    """Either the delete finds a reader, or the create finds that there is nothing to read."""
    cloud.active_db()
    cloud.store.transact(add_backup)
    first, second = overlap(
        cloud.store,
        lambda tx: tx.execute(sa.update(backups).values(deleted=True)).rowcount,
        create(cloud, "copy", backup_id="b"),
    )
    assert first == 1
    assert "cannot be found" in str(second)


def add_backup(tx: Tx) -> None:
    columns = {column.name for column in backups.columns}
    values: dict[str, Any] = {
        "id": "b", "project_id": "p", "instance_id": "db", "instance_name": "db",
        "datastore_version_id": "v15",
        "name": "b", "location": "l", "created": 0.0, "created_wall": 0.0, "updated_wall": 0.0, "facts": "{}",
        "ended": "COMPLETED", "deleted": False, "removed": False, "recipient": "r", "key": "k",
        "recipients": "[]", "size": 1, "settled": True, "version": 1, "since": 0.0,
    }  # fmt: skip
    tx.execute(sa.insert(backups).values({key: value for key, value in values.items() if key in columns}))


def test_two_processes_that_say_hello_at_once_get_two_numbers(cloud: Databases) -> None:
    cloud.create_db()
    cloud.up()
    who = cloud.who()
    first, second = overlap(
        cloud.store,
        lambda tx: guest_register(tx, "h", GuestRegister(who, "a", 1)).incarnation,
        lambda tx: guest_register(tx, "h", GuestRegister(who, "b", 1)).incarnation,
    )
    assert (first, second) == (1, 2)


def test_a_report_that_meets_a_newer_hello_is_refused(cloud: Databases) -> None:
    cloud.create_db()
    cloud.up()
    cloud.hello()
    old = cloud.who()
    report = GuestReport(old, next(cloud.sequence), True, cloud.view())
    first, second = overlap(
        cloud.store,
        lambda tx: guest_register(tx, "h", GuestRegister(old, "newer", 1)).incarnation,
        lambda tx: guest_report(tx, "h", report),
    )
    assert first == 2
    assert isinstance(second, GuestSuperseded)
    assert not cloud.instance().data_recorded


def test_a_delete_and_a_report_at_once_leave_it_deleted(cloud: Databases) -> None:
    cloud.active_db()
    report = GuestReport(cloud.who(), next(cloud.sequence), True, cloud.view(volume_used_mb=5))
    first, second = overlap(
        cloud.store,
        lambda tx: instances.delete_instance(tx, "db", "p", caller()),
        lambda tx: guest_report(tx, "h", report).changed,
    )
    assert (first, second) == ("h", True)
    assert cloud.instance().deleted
    assert not cloud.settled()


def test_a_report_that_records_data_and_a_delete_at_once_keep_the_volume(cloud: Databases) -> None:
    cloud.create_db()
    cloud.up()
    cloud.hello()
    report = GuestReport(cloud.who(), next(cloud.sequence), True, cloud.view())
    first, second = overlap(
        cloud.store,
        lambda tx: guest_report(tx, "h", report).bumped,
        lambda tx: instances.delete_instance(tx, "db", "p", caller()),
    )
    assert (first, second) == (True, "h")
    found = cloud.instance()
    assert (found.deleted, found.data_recorded, found.trash_until_wall is not None) == (True, True, True)


def test_a_delete_wins_over_what_the_loop_is_about_to_apply(cloud: Databases) -> None:
    cloud.active_db()
    cloud.act(instances.resize_volume, "db", 2)
    first, second = overlap(
        cloud.store,
        lambda tx: instances.delete_instance(tx, "db", "p", caller(), force=True),
        lambda tx: instance_work.apply_pending(tx, "db"),
    )
    assert first == "h"
    assert second is None
    assert cloud.wants()["server-db"].spec.flavor.disk_gb == 1
    assert cloud.instance().pending is None


def test_brought_back_while_the_loop_stops_it_it_runs(cloud: Databases) -> None:
    cloud.active_db()
    cloud.act(instances.delete_instance)
    first, second = overlap(
        cloud.store,
        lambda tx: instances.undelete_instance(tx, "db", "p", caller()),
        lambda tx: instance_work.stop_trashed(tx, "db"),
    )
    assert (first, second) == ("h", None)
    assert cloud.wants()["server-db"].power is Power.ON


def test_brought_back_while_the_loop_removes_it_it_is_either_gone_or_there(cloud: Databases) -> None:
    cloud.active_db()
    cloud.act(instances.delete_instance)
    cloud.steps()
    cloud.again()
    cloud.steps()
    cloud.act(instances.delete_instance, force=True)
    first, second = overlap(
        cloud.store,
        lambda tx: instance_work.delete_instance_server(tx, "db"),
        lambda tx: instances.undelete_instance(tx, "db", "p", caller()),
    )
    assert first == "h"
    assert isinstance(second, Conflict)


def test_two_loops_apply_a_request_once(cloud: Databases) -> None:
    cloud.active_db()
    cloud.act(instances.restart_instance)
    first, second = overlap(
        cloud.store,
        lambda tx: instance_work.apply_pending(tx, "db"),
        lambda tx: instance_work.apply_pending(tx, "db"),
    )
    assert (first, second) == ("h", None)
    assert cloud.store.read(lambda tx: tx.execute(sa.select(table.c.restart)).scalar_one()) == 1
