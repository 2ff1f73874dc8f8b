"""A store that was set back, with databases in it: what is known goes on, what was lost is adopted."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from tests.store.test_generation import say
from unstuck.core.agents import Holding
from unstuck.core.generation import Dispute
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.server.data import Access, Fence, Machine, Power, Running, Thing
from unstuck.store import disputes, generation, instances, networks
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.compute import placements, servers
from unstuck.store.schema.database import instances as table
from unstuck.store.schema.network import ports


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    made = Databases(any_store)
    made.active_db()
    return made


def held(cloud: Databases, name: str = "db") -> Holding:
    want = cloud.wants()[f"server-{name}"]
    return Holding(
        want.server_id,
        Thing.PRESENT,
        Thing.PRESENT,
        want.fence,
        want.nonce,
        want.edge,
        want.intent,
        want.spec,
    )


def test_what_is_known_is_granted_again_with_its_database(cloud: Databases) -> None:
    before, item = cloud.wants()["server-db"], held(cloud)
    cloud.store.transact(generation.rise, "a test")
    say(cloud, item)
    want = cloud.wants()["server-db"]
    assert want.fence > before.fence
    assert want.database == before.database
    assert want.spec == before.spec
    assert (want.power, want.edge, want.gone) == (Power.ON, before.edge, False)
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    cloud.see(cloud.view(volume_used_mb=3))
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_guest_whose_number_the_store_has_lost_is_heard(cloud: Databases) -> None:
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(guest=1)))
    cloud.guests["db"] = 5
    cloud.see(cloud.view(volume_used_mb=3))
    assert cloud.instance().guest == 5
    assert cloud.hello() == 6


def forget(tx: Tx) -> None:
    """The copy of the store was made before the instance was."""
    tx.execute(sa.delete(table))
    tx.execute(sa.delete(ports))
    tx.execute(sa.delete(placements))
    tx.execute(sa.delete(servers))


def test_a_lost_instance_s_server_is_adopted_in_dispute_and_never_destroyed(cloud: Databases) -> None:
    item = held(cloud)
    assert item.spec is not None
    spec = msgspec.structs.replace(item.spec, machine=Machine.CONTAINER)
    item = msgspec.structs.replace(item, spec=spec, fence=Fence(1, 4))
    cloud.store.transact(forget)
    say(cloud, item)
    server = cloud.server("server-db")
    assert server.disputed is Dispute.UNKNOWN
    want = cloud.wants()["server-db"]
    assert (want.gone, want.power, want.edge, want.nonce) == (False, Power.ON, item.edge, item.nonce)
    assert (want.spec, want.disk_recorded) == (spec, True)
    assert want.database is None  # its guest goes on with what it has heard
    assert want.spec.access == Access((5432,), ("10.0.0.0/24",))
    cloud.report(Running(want.edge), "server-db")
    assert cloud.settled_server("server-db")
    row = cloud.store.read(lambda tx: tx.execute(sa.select(servers.c.project_id, servers.c.image_id)).one())
    assert (row.project_id, row.image_id) == (SERVICE_PROJECT, spec.images[0].id)
    taken = cloud.store.read(lambda tx: tx.execute(sa.select(ports.c.address)).scalars().all())
    assert taken == [spec.nics[0].address]


def test_a_lost_instance_s_server_stays_with_its_data_when_an_operator_accepts(cloud: Databases) -> None:
    item = held(cloud)
    cloud.store.transact(forget)
    say(cloud, item)
    found = cloud.store.read(disputes.diff, disputes.Files())
    assert found is not None
    cloud.store.transact(disputes.accept, found.id, disputes.Files(), caller(admin=True))
    server = cloud.server("server-db")
    assert (server.disputed, server.deleted) == (None, False)
    assert not cloud.wants()["server-db"].gone


def test_an_address_of_a_lost_instance_is_not_given_to_a_new_one(cloud: Databases) -> None:
    item = held(cloud)
    assert item.spec is not None
    cloud.store.transact(forget)
    cloud.store.transact(lambda tx: tx.execute(sa.update(networks.subnets).values(cursor=0)))
    say(cloud, item)
    cloud.create_db("new")
    cloud.place("server-new")
    assert cloud.wants()["server-new"].spec.nics[0].address != item.spec.nics[0].address


def test_nothing_leaves_the_trash_by_time_while_the_store_is_in_recovery(cloud: Databases) -> None:
    cloud.act(instances.delete_instance, trash_seconds=1.0)
    cloud.steps()
    cloud.again()
    cloud.steps()
    item = msgspec.structs.replace(held(cloud), guest=Thing.ABSENT)
    cloud.store.transact(generation.rise, "a test")
    say(cloud, item)
    cloud.pass_time(2)
    assert cloud.step() == "DeleteServer"
    assert not cloud.wants()["server-db"].gone
    cloud.store.transact(generation.end_recovery)
    cloud.pass_time(61)
    assert cloud.step() == "DeleteServer"
    assert cloud.wants()["server-db"].gone
