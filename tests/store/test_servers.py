"""What the store accepts, grants, believes and refuses; the same on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec
import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller, facts, insert
from unstuck.core.agents import Heartbeat, Register
from unstuck.core.errors import Forbidden
from unstuck.core.server.data import (
    Gone,
    Lock,
    Mute,
    Off,
    Paused,
    Power,
    Running,
    Step,
    Thing,
    Trouble,
    Unclear,
)
from unstuck.store import agents, clock, networks, server_actions, server_edit, server_rebuild, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.generation import Behind
from unstuck.store.schema.clock import clock as clock_table
from unstuck.store.schema.compute import operations, placements
from unstuck.store.schema.compute import servers as table
from unstuck.store.schema.network import ports


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    made = Cloud(any_store)
    made.host()
    return made


def test_ids_as_long_as_real_ones_fit(cloud: Cloud) -> None:
    """Found by the bench: on PostgreSQL no server could be created, its operation had too long an id."""
    name = str(uuid.uuid4())
    cloud.active(name)
    for change in (servers.stop_server, servers.start_server, servers.delete_server):
        asker = servers.Caller(f"req-{uuid.uuid4()}", uuid.uuid4().hex, uuid.uuid4().hex)
        cloud.store.transact(change, name, asker)
        cloud.report(Gone() if change is servers.stop_server else Running(2), name)
    assert cloud.server(name).deleted


def scalar(cloud: Cloud, query: sa.Select[tuple[object]]) -> object:
    return cloud.store.read(lambda tx: tx.execute(query).scalar_one_or_none())


def age(cloud: Cloud, seconds: float) -> None:
    """Let lease time pass, as ticks without a gap would."""

    def pass_time(tx: Tx) -> None:
        tx.execute(sa.update(clock_table).values(lease=clock_table.c.lease + seconds))

    cloud.store.transact(pass_time)


def test_a_new_server_is_building_and_due_at_once(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.status().status == "BUILD"
    assert cloud.status().task_state == "scheduling"
    assert cloud.store.read(servers.due_servers, 10) == ["a"]


def test_a_server_becomes_active_because_its_host_sees_it_run(cloud: Cloud) -> None:
    cloud.active()
    shown = cloud.status()
    assert (shown.status, shown.task_state, shown.host_status) == ("ACTIVE", None, "UP")
    assert cloud.settled()
    assert cloud.server().lease_incarnation is None
    assert cloud.store.read(servers.due_servers, 10) == []


def test_running_work_has_an_owner_and_a_deadline(cloud: Cloud) -> None:
    cloud.create()
    cloud.place()
    cloud.claim()
    cloud.claim()
    server = cloud.server()
    assert server.lease_incarnation == cloud.agents["h"].incarnation
    assert server.work_deadline is not None


def test_a_new_incarnation_ends_the_leases_of_the_old(cloud: Cloud) -> None:
    cloud.create()
    cloud.place()
    cloud.claim()
    cloud.register()
    assert cloud.server().lease_incarnation is None
    assert not cloud.settled()


def test_the_same_start_gets_the_same_incarnation(cloud: Cloud) -> None:
    first = cloud.register(start="x")
    again = cloud.register(start="x")
    assert (first.incarnation, first.granted) == (again.incarnation, again.granted)


def test_a_late_copy_of_a_registration_ends_nobody(cloud: Cloud) -> None:
    from tests.store.play import facts
    from unstuck.core.agents import Register

    old = Register("old", facts(), cloud.agents["h"].incarnation)
    assert cloud.store.transact(agents.register, "h", old).granted
    living = cloud.register()
    assert not cloud.store.transact(agents.register, "h", old).granted
    cloud.store.transact(agents.heartbeat, "h", Heartbeat(living.incarnation, 1))


def test_a_superseded_agent_is_told_so(cloud: Cloud) -> None:
    cloud.active()
    old = cloud.agents["h"].incarnation
    fence = cloud.server().place.fence  # type: ignore[union-attr]
    cloud.register()
    with pytest.raises(agents.Superseded):
        cloud.report(Gone(), incarnation=old, fence=fence, intent=1)
    with pytest.raises(agents.Superseded):
        cloud.store.transact(agents.heartbeat, "h", Heartbeat(old, 10_000))
    assert cloud.status().status == "ACTIVE"


def test_an_older_report_changes_nothing(cloud: Cloud) -> None:
    cloud.active()
    cloud.report(Gone(), sequence=0)
    assert cloud.status().status == "ACTIVE"


def test_a_report_under_an_older_grant_is_refused(cloud: Cloud) -> None:
    from unstuck.core.server.data import Fence

    cloud.active()
    with pytest.raises(agents.Stale):
        cloud.report(Gone(), fence=Fence(1, 0), intent=1)


def test_a_late_heartbeat_is_harmless(cloud: Cloud) -> None:
    cloud.beat()
    cloud.store.transact(agents.heartbeat, "h", Heartbeat(cloud.agents["h"].incarnation, 0))


def test_unknown_is_never_a_worse_status(cloud: Cloud) -> None:
    cloud.active()
    cloud.report(Unclear("QMP does not answer"), trouble=Trouble("guest-unknown", "why", "none"))
    assert cloud.status().status == "ACTIVE"
    cloud.report(Mute(1, "frozen"))
    assert cloud.status().status == "ACTIVE"


def test_the_silence_of_a_host_changes_no_status(cloud: Cloud) -> None:
    cloud.active()
    age(cloud, 45)
    assert (cloud.status().status, cloud.status().host_status) == ("ACTIVE", "UNKNOWN")
    age(cloud, 45)
    assert (cloud.status().status, cloud.status().host_status) == ("ACTIVE", "DOWN")


def test_stop_is_carried_out_and_remembered(cloud: Cloud) -> None:
    cloud.active()
    assert cloud.store.transact(servers.stop_server, "a", caller()) == "h"
    assert (cloud.status().status, cloud.status().task_state) == ("ACTIVE", "powering-off")
    want = cloud.wants()["a"]
    assert want.power is Power.OFF
    assert want.patience > 50
    cloud.report(Gone())
    assert cloud.status().status == "SHUTOFF"
    assert cloud.settled()


def test_start_makes_a_new_edge(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.stop_server, "a", caller())
    cloud.report(Gone())
    cloud.store.transact(servers.start_server, "a", caller())
    want = cloud.wants()["a"]
    assert want.power is Power.ON
    assert want.edge > 1
    assert (cloud.status().status, cloud.status().task_state) == ("SHUTOFF", "powering-on")
    cloud.report(Running(1))
    assert not cloud.settled(), "the old process is not what start asked for"
    cloud.report(Running(want.edge))
    assert cloud.status().status == "ACTIVE"
    assert cloud.settled()


@pytest.mark.parametrize(("soft", "shown"), [(True, "REBOOT"), (False, "HARD_REBOOT")])
def test_reboot_is_done_when_a_process_with_its_number_runs(cloud: Cloud, soft: bool, shown: str) -> None:
    cloud.active()
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=soft)
    assert cloud.status().status == shown
    want = cloud.wants()["a"]
    assert (want.soft, want.edge) == (soft, 2)
    cloud.report(Running(2))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_power_off_from_inside_is_respected_and_told(cloud: Cloud) -> None:
    cloud.active()
    cloud.report(Off(1))
    assert cloud.status().status == "SHUTOFF"
    assert cloud.wants()["a"].power is Power.OFF
    cloud.report(Gone())
    assert cloud.settled()
    why = sa.select(operations.c.reason).where(operations.c.kind == "stop")
    assert scalar(cloud, why) == "the guest powered itself off"


def test_a_power_off_that_a_newer_start_has_overtaken_changes_nothing(cloud: Cloud) -> None:
    cloud.active()
    cloud.report(Off(1))
    cloud.report(Gone())
    cloud.store.transact(servers.start_server, "a", caller())
    cloud.report(Off(1), intent=1)
    assert cloud.wants()["a"].power is Power.ON


REFUSED: list[tuple[str, Callable[[Cloud], object]]] = [
    ("start of an active server", lambda c: c.store.transact(servers.start_server, "a", caller())),
    ("stop twice", lambda c: [c.store.transact(servers.stop_server, "a", caller()) for _ in (1, 2)]),
    (
        "soft reboot of a stopped one",
        lambda c: [
            c.store.transact(servers.stop_server, "a", caller()),
            c.report(Gone()),
            c.store.transact(servers.reboot_server, "a", caller(), soft=True),
        ],
    ),
    (
        "reboot while it is deleted",
        lambda c: [
            c.store.transact(servers.delete_server, "a", caller()),
            c.store.transact(servers.reboot_server, "a", caller(), soft=False),
        ],
    ),
]


@pytest.mark.parametrize(("what", "does"), REFUSED, ids=[what for what, _ in REFUSED])
def test_what_does_not_fit_the_state_is_refused(
    cloud: Cloud, what: str, does: Callable[[Cloud], object]
) -> None:
    cloud.active()
    if what == "stop twice":
        # The second stop overrides the first, as the compute API allows it while it is still active.
        does(cloud)
        assert cloud.wants()["a"].power is Power.OFF
        return
    with pytest.raises(servers.Conflict):
        does(cloud)


def test_delete_waits_for_the_host_and_then_nothing_is_left(cloud: Cloud) -> None:
    cloud.active()
    assert cloud.store.transact(servers.delete_server, "a", caller()) == "h"
    assert (cloud.status().status, cloud.status().task_state) == ("ACTIVE", "deleting")
    assert cloud.wants()["a"].gone
    cloud.removed()
    assert cloud.status().status == "DELETED"
    assert scalar(cloud, sa.select(sa.func.count()).select_from(placements)) == 0
    assert scalar(cloud, sa.select(sa.func.count()).select_from(ports)) == 0
    with pytest.raises(servers.NotFound):
        cloud.store.transact(servers.delete_server, "a", caller())


def test_delete_overtakes_the_build(cloud: Cloud) -> None:
    cloud.create()
    cloud.place()
    cloud.claim()
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.report(Running(1), disk_id="disk-1")
    assert cloud.server().deleted
    assert not cloud.settled()
    cloud.removed()
    assert cloud.status().status == "DELETED"


def test_delete_before_any_placement_is_over_at_once(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.store.transact(servers.delete_server, "a", caller()) is None
    assert cloud.status().status == "DELETED"
    assert not cloud.place()


def test_delete_on_a_silent_host_leaves_a_tombstone_that_keeps_the_address(cloud: Cloud) -> None:
    cloud.active()
    age(cloud, 61)
    cloud.store.transact(servers.delete_server, "a", caller())
    assert cloud.status().status == "DELETED"
    assert scalar(cloud, sa.select(placements.c.state)) == "tombstone"
    assert scalar(cloud, sa.select(sa.func.count()).select_from(ports)) == 1
    assert cloud.wants()["a"].gone
    cloud.report(Running(1))
    assert cloud.status().status == "DELETED", "a late report does not undo a delete"
    cloud.removed()
    assert scalar(cloud, sa.select(sa.func.count()).select_from(placements)) == 0
    assert scalar(cloud, sa.select(sa.func.count()).select_from(ports)) == 0


def test_a_host_that_falls_silent_in_mid_delete_gets_a_tombstone_too(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.store.transact(servers.finish_delete, "a")
    assert cloud.status().status == "ACTIVE"
    age(cloud, 61)
    cloud.store.transact(servers.finish_delete, "a")
    assert cloud.status().status == "DELETED"


def test_a_host_without_room_is_refused_and_room_comes_back(cloud: Cloud) -> None:
    cloud.create("a", 800)
    cloud.create("b", 800)
    assert cloud.place("a")
    assert not cloud.place("b")
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.removed("a")
    assert cloud.place("b")


def test_a_server_is_placed_once(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.place()
    assert not cloud.place()


def test_a_server_that_nobody_can_take_fails_with_its_reason(cloud: Cloud) -> None:
    cloud.create()
    cloud.store.transact(servers.fail_server, "a", "no-host", "No valid host was found", "delete it")
    shown = cloud.status()
    assert shown.status == "ERROR"
    assert shown.fault is not None
    assert shown.fault[0] == "No valid host was found"
    assert not cloud.place()
    cloud.store.transact(servers.delete_server, "a", caller())
    assert cloud.status().status == "DELETED"


def test_failing_a_server_that_was_placed_meanwhile_changes_nothing(cloud: Cloud) -> None:
    cloud.create()
    cloud.place()
    cloud.store.transact(servers.fail_server, "a", "no-host", "x", "y")
    assert cloud.status().status == "BUILD"


def test_a_missing_disk_is_shown_with_its_remedy(cloud: Cloud) -> None:
    cloud.active()
    trouble = Trouble("disk-missing", "the root disk is not there any more", "bring it back", final=True)
    cloud.report(Gone(), disk=Thing.ABSENT, step=Step.WAITING, trouble=trouble)
    assert cloud.status().status == "ERROR"
    assert cloud.settled()
    cloud.report(Running(1))
    assert cloud.status().status == "ACTIVE", "the fault is over when the host says so"


def test_an_operation_overtaken_by_delete_is_closed_as_superseded(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.stop_server, "a", caller())
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.removed()
    query = sa.select(operations.c.kind, operations.c.state)
    rows = cloud.store.read(lambda tx: {row.kind: row.state for row in tx.execute(query)})
    assert rows == {"create": "done", "stop": "superseded", "delete": "done"}


def test_the_world_tells_only_news_after_the_first_time(cloud: Cloud) -> None:
    cloud.active("a")
    incarnation = cloud.agents["h"].incarnation
    world = cloud.store.read(agents.world, "h", incarnation, -1)
    assert [w.server_id for w in world.wants] == ["a"]
    again = cloud.store.read(agents.world, "h", incarnation, world.version)
    assert again.wants == ()
    assert again.ids == ("a",)
    cloud.store.transact(servers.stop_server, "a", caller())
    assert [w.power for w in cloud.wants(since=world.version).values()] == [Power.OFF]
    other = cloud.store.read(agents.world, "h", incarnation, world.version + 1_000, "another history")
    assert other.ids == ("a",)
    assert [w.server_id for w in other.wants] == ["a"], "a version from another history tells all"
    with pytest.raises(Behind):
        cloud.store.read(agents.world, "h", incarnation, world.version + 1_000, other.terms.history)


CHECKS = {
    "unsettled_has_next_look": {"settled": False, "next_look": None},
    "work_has_deadline": {"lease_incarnation": 1, "work_deadline": None},
    "removed_is_deleted": {"removed": True, "removed_wall": 1.0, "settled": True, "next_look": None},
    "power": {"power": "maybe"},
    "locked_by": {"locked_by": "nobody"},
    "reason_of_a_lock": {"locked_reason": "why"},
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_schema_refuses_what_the_laws_forbid(cloud: Cloud, name: str) -> None:
    cloud.create()
    with pytest.raises(sa.exc.IntegrityError, match=name):
        cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(CHECKS[name])))


def test_an_address_is_given_once_and_the_last_one_says_so(any_store: Store) -> None:
    cloud = Cloud(any_store, cidr="10.9.0.0/29")
    for number in range(5):
        cloud.create(f"s{number}")
    taken = cloud.store.read(lambda tx: list(tx.execute(sa.select(ports.c.address)).scalars()))
    assert sorted(taken) == [f"10.9.0.{n}" for n in range(2, 7)]
    with pytest.raises(networks.NoMoreAddresses):
        cloud.create("one-more")
    with pytest.raises(AssertionError):
        cloud.server("one-more")


def test_the_store_goes_on_after_a_function_that_failed(any_store: Store) -> None:
    cloud = Cloud(any_store)

    def fails(tx: Tx) -> None:
        insert(tx, "a")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        any_store.transact(fails)
    cloud.create("a")


def test_lease_time_never_goes_back_and_a_gap_moves_it_with_the_leases(tmp_path: object) -> None:
    wall = 1000.0
    store = Store("sqlite://", wall=lambda: wall)
    store.create_all()
    store.transact(clock.init_clock, generation_id="g")
    assert store.transact(clock.tick, lease_seconds=30.0)
    before = store.read(clock.read_now)
    wall += 3600
    jumped = store.read(clock.read_now)
    assert jumped.lease - before.lease <= clock.GAP
    assert not store.transact(clock.tick, lease_seconds=30.0), "nothing is swept right after a gap"
    wall -= 7200
    assert store.read(clock.read_now).lease >= jumped.lease
    store.transact(clock.tick, lease_seconds=30.0)
    for _ in range(40):
        wall += 1
        swept = store.transact(clock.tick, lease_seconds=30.0)
    assert swept, "a second gap does not postpone the sweep for ever"
    store.close()


def test_pause_and_unpause_are_levels_of_one_guest_process(cloud: Cloud) -> None:
    cloud.active()
    edge = cloud.wants()["a"].edge
    assert cloud.store.transact(server_actions.pause_server, "a", caller()) == "h"
    assert (cloud.status().status, cloud.status().task_state) == ("ACTIVE", "pausing")
    want = cloud.wants()["a"]
    assert (want.power, want.edge) == (Power.PAUSED, edge)
    cloud.report(Paused(edge))
    assert (cloud.status().status, cloud.status().power_state, cloud.settled()) == ("PAUSED", 3, True)
    cloud.store.transact(server_actions.unpause_server, "a", caller())
    assert (cloud.status().status, cloud.status().task_state) == ("PAUSED", "unpausing")
    assert not cloud.settled()
    cloud.report(Running(edge))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_guest_that_stopped_by_itself_is_not_at_rest(cloud: Cloud) -> None:
    """Found by reading: a guest whose disk was full rested as PAUSED for ever."""
    cloud.active()
    cloud.report(Paused(1, "io-error"), step=Step.WAITING, trouble=Trouble("guest-io-error", "full", "room"))
    assert (cloud.status().status, cloud.status().task_state) == ("PAUSED", None)
    assert not cloud.settled()
    cloud.report(Running(1))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_guest_that_powers_itself_off_before_it_is_paused_stays_off(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_actions.pause_server, "a", caller())
    cloud.report(Off(1), intent=1)
    assert cloud.wants()["a"].power is Power.PAUSED
    cloud.report(Off(1))
    assert cloud.wants()["a"].power is Power.OFF
    cloud.report(Gone())
    assert (cloud.status().status, cloud.settled()) == ("SHUTOFF", True)
    state = sa.select(operations.c.state).where(operations.c.kind == "pause")
    assert scalar(cloud, state) == "failed"


def test_a_hard_reboot_overrides_a_pause(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_actions.pause_server, "a", caller())
    with pytest.raises(servers.Conflict, match="pausing"):
        cloud.store.transact(server_actions.pause_server, "a", caller())
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    want = cloud.wants()["a"]
    assert (want.power, want.edge) == (Power.ON, 3)


def admin() -> servers.Caller:
    return msgspec.structs.replace(caller(), project_id="other", admin=True)


MEMBERS_ACTIONS: list[Callable[[Tx], object]] = [
    lambda tx: servers.stop_server(tx, "a", caller()),
    lambda tx: servers.start_server(tx, "a", caller()),
    lambda tx: servers.reboot_server(tx, "a", caller(), soft=True),
    lambda tx: servers.delete_server(tx, "a", caller()),
    lambda tx: server_actions.pause_server(tx, "a", caller()),
    lambda tx: server_actions.unpause_server(tx, "a", caller()),
    lambda tx: server_edit.change_metadata(tx, "a", "project", lambda _: {}),
]


@pytest.mark.parametrize("action", MEMBERS_ACTIONS)
def test_a_locked_server_is_left_alone_by_members(cloud: Cloud, action: Callable[[Tx], object]) -> None:
    cloud.active()
    cloud.store.transact(server_actions.lock_server, "a", "project", caller(), "audit")
    with pytest.raises(servers.Conflict, match="locked by its owner: it has to be unlocked first"):
        cloud.store.transact(action)
    assert cloud.settled()
    assert cloud.server().intent == 1
    cloud.store.transact(servers.stop_server, "a", admin())


def test_who_may_unlock(cloud: Cloud) -> None:
    cloud.active()
    lock, unlock = server_actions.lock_server, server_actions.unlock_server
    cloud.store.transact(lock, "a", None, admin(), None)
    cloud.store.transact(lock, "a", "project", caller(), "mine")
    assert cloud.server().locked == Lock(by_admin=True, reason=None), "an owner does not take it over"
    with pytest.raises(Forbidden):
        cloud.store.transact(unlock, "a", "project", caller())
    cloud.store.transact(unlock, "a", None, admin())
    cloud.store.transact(lock, "a", "project", caller(), "mine")
    assert cloud.server().locked == Lock(by_admin=False, reason="mine")
    with pytest.raises(servers.NotFound):
        cloud.store.transact(unlock, "a", "another project", caller())
    cloud.store.transact(unlock, "a", "project", caller())
    cloud.store.transact(unlock, "a", "project", caller())
    assert cloud.server().locked is None
    kinds = cloud.store.read(lambda tx: list(tx.execute(sa.select(operations.c.kind)).scalars()))
    assert sorted(kinds) == ["create", "lock", "lock", "lock", "unlock", "unlock", "unlock"]


def test_a_mark_writes_no_status(cloud: Cloud) -> None:
    """What failed is tried again, and until the host says otherwise its last word stands."""
    cloud.active()
    trouble = Trouble("guest-keeps-failing", "it does not stay up", "reboot it", final=True)
    cloud.report(Gone(5), trouble=trouble)
    assert (cloud.status().status, cloud.settled()) == ("ERROR", True)
    assert cloud.store.transact(server_actions.reset_state, "a", "active", admin()) == "h"
    want = cloud.wants()["a"]
    assert (want.mark, want.edge) == (want.intent, 1)
    assert (cloud.status().status, cloud.settled()) == ("ERROR", False)
    cloud.report(Running(1))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_mark_of_failure_is_shown_until_something_succeeds(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_actions.reset_state, "a", "error", admin())
    shown = cloud.status()
    assert (shown.status, shown.power_state) == ("ERROR", 1)
    assert shown.fault is not None
    assert shown.fault[0] == "an operator marked the server as failed"
    cloud.report(Running(1))
    assert cloud.settled()
    cloud.store.transact(server_actions.reset_state, "a", "active", admin())
    assert cloud.status().status == "ACTIVE"
    cloud.store.transact(server_actions.reset_state, "a", "error", admin())
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    assert cloud.status().status == "ERROR"
    cloud.report(Running(cloud.wants()["a"].edge))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_mark_lets_a_server_wait_for_a_host_again(cloud: Cloud) -> None:
    cloud.create()
    age(cloud, 301)
    cloud.store.transact(servers.fail_server, "a", "no-host", "No valid host was found", "delete it")
    assert cloud.store.transact(server_actions.reset_state, "a", "active", admin()) is None
    assert (cloud.status().status, cloud.status().task_state) == ("BUILD", "scheduling")
    assert cloud.store.read(servers.due_servers, 10) == ["a"]
    cloud.store.transact(servers.review_server, "a")
    assert cloud.place()


def test_a_mark_changes_nothing_of_what_is_asked(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.stop_server, "a", caller())
    cloud.store.transact(server_actions.reset_state, "a", "active", admin())
    assert cloud.status().task_state == "powering-off"
    cloud.report(Gone())
    assert (cloud.status().status, cloud.settled()) == ("SHUTOFF", True)
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.store.transact(server_actions.reset_state, "a", "active", admin())
    assert cloud.wants()["a"].gone
    cloud.removed()
    assert cloud.status().status == "DELETED"


def without_networks(cloud: Cloud, host_id: str = "h") -> None:
    """Its agent registers again, now without root."""
    told = msgspec.structs.replace(facts(), no_networks="networks need root: start Unstuck as root")
    now = cloud.agents[host_id].incarnation
    cloud.agents[host_id] = cloud.store.transact(agents.register, host_id, Register("again", told, now))


def test_a_server_with_a_port_goes_to_no_host_that_cannot_connect_it(cloud: Cloud) -> None:
    cloud.create("a")  # with a port
    without_networks(cloud)
    found = cloud.store.read(servers.server_facts, "a")
    assert found is not None
    assert found.hosts == ()
    assert not cloud.place("a")  # asked by somebody who read before the agent registered again
    cloud.host("other")
    found = cloud.store.read(servers.server_facts, "a")
    assert found is not None
    assert found.hosts == ("other",)
    assert cloud.place("a", "other")
    cloud.store.transact(lambda tx: tx.execute(sa.delete(ports)))
    cloud.create("b")
    cloud.store.transact(lambda tx: tx.execute(sa.delete(ports)))
    assert cloud.place("b", "h")  # without a port it may


def rebuild(cloud: Cloud, nonce: str = "new") -> None:
    cloud.store.transact(server_rebuild.replace_disk, "a", lambda _tx, _server: {}, nonce, caller())


def test_a_rebuild_asks_for_another_disk_and_keeps_the_old_one_until_that_is_recorded(cloud: Cloud) -> None:
    cloud.active()
    old = cloud.wants()["a"]
    rebuild(cloud)
    assert (cloud.status().status, cloud.status().task_state) == ("REBUILD", "rebuilding")
    want = cloud.wants()["a"]
    assert (want.nonce, want.replaced, want.disk_recorded) == ("new", (old.nonce,), False)
    assert want.edge > old.edge
    assert want.fence == old.fence
    assert want.spec.nics == old.spec.nics
    cloud.report(Running(old.edge), intent=old.intent)
    assert not cloud.settled()
    cloud.report(Gone(), step=Step.DISK, disk_id="disk")
    assert cloud.wants()["a"].disk_recorded
    assert cloud.status().status == "REBUILD"
    cloud.report(Running(want.edge))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_late_record_of_the_old_disk_is_not_taken_for_the_new_one(cloud: Cloud) -> None:
    """Law 3 is per disk: else the new disk would be missed before it was ever made."""
    cloud.create()
    cloud.place()
    cloud.claim()
    old = cloud.wants()["a"]
    trouble = Trouble("image-unusable", "gone", "rebuild it", final=True)
    cloud.report(Gone(), trouble=trouble, disk=Thing.ABSENT)
    rebuild(cloud)
    cloud.report(Gone(), step=Step.DISK, disk_id="disk", want=old)
    assert not cloud.wants()["a"].disk_recorded
    cloud.report(Gone(), step=Step.DISK, disk_id="disk")
    assert cloud.wants()["a"].disk_recorded


def test_a_server_that_was_off_is_rebuilt_and_stays_off(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(servers.stop_server, "a", caller())
    cloud.report(Gone())
    rebuild(cloud)
    assert cloud.wants()["a"].power is Power.OFF
    cloud.report(Gone(), disk=Thing.ABSENT)
    assert (cloud.status().status, cloud.settled()) == ("REBUILD", False)
    cloud.report(Gone(), step=Step.DISK, disk_id="disk")
    assert not cloud.settled(), "the old disk is still there"
    cloud.report(Gone())
    assert (cloud.status().status, cloud.settled()) == ("SHUTOFF", True)


def test_disks_of_rebuilds_that_did_not_end_are_all_replaced_by_the_next(cloud: Cloud) -> None:
    cloud.active()
    first = cloud.wants()["a"].nonce
    rebuild(cloud, "second")
    trouble = Trouble("image-unusable", "gone", "rebuild it", final=True)
    cloud.report(Gone(), trouble=trouble, step=Step.WAITING)
    assert cloud.status().status == "ERROR"
    rebuild(cloud, "third")
    assert cloud.wants()["a"].replaced == (first, "second")
    cloud.report(Gone(), step=Step.DISK, disk_id="disk")
    cloud.report(Running(cloud.wants()["a"].edge))
    rebuild(cloud, "fourth")
    assert cloud.wants()["a"].replaced == ("third",), "what was seen to be gone is forgotten"


def test_delete_overtakes_a_rebuild(cloud: Cloud) -> None:
    cloud.active()
    rebuild(cloud)
    with pytest.raises(servers.Conflict, match="rebuilding"):
        rebuild(cloud, "other")
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.removed()
    assert cloud.status().status == "DELETED"


def test_what_was_never_placed_is_not_rebuilt(cloud: Cloud) -> None:
    cloud.create()
    with pytest.raises(servers.Conflict, match="vm_state building"):
        rebuild(cloud)
    cloud.store.transact(servers.fail_server, "a", "no-host", "x", "y")
    with pytest.raises(servers.Conflict, match="never placed"):
        rebuild(cloud)


def test_suspend_and_resume_are_levels_of_one_guest_process(cloud: Cloud) -> None:
    cloud.active()
    edge = cloud.wants()["a"].edge
    assert cloud.store.transact(server_actions.suspend_server, "a", caller()) == "h"
    assert (cloud.status().status, cloud.status().task_state) == ("ACTIVE", "suspending")
    want = cloud.wants()["a"]
    assert (want.power, want.edge) == (Power.SUSPENDED, edge)
    cloud.report(Paused(edge), memory=Thing.PRESENT, step=Step.SAVING)
    assert not cloud.settled(), "its process still lives"
    cloud.report(Gone(), memory=Thing.PRESENT)
    shown = cloud.status()
    assert (shown.status, shown.power_state, cloud.settled()) == ("SUSPENDED", 4, True)
    for refused in (server_actions.suspend_server, server_actions.pause_server, servers.start_server):
        with pytest.raises(servers.Conflict):
            cloud.store.transact(refused, "a", caller())
    with pytest.raises(servers.Conflict, match="vm_state suspended"):
        rebuild(cloud)
    cloud.store.transact(server_actions.resume_server, "a", caller())
    assert (cloud.status().status, cloud.status().task_state) == ("SUSPENDED", "resuming")
    assert (cloud.wants()["a"].power, cloud.wants()["a"].edge) == (Power.ON, edge)
    cloud.report(Running(edge))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_memory_that_was_lost_is_told_and_a_hard_reboot_is_the_way_out(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_actions.suspend_server, "a", caller())
    trouble = Trouble("memory-lost", "it ended before", "reboot it hard", final=True)
    cloud.report(Gone(), trouble=trouble, step=Step.WAITING)
    assert (cloud.status().status, cloud.settled()) == ("ERROR", True)
    with pytest.raises(servers.Conflict):
        cloud.store.transact(server_actions.resume_server, "a", caller())
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    cloud.report(Running(cloud.wants()["a"].edge))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)


def test_a_hard_reboot_of_a_suspended_server_is_a_cold_one(cloud: Cloud) -> None:
    cloud.active()
    cloud.store.transact(server_actions.suspend_server, "a", caller())
    cloud.report(Gone(), memory=Thing.PRESENT)
    cloud.store.transact(servers.reboot_server, "a", caller(), soft=False)
    assert cloud.wants()["a"].edge == 3, "the saved memory bears another number"


def test_a_suspend_that_is_overdue_may_be_taken_back(cloud: Cloud) -> None:
    """Law 8: where the memory finds no room on the disk, there is a way out that loses nothing."""
    cloud.active()
    cloud.store.transact(server_actions.suspend_server, "a", caller())
    with pytest.raises(servers.Conflict, match="vm_state active"):
        cloud.store.transact(server_actions.resume_server, "a", caller())
    age(cloud, 301)
    cloud.store.transact(server_actions.resume_server, "a", caller())
    assert cloud.wants()["a"].power is Power.ON
    cloud.report(Running(1))
    assert (cloud.status().status, cloud.settled()) == ("ACTIVE", True)
