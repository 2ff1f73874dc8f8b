"""A store that was set back: what it notices, adopts, holds back and settles; the same on both databases."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller, facts
from tests.store.test_barriers import overlap
from unstuck.control.collect import may_collect
from unstuck.core.agents import Heartbeat, Holding, Holdings, Register, Told
from unstuck.core.errors import Conflict, Invalid, NotFound, Unavailable
from unstuck.core.generation import Dispute, Mark
from unstuck.core.guard import Allowed, Suspended
from unstuck.core.server.data import Fence, Flavor, Gone, Nic, Power, Running, Spec, Thing
from unstuck.core.server.explain import explain
from unstuck.store import (
    agents,
    clock,
    disputes,
    generation,
    networks,
    server_rebuild,
    server_shelve,
    servers,
)
from unstuck.store.engine import Store
from unstuck.store.generation import Behind
from unstuck.store.holdings import tell
from unstuck.store.schema.compute import placements
from unstuck.store.schema.identity import projects
from unstuck.store.schema.network import ports

NONE = disputes.Files()


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    made = Cloud(any_store)
    made.host()
    made.store.transact(
        lambda tx: tx.execute(
            sa.insert(projects).values(id="project", name="p", description="", enabled=True, extra="{}")
        )
    )
    return made


def ahead(cloud: Cloud, **more: int) -> Mark:
    """A mark from a future that the store has lost."""
    now = cloud.store.read(generation.mark)
    return msgspec.structs.replace(now, tick=now.tick + 1, **more)


def say(cloud: Cloud, *held: Holding, host_id: str = "h", mark: Mark | None = None) -> Told:
    given = Holdings(cloud.agents[host_id].incarnation, next(cloud.sequence), held, mark=mark)
    return cloud.store.transact(tell, host_id, given)


def holding(
    cloud: Cloud, name: str, *, edge: int = 1, guest: Thing = Thing.PRESENT, nonce: str = ""
) -> Holding:
    """What the host has of a server that the store knows."""
    want = cloud.wants()[name]
    return Holding(name, guest, Thing.PRESENT, want.fence, nonce or want.nonce, edge, want.intent, want.spec)


def stranger(cloud: Cloud, name: str = "late", address: str = "10.0.0.10") -> Holding:
    """What the host has of a server that was made after the copy."""
    network = cloud.store.read(networks.default_network)
    assert network is not None
    nic = Nic(f"port-{name}", network, "52:54:00:00:00:01", address, 24, None)
    spec = Spec(name, name, "project", "nova", Flavor(1, 64, 1), (), (nic,))
    return Holding(name, Thing.PRESENT, Thing.PRESENT, Fence(1, 4), "nonce-late", 7, 7, spec)


def recovering(cloud: Cloud) -> bool:
    return cloud.store.read(generation.recovery) is not None


def test_a_plain_restart_raises_nothing(cloud: Cloud) -> None:
    cloud.active()
    mark = cloud.store.read(generation.mark)
    assert not cloud.store.transact(generation.notice, mark, "the record")
    say(cloud, holding(cloud, "a"), mark=mark)
    assert cloud.store.read(generation.mark).generation == 1
    assert not recovering(cloud)


@pytest.mark.parametrize("how", ["record", "heartbeat", "register"])
def test_whoever_heard_more_makes_the_store_notice(cloud: Cloud, how: str) -> None:
    mark = ahead(cloud)
    if how == "record":
        cloud.store.transact(generation.notice, mark, "the record")
    elif how == "heartbeat":
        beat = Heartbeat(cloud.agents["h"].incarnation, next(cloud.sequence), mark=mark)
        cloud.store.transact(agents.heartbeat, "h", beat)
    else:
        cloud.store.transact(agents.register, "h", Register("new", facts(), -1, mark))
    found = cloud.store.read(generation.mark)
    assert found.generation == 2
    assert found.generation_id != mark.generation_id
    assert recovering(cloud)


def test_two_histories_of_one_generation_are_noticed(cloud: Cloud) -> None:
    assert cloud.store.transact(generation.notice, Mark(1, "another", 0), "the record")
    assert recovering(cloud)


def test_a_rise_fences_nobody_and_tells_everything_anew(cloud: Cloud) -> None:
    cloud.active()
    before = cloud.wants()["a"]
    cloud.store.transact(generation.rise, "a test")
    with pytest.raises(Behind):
        cloud.wants()  # what runs comes first
    say(cloud, Holding("a", Thing.PRESENT, Thing.PRESENT, before.fence, before.nonce, 1, 1, before.spec))
    after = cloud.wants(since=before.version)["a"]
    assert after.fence == Fence(2, before.fence.epoch)
    assert (after.nonce, after.edge, after.intent) == (before.nonce, before.edge, before.intent)
    with pytest.raises(agents.Stale):
        cloud.report(Running(1), fence=before.fence)
    cloud.report(Running(1))
    assert cloud.status().status == "ACTIVE"


def test_an_agent_whose_number_was_lost_gets_a_higher_one(cloud: Cloud) -> None:
    present = cloud.agents["h"].incarnation
    with pytest.raises(Behind):
        cloud.store.transact(agents.heartbeat, "h", Heartbeat(present + 3, 1))
    mark = ahead(cloud, incarnation=present + 3)
    asked = cloud.store.transact(agents.register, "h", Register("mine", facts(), present, mark))
    assert asked.granted
    assert asked.incarnation == present + 4


def test_no_address_is_handed_out_before_every_host_has_spoken(cloud: Cloud) -> None:
    cloud.host("i")
    cloud.store.transact(generation.rise, "a test")
    say(cloud)
    with pytest.raises(Unavailable, match="i has not said"):
        cloud.create("b")
    say(cloud, host_id="i")
    cloud.create("b")
    assert cloud.place("b")


def test_what_a_silent_host_may_hold_is_not_placed_again(cloud: Cloud) -> None:
    cloud.host("i")
    cloud.create("a")
    cloud.store.transact(generation.rise, "a test")
    say(cloud, host_id="i")
    assert not cloud.place("a", "i")
    cloud.store.transact(servers.fail_server, "a", "no-host", "no host", "none")
    assert cloud.server("a").failure is None, "it is not known that nobody has it"
    say(cloud)
    assert cloud.place("a", "i")


def test_a_lost_grant_is_adopted_under_the_name_that_the_disk_has(cloud: Cloud) -> None:
    cloud.create("a")
    spec = Spec("a", "a", "project", "nova", Flavor(1, 64, 1), ())
    say(cloud, Holding("a", Thing.PRESENT, Thing.PRESENT, Fence(1, 3), "their-nonce", 1, 1, spec))
    want = cloud.wants()["a"]
    assert (want.nonce, want.disk_recorded) == ("their-nonce", True)
    assert want.fence > Fence(1, 3)
    assert recovering(cloud), "a grant that the store never gave shows that it lost something"
    assert cloud.server("a").disputed is None


def test_a_guest_that_a_lost_request_started_is_not_restarted(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.stop_server, "a", caller())  # the copy: it is to be off
    say(cloud, holding(cloud, "a", edge=3))
    want = cloud.wants()["a"]
    assert (want.power, want.edge, want.intent) == (Power.ON, 3, 3)
    cloud.report(Running(3))
    assert cloud.settled()
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    assert cloud.wants()["a"].edge == 4, "a later request is a later one"


def test_requests_wait_for_the_host_and_deletes_do_not(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(generation.rise, "a test")
    with pytest.raises(Unavailable):
        cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    cloud.store.transact(servers.delete_server, "a", caller())
    assert cloud.server().deleted


def test_what_the_store_had_lost_is_adopted_shown_and_kept(cloud: Cloud) -> None:
    say(cloud, stranger(cloud))
    server = cloud.server("late")
    assert server.disputed is Dispute.UNKNOWN
    shown = explain(server, cloud.store.read(clock.read_now))
    assert [condition.code for condition in shown.conditions] == ["disputed"]
    taken = cloud.store.read(lambda tx: list(tx.execute(sa.select(ports.c.address)).scalars()))
    assert taken == ["10.0.0.10"], "its address is taken"
    cloud.create("b")
    assert cloud.store.read(
        lambda tx: tx.execute(sa.select(ports.c.address).where(ports.c.server_id == "b")).scalar_one()
    ) != "10.0.0.10"  # fmt: skip
    want = cloud.wants()["late"]
    assert (want.power, want.edge, want.disk_recorded, want.gone) == (Power.ON, 7, True, False)
    cloud.report(Running(7), "late")
    assert cloud.status("late").status == "ACTIVE"


def test_a_delete_of_what_is_in_dispute_is_kept_and_held(cloud: Cloud) -> None:
    say(cloud, stranger(cloud))
    cloud.store.transact(servers.delete_server, "late", caller())
    assert cloud.server("late").deleted
    assert not cloud.wants()["late"].gone
    assert cloud.settled("late"), "what is in dispute counts as settled, with a condition"
    found = cloud.store.read(disputes.diff, NONE)
    assert found is not None
    cloud.store.transact(disputes.accept, found.id, NONE, caller())
    assert cloud.wants()["late"].gone


def test_one_accepted_diff_settles_all_of_it(cloud: Cloud) -> None:
    cloud.active("a")
    say(cloud, stranger(cloud))  # and nothing of a, of which a disk was recorded
    assert cloud.server("a").disputed is Dispute.MISSING
    found = cloud.store.read(disputes.diff, NONE)
    assert found is not None
    assert [(item.kind, item.id) for item in found.items] == [
        ("server-missing", "a"),
        ("server-unknown", "late"),
    ]
    with pytest.raises(Conflict, match="has changed"):
        cloud.store.transact(disputes.accept, "something", NONE, caller())
    with pytest.raises(Invalid, match="is no server"):
        cloud.store.transact(disputes.accept, found.id, NONE, caller(), give_up=frozenset({"a"}))
    assert cloud.server("a").disputed is Dispute.MISSING, "a refused acceptance changes nothing"
    cloud.store.transact(disputes.accept, found.id, NONE, caller())
    assert not recovering(cloud)
    assert cloud.wants()["a"].gone
    assert not cloud.wants()["late"].gone
    assert cloud.server("late").disputed is None
    with pytest.raises(NotFound):
        cloud.store.transact(disputes.accept, found.id, NONE, caller())


def test_an_unknown_server_is_given_up_only_where_somebody_says_so(cloud: Cloud) -> None:
    say(cloud, stranger(cloud))
    found = cloud.store.read(disputes.diff, NONE)
    assert found is not None
    cloud.store.transact(disputes.accept, found.id, NONE, caller(), give_up=frozenset({"late"}))
    assert cloud.wants()["late"].gone


def test_a_server_of_a_project_that_is_not_known_needs_one_to_be_named(cloud: Cloud) -> None:
    lost = stranger(cloud)
    assert lost.spec is not None
    lost = msgspec.structs.replace(lost, spec=msgspec.structs.replace(lost.spec, project_id="elsewhere"))
    say(cloud, lost)
    found = cloud.store.read(disputes.diff, NONE)
    assert found is not None
    with pytest.raises(Invalid, match="name one"):
        cloud.store.transact(disputes.accept, found.id, NONE, caller())
    with pytest.raises(Invalid, match="there is no project"):
        cloud.store.transact(disputes.accept, found.id, NONE, caller(), project="nobody's")
    cloud.store.transact(disputes.accept, found.id, NONE, caller(), project="p")
    assert cloud.server("late").disputed is None


def test_nothing_is_accepted_while_a_host_is_silent(cloud: Cloud) -> None:
    cloud.host("i")
    say(cloud, stranger(cloud))
    found = cloud.store.read(disputes.diff, NONE)
    assert found is not None
    assert found.waiting == ("i",)
    with pytest.raises(Conflict, match="disable the host"):
        cloud.store.transact(disputes.accept, found.id, NONE, caller())


def test_recovery_ends_by_itself_where_all_agree(cloud: Cloud) -> None:
    cloud.active()
    held = holding(cloud, "a")
    cloud.store.transact(generation.rise, "an ordinary failover")
    assert not cloud.store.transact(generation.end_if_agreed)
    say(cloud, held)
    assert cloud.store.transact(generation.end_if_agreed)
    assert not recovering(cloud)


def test_a_folder_that_cannot_be_read_says_nothing(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(generation.rise, "a test")
    given = Holdings(cloud.agents["h"].incarnation, next(cloud.sequence), (), complete=False)
    assert cloud.store.transact(tell, "h", given).again
    assert cloud.server().disputed is None


def test_a_report_that_is_newer_than_what_was_told_counts(cloud: Cloud) -> None:
    """The host looked, then built and reported the server; what it saw before says nothing of it."""
    cloud.store.transact(generation.rise, "a test")
    incarnation, sequence = cloud.agents["h"].incarnation, next(cloud.sequence)
    say(cloud)
    cloud.active()
    cloud.store.transact(tell, "h", Holdings(incarnation, sequence, ()))
    assert cloud.server().disputed is None


def test_nothing_is_collected_until_the_dispute_is_settled(cloud: Cloud) -> None:
    assert isinstance(cloud.store.read(may_collect), Allowed)
    say(cloud, stranger(cloud))
    found = cloud.store.read(may_collect)
    assert isinstance(found, Suspended)
    assert "set back" in found.reason
    shown = cloud.store.read(disputes.diff, NONE)
    assert shown is not None
    cloud.store.transact(disputes.accept, shown.id, NONE, caller())
    assert isinstance(cloud.store.read(may_collect), Allowed)


def test_the_guard_stands_in_the_clock_row(store: Store) -> None:
    time = 1_000.0
    steady = Store(str(store.engine.url), wall=lambda: time)
    cloud = Cloud(steady)
    cloud.host()

    def tick(seconds: float, times: int = 1) -> None:
        nonlocal time
        for _ in range(times):
            time += seconds
            cloud.beat_at(time)
            steady.transact(clock.tick, lease_seconds=30.0)

    steady.transact(lambda tx: clock.tick(tx, lease_seconds=30.0))
    tick(1.0, 70)
    assert isinstance(steady.read(clock.may_destroy), Allowed)
    for jump in (3600.0, -3600.0, 86_400.0):
        tick(jump)
        assert isinstance(steady.read(clock.may_destroy), Suspended), f"after a jump by {jump} s"
        tick(1.0, 59)
        assert isinstance(steady.read(clock.may_destroy), Suspended)
        tick(1.0)
        assert isinstance(steady.read(clock.may_destroy), Allowed)
    tick(3600.0)
    steady.transact(clock.allow_destruction)
    assert isinstance(steady.read(clock.may_destroy), Allowed), "an operator has said so"
    steady.close()


# Two at once, on PostgreSQL.


def pg(postgres_store: Store) -> Cloud:
    made = Cloud(postgres_store)
    made.host()
    return made


def test_two_that_notice_at_once_raise_the_generation_once(postgres_store: Store) -> None:
    cloud = pg(postgres_store)
    mark = ahead(cloud)
    work: Callable[..., bool] = generation.notice
    overlap(cloud.store, lambda tx: work(tx, mark, "one"), lambda tx: work(tx, mark, "the other"))
    assert cloud.store.read(generation.mark).generation == 2


def test_a_place_that_is_granted_while_the_generation_rises_is_of_the_new_one(postgres_store: Store) -> None:
    cloud = pg(postgres_store)
    cloud.create("a")
    cloud.create("b")
    assert cloud.place("b")
    overlap(
        cloud.store, lambda tx: generation.rise(tx, "a test"), lambda tx: servers.place(tx, "a", "h", "n")
    )
    overlap(
        cloud.store, lambda tx: servers.place(tx, "a", "h", "n"), lambda tx: generation.rise(tx, "a test")
    )
    found = cloud.store.read(lambda tx: set(tx.execute(sa.select(placements.c.generation)).scalars()))
    assert found == {cloud.store.read(generation.mark).generation}


def test_a_rebuild_that_its_host_has_not_begun_is_no_sign_of_a_lost_history(cloud: Cloud) -> None:
    """The host's grant still names the old disk, and the store has nothing recorded of the new one."""
    cloud.active()
    old = cloud.wants()["a"]
    cloud.store.transact(server_rebuild.replace_disk, "a", lambda _tx, _server: {}, "new", caller())
    say(
        cloud,
        Holding("a", Thing.PRESENT, Thing.PRESENT, old.fence, old.nonce, old.edge, old.intent, old.spec),
    )
    assert not recovering(cloud)
    assert cloud.wants()["a"].nonce == "new"


