"""A store that nobody knows to have been set back: hosts say what they hold before it gives anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller, insert, shown
from tests.store.test_barriers import overlap
from unstuck.core.agents import Holding, Holdings
from unstuck.core.generation import Awaited
from unstuck.core.server.data import Fence, Flavor, Gone, Nic, Spec, Thing
from unstuck.core.server.explain import explain, held_back
from unstuck.store import clock, generation, networks, readdress, server_actions, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.holdings import tell
from unstuck.store.operations import list_operations
from unstuck.store.schema.compute import servers as server_table
from unstuck.store.schema.network import ports, subnets
from unstuck.store.sessions import awaited


class Time:
    """The store's wall clock; ``pass_by`` ticks as a control plane does."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def pass_by(self, store: Store, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            store.transact(generation.tick, lease_seconds=30.0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cloud(store: Store, time: Time) -> Iterator[Cloud]:
    """Two hosts; the control plane was started anew, and none of them has spoken since."""
    made = Store(str(store.engine.url), wall=lambda: time.now)
    found = Cloud(made)
    made.transact(generation.tick, lease_seconds=30.0)
    found.host("h")
    found.host("i")
    reopen(found)
    yield found
    made.close()


def reopen(cloud: Cloud) -> None:
    """As a process does that opens the file: nobody knows whether it is still the same one."""
    cloud.store.session += "+"
    cloud.store.engine.dispose()
    cloud.store.transact(generation.tick, lease_seconds=30.0)


def user_of(cloud: Cloud, address: str, name: str = "late") -> Holding:
    """What a host has of a server that the store has lost, and which uses the address."""
    network = cloud.store.read(networks.default_network)
    assert network is not None
    nic = Nic(f"port-{name}", network, networks.mac_of(f"port-{name}"), address, 24, None)
    spec = Spec(name, name, "project", "nova", Flavor(1, 64, 1), (), (nic,))
    return Holding(name, Thing.PRESENT, Thing.PRESENT, Fence(1, 4), "nonce-late", 7, 7, spec)


def with_nic(tx: Tx, name: str, address: str | None = None) -> None:
    """A server that is made of its port, as the API's create does it."""
    insert(tx, name)
    tx.execute(sa.delete(ports).where(ports.c.server_id == name))
    tx.execute(sa.update(subnets).values(cursor=0))  # as in the copy that the store was set back to
    nic = networks.allot_port(
        tx, port_id=f"port-{name}", server_id=name, project_id="project", network_id=None, address=address
    )
    spec = Spec(name, name, "project", "nova", Flavor(1, 64, 1), (), (nic,))
    tx.execute(
        sa.update(server_table)
        .where(server_table.c.id == name)
        .values(spec=msgspec.json.encode(spec).decode())
    )


def addresses(tx: Tx) -> dict[str, str]:
    return {row.server_id: row.address for row in tx.execute(sa.select(ports))}


def made_of(tx: Tx, name: str) -> list[str]:
    text = tx.execute(sa.select(server_table.c.spec).where(server_table.c.id == name)).scalar_one()
    return [nic.address for nic in msgspec.json.decode(text, type=Spec).nics]


def test_nothing_is_placed_before_every_host_has_spoken_and_a_create_is_taken_at_once(cloud: Cloud) -> None:
    cloud.create("a")
    assert not cloud.place("a", "h")
    cloud.tell("h")
    assert not cloud.place("a", "h"), "it may be on i, or its address be in use there"
    facts = cloud.store.read(servers.server_facts, "a")
    assert facts is not None
    assert facts.hosts == ()
    cloud.tell("i")
    assert cloud.place("a", "h")


def test_a_server_that_has_its_host_is_not_held_up(cloud: Cloud) -> None:
    cloud.tell("h")
    cloud.tell("i")
    cloud.active("a")
    reopen(cloud)
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    assert cloud.wants()["a"].edge == 2
    cloud.store.transact(servers.delete_server, "a", caller())
    assert cloud.wants()["a"].gone


