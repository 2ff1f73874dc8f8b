"""Guest agents' words on both databases: what is late, repeated, reordered or another's changes nothing."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.wire import GuestRegister
from unstuck.core.server.data import Fence, Thing
from unstuck.store import asks, instances
from unstuck.store.agents import Stale, Superseded, answer_ask, world
from unstuck.store.engine import Store, Tx
from unstuck.store.instance_asks import ask_instance
from unstuck.store.instance_guests import GuestSuperseded, guest_register
from unstuck.store.instance_want import tell_guests_anew
from unstuck.store.schema.database import instances as table


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    made = Databases(any_store)
    made.create_db()
    made.up()
    return made


def test_the_same_start_gets_the_same_number_and_another_the_next(cloud: Databases) -> None:
    assert [cloud.hello(start="a"), cloud.hello(start="a"), cloud.hello(start="b")] == [1, 1, 2]


def test_a_process_that_was_superseded_never_registers_again(cloud: Databases) -> None:
    cloud.hello(start="a")
    cloud.hello(start="b")
    with pytest.raises(GuestSuperseded):
        cloud.hello(start="a")
    assert cloud.instance().guest == 2


def test_a_hello_that_was_overtaken_ends_nobody(cloud: Databases) -> None:
    who = cloud.who()
    cloud.store.transact(guest_register, "h", GuestRegister(who, "b", 1, sequence=8))
    with pytest.raises(GuestSuperseded):
        cloud.store.transact(guest_register, "h", GuestRegister(who, "a", 1, sequence=7))
    assert cloud.store.transact(guest_register, "h", GuestRegister(who, "b", 1, sequence=7)).incarnation == 1


def test_a_host_that_has_heard_of_more_than_a_set_back_store_goes_on_above_it(cloud: Databases) -> None:
    assert cloud.hello(guest=41) == 42


def test_reports_of_an_older_process_are_refused(cloud: Databases) -> None:
    cloud.hello(start="a")
    cloud.hello(start="b")
    with pytest.raises(GuestSuperseded):
        cloud.see(cloud.view(), guest=1)
    assert cloud.instance().seen is None


def test_reports_are_ordered_by_incarnation_and_sequence(cloud: Databases) -> None:
    cloud.hello()
    cloud.see(cloud.view(volume_used_mb=2), sequence=1002)
    assert not cloud.see(cloud.view(volume_used_mb=1), sequence=1001).changed
    assert not cloud.see(cloud.view(volume_used_mb=3), sequence=1002).changed
    seen = cloud.instance().seen
    assert seen is not None
    assert seen.volume_used_mb == 2


def test_a_late_copy_of_an_older_report_is_late_also_after_one_without_news(cloud: Databases) -> None:
    cloud.hello()
    cloud.see(cloud.view(), sequence=1001)
    cloud.see(cloud.view(), sequence=1003)
    assert not cloud.see(cloud.view(server=ServerState.DOWN), sequence=1002).changed
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_an_older_agent_of_the_host_and_another_grant_are_refused(cloud: Databases) -> None:
    cloud.hello()
    old = cloud.who()
    cloud.register()
    for who, error in (
        (old, Superseded),
        (msgspec.structs.replace(cloud.who(), fence=Fence(1, 9)), Stale),
        (msgspec.structs.replace(cloud.who(), server_id="no"), Stale),
    ):
        with pytest.raises(error):
            cloud.see(cloud.view(), who=who)
        with pytest.raises(error):
            cloud.store.transact(guest_register, "h", GuestRegister(who, "x", 1))
    assert cloud.instance().seen is None


def test_an_ordinary_server_has_no_guest(cloud: Databases) -> None:
    cloud.active("web")
    who = msgspec.structs.replace(cloud.who(), server_id="web", fence=cloud.wants()["web"].fence)
    with pytest.raises(Stale):
        cloud.see(cloud.view(), who=who)


def test_a_host_that_has_not_heard_its_guest_yet_makes_nothing_worse(cloud: Databases) -> None:
    """A host's agent that was started anew knows no process of the guest's, and has no view."""
    cloud.hello()
    cloud.see(cloud.view())
    cloud.register()
    cloud.see(None, alive=False, guest=0)
    assert cloud.instance().seen == cloud.view()
    assert cloud.shown() == ("ACTIVE", "ERROR")
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_a_new_process_is_no_witness_before_it_has_looked(cloud: Databases) -> None:
    cloud.hello()
    cloud.see(cloud.view())
    cloud.hello()
    assert cloud.shown() == ("ACTIVE", "ERROR")
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")


def test_data_is_not_recorded_on_the_word_of_a_silent_or_unregistered_guest(cloud: Databases) -> None:
    cloud.see(cloud.view(), guest=0)
    assert not cloud.instance().data_recorded
    cloud.hello()
    cloud.see(cloud.view(), alive=False)
    assert not cloud.instance().data_recorded
    cloud.see(cloud.view())
    assert cloud.instance().data_recorded


def test_a_restore_s_reader_is_kept_by_reports_and_ends_with_the_data(cloud: Databases) -> None:
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(restores="b")))
    cloud.hello()
    going = cloud.view(data=Thing.UNKNOWN, server=ServerState.DOWN, applied=False)
    cloud.see(going)
    first = cloud.instance().seen_at
    cloud.pass_time(100)
    cloud.see(going)
    assert cloud.instance().seen_at > first
    assert cloud.instance().restores == "b"
    cloud.see(cloud.view())
    assert cloud.instance().restores is None


def test_reports_of_what_is_wanted_gone_change_nothing(cloud: Databases) -> None:
    cloud.hello()
    cloud.see(cloud.view())
    cloud.act(instances.delete_instance)
    cloud.see(cloud.view(server=ServerState.DOWN))
    assert cloud.shown() == ("SHUTDOWN", "")
    assert cloud.instance().deleted


def test_a_question_goes_to_the_guest_and_its_answer_comes_back(cloud: Databases) -> None:
    cloud.hello()
    cloud.see(cloud.view())
    host = cloud.store.transact(ask_instance, "db", "p", ask_id="q", argument='{"a":1}', seconds=10.0)
    assert host == "h"
    found = cloud.store.read(world, "h", cloud.agents["h"].incarnation, -1).asks
    assert [(one.id, one.server_id, one.kind, one.argument) for one in found] == [
        ("q", "server-db", "guest", '{"a":1}')
    ]
    assert 0 < found[0].seconds <= 10
    cloud.store.transact(answer_ask, "h", cloud.agents["h"].incarnation, "q", "yes")
    assert cloud.store.read(asks.read_answer, "q") == "yes"


@pytest.mark.parametrize(
    ("state", "why"),
    [("new", "being built"), ("silent", "agent is silent"), ("down", "is down"), ("away", "host is silent")],
)
def test_nobody_is_asked_who_would_not_answer(cloud: Databases, state: str, why: str) -> None:
    cloud.hello()
    if state != "new":
        cloud.see(cloud.view())
    if state == "silent":
        cloud.see(None, alive=False)
    if state == "down":
        cloud.see(cloud.view(server=ServerState.DOWN))
    if state == "away":
        cloud.pass_time(40, beat=False)

    def ask(tx: Tx) -> str:
        return ask_instance(tx, "db", "p", ask_id="q", argument="{}", seconds=10.0)

    with pytest.raises(Exception, match=why):
        cloud.store.transact(ask)


def test_at_the_start_of_a_control_plane_hosts_hear_of_every_database_anew(cloud: Databases) -> None:
    def told(since: int) -> tuple[int, list[str]]:
        found = cloud.store.read(world, "h", cloud.who().incarnation, since)
        return found.version, [want.server_id for want in found.wants if want.database is not None]

    version, servers = told(-1)
    assert len(servers) == 1
    assert told(version) == (version, [])
    cloud.store.transact(tell_guests_anew)
    assert told(version) == (version + 1, servers)
    cloud.store.transact(instances.delete_instance, cloud.instance().id, None, caller(), trash_seconds=60.0)
    version, _ = told(-1)
    cloud.store.transact(tell_guests_anew)
    assert told(version) == (version, [])
