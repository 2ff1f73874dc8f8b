"""Which address a new port gets: a free one, at the same cost however many are in use."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, insert
from unstuck.store import networks
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.network import ports, subnets


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    """Five addresses: 10.0.0.2 to 10.0.0.6."""
    return Cloud(any_store, cidr="10.0.0.0/29")


def address(cloud: Cloud, name: str) -> str:
    def found(tx: Tx) -> str:
        return str(tx.execute(sa.select(ports.c.address).where(ports.c.server_id == name)).scalar_one())

    return cloud.store.read(found)


def free(cloud: Cloud, name: str) -> None:
    cloud.store.transact(lambda tx: tx.execute(sa.delete(ports).where(ports.c.server_id == name)))


def fill(cloud: Cloud) -> None:
    for name in "abcde":
        cloud.create(name)


def point(cloud: Cloud, cursor: int) -> None:
    cloud.store.transact(lambda tx: tx.execute(sa.update(subnets).values(cursor=cursor)))


def test_the_whole_pool_is_used_and_then_it_is_full(cloud: Cloud) -> None:
    fill(cloud)
    assert [address(cloud, name) for name in "abcde"] == [f"10.0.0.{number}" for number in range(2, 7)]
    with pytest.raises(networks.NoMoreAddresses):
        cloud.create("f")


@pytest.mark.parametrize("freed", "abcde")
def test_a_freed_address_is_found_wherever_the_search_begins(cloud: Cloud, freed: str) -> None:
    fill(cloud)
    was = address(cloud, freed)
    free(cloud, freed)
    cloud.create("f")
    assert address(cloud, "f") == was


@pytest.mark.parametrize("cursor", [0, 167772162, 167772164, 167772167, 1 << 40])
def test_the_cursor_may_say_anything(cloud: Cloud, cursor: int) -> None:
    """It is only where the search begins: a restored or damaged one costs no address and gives none twice."""
    for name in "abcde":
        point(cloud, cursor)
        cloud.create(name)
    assert len({address(cloud, name) for name in "abcde"}) == 5
    point(cloud, cursor)
    with pytest.raises(networks.NoMoreAddresses):
        cloud.create("f")


def test_an_address_is_not_used_again_at_once(cloud: Cloud) -> None:
    """Its neighbours may still know it as somebody else's."""
    cloud.create("a")
    free(cloud, "a")
    cloud.create("b")
    assert address(cloud, "b") == "10.0.0.3"


def test_an_address_that_was_asked_for_is_passed_over(cloud: Cloud) -> None:
    def create(tx: Tx) -> None:
        insert(tx, "a")
        networks.allot_port(
            tx, port_id="asked", server_id="a", project_id="project", network_id=None, address="10.0.0.3"
        )

    cloud.store.transact(create)
    cloud.create("b")
    assert address(cloud, "b") == "10.0.0.4"