def test_the_wait_is_shown_with_its_reason_and_its_end(cloud: Cloud) -> None:
    cloud.create("a")
    cloud.tell("h")
    found = cloud.store.read(awaited)
    now = cloud.store.read(clock.read_now)
    assert found == Awaited(("i",), now.lease + 60.0)
    assert found is not None
    told = held_back(explain(cloud.server("a"), now), found, now)
    assert [condition.code for condition in told.conditions] == ["host-unheard"]
    assert told.by_seconds == 60.0
    assert "i has not said" in told.reason
    cloud.store.transact(servers.wait_for_host, "a")
    assert not cloud.settled("a")
    assert cloud.store.read(lambda tx: shown(tx, "a")).status == "BUILD"


def test_a_host_that_fell_silent_with_the_control_plane_is_waited_for_until_it_is_away(
    cloud: Cloud, time: Time
) -> None:
    cloud.create("a")
    cloud.tell("h")
    time.pass_by(cloud.store, 59)
    cloud.beat("h")
    assert not cloud.place("a", "h")
    time.pass_by(cloud.store, 1)
    assert cloud.place("a", "h")
    cloud.create("b")
    cloud.beat("i")
    assert not cloud.place("b", "i"), "it is back, and has not said what it holds"
    cloud.tell("i")
    assert cloud.place("b", "i")


def test_a_host_that_was_away_before_holds_up_nobody_for_longer_than_three_heartbeats(
    cloud: Cloud, time: Time
) -> None:
    time.pass_by(cloud.store, 61)
    cloud.beat("h")
    reopen(cloud)
    cloud.create("a")
    cloud.tell("h")
    assert not cloud.place("a", "h")
    time.pass_by(cloud.store, 15)
    cloud.beat("h")
    assert cloud.place("a", "h")


@pytest.mark.parametrize("values", [{"enabled": False}, {"forced_down": True}])
def test_nobody_waits_for_a_host_that_an_operator_has_taken_out(
    cloud: Cloud, values: dict[str, bool]
) -> None:
    from unstuck.store.schema.compute import hosts

    cloud.store.transact(lambda tx: tx.execute(sa.update(hosts).where(hosts.c.id == "i").values(values)))
    cloud.create("a")
    cloud.tell("h")
    assert cloud.place("a", "h")


def test_a_host_that_cannot_see_what_it_holds_is_given_nothing(cloud: Cloud) -> None:
    cloud.create("a")
    cloud.tell("h")
    given = Holdings(cloud.agents["i"].incarnation, next(cloud.sequence), (), complete=False)
    cloud.store.transact(tell, "i", given)
    assert not cloud.place("a", "h")
    assert not cloud.place("a", "i")


def test_a_newcomer_gives_way_to_the_guest_that_uses_its_address(cloud: Cloud) -> None:
    cloud.store.transact(with_nic, "new")
    assert cloud.store.read(addresses) == {"new": "10.0.0.10"}
    lost = user_of(cloud, "10.0.0.10")
    cloud.tell("h", lost)
    assert cloud.store.read(addresses) == {"late": "10.0.0.10", "new": "10.0.0.11"}
    assert cloud.store.read(made_of, "new") == ["10.0.0.11"]
    [reason] = cloud.store.read(readdress.readdressed, "new")
    assert "10.0.0.10 is in use" in reason
    found = cloud.store.read(list_operations, "new", "project", removed=False, limit=10)
    assert "readdress" in [row.kind for row in found.rows]
    assert not cloud.place("new", "i"), "i may use the second address"
    cloud.tell("i", user_of(cloud, "10.0.0.11", "later"))
    assert cloud.store.read(addresses)["new"] == "10.0.0.12"
    assert cloud.place("new", "h")
    assert [nic.address for nic in cloud.wants()["new"].spec.nics] == ["10.0.0.12"]


def test_whoever_asked_for_an_address_in_use_fails_saying_so(cloud: Cloud) -> None:
    cloud.store.transact(with_nic, "new", "10.0.0.10")
    cloud.tell("h", user_of(cloud, "10.0.0.10"))
    cloud.tell("i")
    assert cloud.store.read(addresses) == {"late": "10.0.0.10"}
    failure = cloud.server("new").failure
    assert failure is not None
    assert failure.code == "address-taken"
    assert cloud.status("new").status == "ERROR"
    assert not cloud.place("new", "i")
    cloud.store.transact(server_actions.reset_state, "new", "active", caller())
    assert cloud.status("new").status == "ERROR", "it would be built without a network"
    cloud.store.transact(servers.delete_server, "new", caller())
    assert cloud.status("new").status == "DELETED"
    assert cloud.store.read(addresses) == {"late": "10.0.0.10"}