def test_a_rebuild_that_the_store_has_lost_is_adopted_with_its_disk(cloud: Cloud) -> None:
    cloud.active()
    known = cloud.wants()["a"]
    later = Holding("a", Thing.PRESENT, Thing.PRESENT, known.fence, "later", 9, 9, known.spec)
    say(cloud, later)
    assert recovering(cloud)
    say(cloud, later)
    want = cloud.wants()["a"]
    assert (want.nonce, want.edge, want.disk_recorded) == ("later", 9, True)


def room(cloud: Cloud) -> tuple[int, int]:
    row = cloud.store.read(lambda tx: tx.execute(sa.select(placements.c.vcpus, placements.c.ram_mb)).one())
    return row.vcpus, row.ram_mb


def test_a_resize_that_the_store_has_lost_is_adopted_with_its_flavor(cloud: Cloud) -> None:
    cloud.active()
    found = holding(cloud, "a", edge=5)
    assert found.spec is not None
    larger = msgspec.structs.replace(found.spec, flavor=Flavor(2, 512, 3))
    say(cloud, msgspec.structs.replace(found, spec=larger, intent=5), mark=ahead(cloud))
    want = cloud.wants()["a"]
    assert (want.edge, want.spec.flavor, want.power) == (5, Flavor(2, 512, 3), Power.ON)
    assert room(cloud) == (2, 512), "it runs with that"


def test_an_unshelving_that_the_store_has_lost_takes_its_room_again(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_shelve.shelve_server, "a", caller())
    cloud.report(Gone())
    cloud.store.transact(server_shelve.offload_server, "a", caller())
    assert (cloud.status().status, room(cloud)) == ("SHELVED_OFFLOADED", (0, 0))
    say(cloud, holding(cloud, "a", edge=5), mark=ahead(cloud))
    cloud.report(Running(5))
    assert (cloud.status().status, room(cloud)) == ("ACTIVE", (1, 64))
