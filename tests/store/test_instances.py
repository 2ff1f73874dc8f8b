"""Instances on both databases: from the request to what guests see, and back to nothing."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from unstuck.core.errors import Conflict, Invalid, NotFound, TooLarge
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import WantedDatabase, WantedUser
from unstuck.core.server.data import Machine, Thing
from unstuck.store import database_quotas, instances
from unstuck.store.engine import Store
from unstuck.store.schema.compute import servers
from unstuck.store.schema.database import instances as table


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    return Databases(any_store)


def test_an_instance_is_wanted_by_its_host_seen_by_its_guest_and_then_active(cloud: Databases) -> None:
    users = (WantedUser("ann", "SCRAM-SHA-256$…", ("app",)),)
    cloud.create_db(databases=(WantedDatabase("app"),), users=users)
    assert cloud.shown() == ("BUILD", "")
    cloud.up()
    want = cloud.db_want()
    assert want is not None
    assert (want.instance_id, want.datastore, want.version, want.port) == ("db", "postgresql", "15.14", 5432)
    assert (want.generation, want.data_recorded, want.ram_mb) == ("generation-db", False, 512)
    assert (want.origin.databases, want.origin.users) == ((WantedDatabase("app"),), users)
    assert want.cidrs == ("10.0.0.0/24",)
    assert cloud.hello() == 1
    assert cloud.shown() == ("BUILD", "")
    cloud.see(cloud.view(server=ServerState.STARTING, applied=False))
    assert cloud.shown() == ("BUILD", "")
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.settled()
    want = cloud.db_want()
    assert want is not None
    assert want.data_recorded


def test_its_server_is_made_of_the_version_s_image_with_a_volume_of_its_size(cloud: Databases) -> None:
    cloud.create_db(volume_gb=7)
    cloud.place("server-db")
    spec = cloud.wants()["server-db"].spec
    assert (spec.data, spec.machine, spec.flavor.disk_gb, spec.flavor.ram_mb) == (True, Machine.VM, 7, 512)
    assert [image.role.value for image in spec.images] == ["root", "kernel"]
    assert spec.project_id == SERVICE_PROJECT
    assert spec.access is not None
    assert (spec.access.ports, spec.access.cidrs) == ((5432,), ("10.0.0.0/24",))
    owner = cloud.store.read(lambda tx: tx.execute(sa.select(servers.c.project_id)).scalar_one())
    assert owner == SERVICE_PROJECT


@pytest.mark.parametrize(
    ("public", "cidrs", "who"),
    [
        (False, None, ("10.0.0.0/24",)),
        (False, (), ("10.0.0.0/24",)),
        (False, ("192.0.2.0/24",), ("192.0.2.0/24",)),
        (True, None, ("0.0.0.0/0",)),
        (True, ("192.0.2.0/24",), ("192.0.2.0/24",)),
    ],
)
def test_who_may_come_in(
    cloud: Databases, public: bool, cidrs: tuple[str, ...] | None, who: tuple[str, ...]
) -> None:
    cloud.create_db(is_public=public, cidrs=cidrs)
    cloud.place("server-db")
    access = cloud.wants()["server-db"].spec.access
    assert access is not None
    assert access.cidrs == who


def test_containers_before_machines_where_a_host_has_them(cloud: Databases) -> None:
    cloud.machines("vm", "container")
    cloud.create_db()
    cloud.place("server-db")
    assert cloud.wants()["server-db"].spec.machine is Machine.CONTAINER


def test_a_host_without_machines_takes_no_ordinary_server(cloud: Databases) -> None:
    cloud.machines("container")
    cloud.create("web")
    assert not cloud.place("web")
    cloud.create_db()
    assert cloud.place("server-db")


def test_a_version_that_is_not_there_is_refused_by_its_field(cloud: Databases) -> None:
    with pytest.raises(Invalid, match=r"^datastore.type: "):
        cloud.create_db(datastore="oracle")
    with pytest.raises(Invalid, match=r"^datastore.version: "):
        cloud.create_db(version="99")
    with pytest.raises(Invalid, match=r"^flavorRef: "):
        cloud.create_db(flavor_id="no")
    with pytest.raises(Invalid, match=r"^nics: "):
        cloud.create_db(network_id="no")
    with pytest.raises(NotFound):
        cloud.create_db(backup_id="no")
    rows = cloud.store.read(
        lambda tx: tx.execute(sa.select(sa.func.count()).select_from(servers)).scalar_one()
    )
    assert rows == 0


def test_quota_counts_instances_volumes_and_memory_of_the_tenant(cloud: Databases) -> None:
    cloud.store.transact(database_quotas.set_limits, "p", {"instances": 2, "volumes": 5, "ram": 1024})
    cloud.create_db("a", volume_gb=4)
    with pytest.raises(TooLarge, match="volumes"):
        cloud.create_db("b", volume_gb=2)
    with pytest.raises(TooLarge, match="ram"):
        cloud.create_db("b", flavor_id="4")
    cloud.create_db("b")
    with pytest.raises(TooLarge, match="instances"):
        cloud.create_db("c", flavor_id="1", volume_gb=0)
    cloud.create_db("c", project="q")
    assert cloud.store.read(database_quotas.usage, "p").instances == 2


def test_another_project_s_instance_is_not_there(cloud: Databases) -> None:
    cloud.active_db()
    for action in (instances.restart_instance, instances.delete_instance):
        with pytest.raises(NotFound):
            cloud.store.transact(action, "db", "q", caller("q"))
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_the_data_is_recorded_once_and_only_for_the_wanted_generation(cloud: Databases) -> None:
    cloud.create_db()
    cloud.up()
    cloud.hello()
    cloud.see(cloud.view(generation="another"))
    assert not cloud.instance().data_recorded
    cloud.see(cloud.view(data=Thing.UNKNOWN))
    assert not cloud.instance().data_recorded
    assert cloud.see(cloud.view()).bumped
    assert cloud.instance().data_recorded
    cloud.see(cloud.view(data=Thing.ABSENT, server=ServerState.DOWN))
    assert cloud.instance().data_recorded


def test_an_unchanged_report_writes_nothing(cloud: Databases) -> None:
    cloud.active_db()
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(seen_at=table.c.seen_at - 120)))
    before = cloud.store.read(lambda tx: tx.execute(sa.select(table)).one())
    assert not cloud.see(cloud.view()).changed
    assert cloud.store.read(lambda tx: tx.execute(sa.select(table)).one()) == before


def test_a_protected_instance_says_how_to_lift_that(cloud: Databases) -> None:
    cloud.active_db()
    cloud.store.transact(instances.protect_instance, "db", "p", caller(), protected=True)
    with pytest.raises(Conflict, match=r"protected.*false"):
        cloud.store.transact(instances.delete_instance, "db", "p", caller())
    cloud.store.transact(instances.protect_instance, "db", "p", caller(), protected=False)
    cloud.store.transact(instances.delete_instance, "db", "p", caller())
    assert cloud.instance().deleted