def test_a_server_without_a_host_is_gone_only_when_no_host_has_it(cloud: Cloud) -> None:
    """It may run on i, with its address; its user deletes it before i has said so."""
    cloud.store.transact(with_nic, "a")
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.store.transact(servers.finish_delete, "a")
    assert not cloud.server("a").removed
    assert cloud.store.read(addresses) == {"a": "10.0.0.10"}
    cloud.tell("h")
    held = msgspec.structs.replace(user_of(cloud, "10.0.0.10"), server_id="a")
    cloud.tell("i", held)
    cloud.store.transact(servers.finish_delete, "a")
    assert cloud.wants("i")["a"].gone, "its host is told to remove it"
    cloud.report(Gone(), "a", "i")
    cloud.removed("a", "i")
    assert cloud.server("a").removed
    assert cloud.store.read(addresses) == {}


def test_a_server_without_a_host_that_nobody_holds_is_gone_as_soon_as_all_have_spoken(cloud: Cloud) -> None:
    cloud.store.transact(with_nic, "a")
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.tell("h")
    cloud.tell("i")
    cloud.store.transact(servers.finish_delete, "a")
    assert cloud.server("a").removed


# Two at once, on PostgreSQL.


@pytest.fixture
def pg(postgres_store: Store) -> Cloud:
    made = Cloud(postgres_store)
    made.store.transact(generation.tick, lease_seconds=30.0)
    return made


def saying(cloud: Cloud, host_id: str, *held: Holding) -> Callable[[Tx], Any]:
    given = Holdings(cloud.agents[host_id].incarnation, next(cloud.sequence), held)
    return lambda tx: tell(tx, host_id, given)


def test_a_place_on_a_host_that_is_just_speaking_waits_for_what_it_says(pg: Cloud) -> None:
    """Its server is there already: granted again under its own name, and never a second time."""
    pg.host("h", told=False)
    pg.store.transact(with_nic, "a")
    held = msgspec.structs.replace(user_of(pg, "10.0.0.10"), server_id="a")
    _, placed = overlap(pg.store, saying(pg, "h", held), lambda tx: servers.place(tx, "a", "h", "another"))
    assert placed is False
    place = pg.server("a").place
    assert place is not None
    assert place.nonce == "nonce-late"


def test_a_place_while_another_host_is_just_speaking_is_refused_or_sees_what_it_said(pg: Cloud) -> None:
    pg.host("h")
    pg.host("i", told=False)
    pg.store.transact(with_nic, "new")
    lost = user_of(pg, "10.0.0.10")
    placed, _ = overlap(pg.store, lambda tx: servers.place(tx, "new", "h", "n"), saying(pg, "i", lost))
    assert placed is False
    assert pg.store.read(addresses) == {"late": "10.0.0.10", "new": "10.0.0.11"}


def test_a_place_that_waited_for_a_newcomer_to_give_way_has_its_new_address(pg: Cloud) -> None:
    pg.host("h")
    pg.host("i", told=False)
    pg.store.transact(with_nic, "new")
    overlap(
        pg.store,
        saying(pg, "i", user_of(pg, "10.0.0.10")),
        lambda tx: servers.place(tx, "new", "h", "n"),
    )
    if pg.server("new").place is None:
        pg.tell("h")  # the lost server made a new generation, in which h has not spoken yet
        pg.tell("i")
        assert pg.place("new", "h")
    assert [nic.address for nic in pg.wants("h")["new"].spec.nics] == ["10.0.0.11"]


def test_an_address_that_is_handed_out_while_its_user_is_adopted_is_another_one(pg: Cloud) -> None:
    pg.host("i", told=False)
    lost = user_of(pg, "10.0.0.10")
    overlap(pg.store, lambda tx: with_nic(tx, "new"), saying(pg, "i", lost))
    assert pg.store.read(addresses) == {"late": "10.0.0.10", "new": "10.0.0.11"}
