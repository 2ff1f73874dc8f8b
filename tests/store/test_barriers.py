"""Two connections at once on PostgreSQL: what SQLite and the simulator can never show.

The first transaction stops before its commit; the second must wait for it and then decide on what it sees.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller, facts, insert
from unstuck.core.agents import Claim, Register, Report
from unstuck.core.errors import Conflict, Invalid
from unstuck.core.image import Data
from unstuck.core.server.data import Gone, Observation, Off, Power, Running, Step, Thing, Trouble
from unstuck.store import (
    agents,
    captures,
    identity,
    networks,
    server_actions,
    server_rebuild,
    server_resize,
    server_shelve,
    servers,
)
from unstuck.store.engine import Store, Tx
from unstuck.store.flavors import FlavorRow, create_flavor
from unstuck.store.schema.compute import placements
from unstuck.store.schema.compute import servers as servers_table
from unstuck.store.schema.images import images
from unstuck.store.schema.network import ports


@pytest.fixture
def cloud(postgres_store: Store) -> Cloud:
    made = Cloud(postgres_store)
    made.host(ram_mb=1000)
    return made


def overlap(store: Store, first: Callable[[Tx], Any], second: Callable[[Tx], Any]) -> tuple[Any, Any]:
    """Run ``second`` while ``first`` is done but not committed; both answers (or their exceptions)."""
    done, commit = threading.Event(), threading.Event()
    answers: dict[str, Any] = {}

    def held(tx: Tx) -> Any:
        answer = first(tx)
        done.set()
        assert commit.wait(20)
        return answer

    def run(name: str, work: Callable[[Tx], Any]) -> None:
        try:
            answers[name] = store.transact(work)
        except Exception as error:
            answers[name] = error

    one = threading.Thread(target=run, args=("first", held))
    one.start()
    assert done.wait(20)
    two = threading.Thread(target=run, args=("second", second))
    two.start()
    two.join(0.3)  # long enough to reach the lock; whether it waits is seen by its answer
    commit.set()
    one.join(20)
    two.join(20)
    return answers["first"], answers["second"]


def test_two_placers_never_oversubscribe_a_host(cloud: Cloud) -> None:
    cloud.create("a", 600)
    cloud.create("b", 600)
    first, second = overlap(
        cloud.store,
        lambda tx: servers.place(tx, "a", "h", "n1"),
        lambda tx: servers.place(tx, "b", "h", "n2"),
    )
    assert (first, second) == (True, False)


def test_one_server_is_never_placed_twice(cloud: Cloud) -> None:
    cloud.host("i")
    cloud.create("a")
    first, second = overlap(
        cloud.store,
        lambda tx: servers.place(tx, "a", "h", "n1"),
        lambda tx: servers.place(tx, "a", "i", "n2"),
    )
    assert (first, second) == (True, False)


def test_two_creates_never_share_an_address(cloud: Cloud) -> None:
    overlap(cloud.store, lambda tx: insert(tx, "a"), lambda tx: insert(tx, "b"))
    addresses = cloud.store.read(lambda tx: list(tx.execute(sa.select(ports.c.address)).scalars()))
    assert len(addresses) == len(set(addresses)) == 2


def test_the_last_address_goes_to_one(postgres_store: Store) -> None:
    cloud = Cloud(postgres_store, cidr="10.9.0.0/29")
    for number in range(4):
        cloud.create(f"s{number}")
    first, second = overlap(cloud.store, lambda tx: insert(tx, "a"), lambda tx: insert(tx, "b"))
    assert first is None
    assert isinstance(second, networks.NoMoreAddresses)


def test_two_agents_that_register_at_once_get_one_incarnation_between_them(cloud: Cloud) -> None:
    now = cloud.agents["h"].incarnation
    first, second = overlap(
        cloud.store,
        lambda tx: agents.register(tx, "h", Register("x", facts(), now)),
        lambda tx: agents.register(tx, "h", Register("y", facts(), now)),
    )
    assert first.granted
    assert not second.granted
    assert second.incarnation == first.incarnation


def test_delete_and_place_at_once_leave_no_guest_behind(cloud: Cloud) -> None:
    cloud.create("a")
    first, second = overlap(
        cloud.store,
        lambda tx: servers.delete_server(tx, "a", caller()),
        lambda tx: servers.place(tx, "a", "h", "n"),
    )
    assert first is None
    assert second is False
    assert cloud.store.read(lambda tx: tx.execute(sa.select(placements)).all()) == []


def test_place_and_delete_at_once_tell_the_host(cloud: Cloud) -> None:
    cloud.create("a")
    first, second = overlap(
        cloud.store,
        lambda tx: servers.place(tx, "a", "h", "n"),
        lambda tx: servers.delete_server(tx, "a", caller()),
    )
    assert first is True
    assert second == "h"
    assert cloud.wants()["a"].gone


def test_two_stops_at_once_leave_one_open_operation(cloud: Cloud) -> None:
    cloud.active()
    first, second = overlap(
        cloud.store,
        lambda tx: servers.stop_server(tx, "a", caller()),
        lambda tx: servers.stop_server(tx, "a", caller()),
    )
    assert (first, second) == ("h", "h")
    cloud.report(Gone())
    assert cloud.settled()


def test_a_stop_and_the_report_of_a_power_off_do_not_deadlock(cloud: Cloud) -> None:
    cloud.active()
    want = cloud.wants()["a"]
    seen = Observation(want.intent, Off(want.edge), Thing.PRESENT, Step.AT_REST)
    late = Report(cloud.agents["h"].incarnation, 10_000, "a", want.fence, seen)
    first, second = overlap(
        cloud.store,
        lambda tx: servers.stop_server(tx, "a", caller()),
        lambda tx: agents.report(tx, "h", late),
    )
    assert (first, second) == ("h", None)
    assert cloud.wants()["a"].power is Power.OFF
    assert cloud.wants()["a"].intent == want.intent + 1, "the stop was first; the report adds nothing"


def test_an_action_that_meets_a_lock_is_refused_by_it(cloud: Cloud) -> None:
    cloud.active()
    first, second = overlap(
        cloud.store,
        lambda tx: server_actions.lock_server(tx, "a", "project", caller(), None),
        lambda tx: servers.delete_server(tx, "a", caller()),
    )
    assert first is None
    assert isinstance(second, servers.Conflict)
    assert not cloud.server().deleted


def test_a_pause_and_a_stop_at_once_are_one_after_the_other(cloud: Cloud) -> None:
    cloud.active()
    first, second = overlap(
        cloud.store,
        lambda tx: server_actions.pause_server(tx, "a", caller()),
        lambda tx: servers.stop_server(tx, "a", caller()),
    )
    assert (first, second) == ("h", "h")
    assert cloud.wants()["a"].power is Power.OFF


def test_a_mark_and_a_report_at_once_lose_neither(cloud: Cloud) -> None:
    cloud.active()
    want = cloud.wants()["a"]
    seen = Observation(want.intent, Gone(), Thing.PRESENT, Step.AT_REST)
    late = Report(cloud.agents["h"].incarnation, 10_000, "a", want.fence, seen)
    first, second = overlap(
        cloud.store,
        lambda tx: server_actions.reset_state(tx, "a", "active", caller()),
        lambda tx: agents.report(tx, "h", late),
    )
    assert (first, second) == ("h", None)
    assert cloud.wants()["a"].mark == want.intent + 1
    assert not cloud.settled(), "the report answers an older intent"


def test_a_claim_and_a_registration_at_once_leave_no_lease_to_the_old_agent(cloud: Cloud) -> None:
    cloud.create("a")
    assert cloud.place("a")
    now = cloud.agents["h"].incarnation
    ask = Claim(now, "a", cloud.wants()["a"].fence)
    claimed, registered = overlap(
        cloud.store,
        lambda tx: agents.claim(tx, "h", ask),
        lambda tx: agents.register(tx, "h", Register("next", facts(), now)),
    )
    assert claimed is None
    assert registered.granted
    assert cloud.server().lease_incarnation is None
    with pytest.raises(agents.Superseded):
        cloud.store.transact(agents.claim, "h", ask)


def test_a_registration_that_was_first_refuses_the_claim_and_the_report_of_the_old_agent(
    cloud: Cloud,
) -> None:
    cloud.create("a")
    assert cloud.place("a")
    now = cloud.agents["h"].incarnation
    fence = cloud.wants()["a"].fence
    registered, late = overlap(
        cloud.store,
        lambda tx: agents.register(tx, "h", Register("next", facts(), now)),
        lambda tx: agents.claim(tx, "h", Claim(now, "a", fence)),
    )
    assert registered.granted
    assert isinstance(late, agents.Superseded)
    seen = Observation(1, Gone(), Thing.ABSENT, Step.WAITING)
    registered, late = overlap(
        cloud.store,
        lambda tx: agents.register(tx, "h", Register("third", facts(), now + 1)),
        lambda tx: agents.report(tx, "h", Report(now + 1, 1, "a", fence, seen)),
    )
    assert registered.granted
    assert isinstance(late, agents.Superseded)
    assert cloud.server().seen is None


def test_a_rebuild_and_the_record_of_the_old_disk_at_once_leave_the_new_disk_unrecorded(cloud: Cloud) -> None:
    cloud.create("a")
    assert cloud.place("a")
    want = cloud.wants()["a"]
    final = Trouble("image-unusable", "gone", "rebuild it", final=True)
    cloud.report(Gone(), trouble=final, disk=Thing.ABSENT)
    seen = Observation(want.intent, Gone(), Thing.PRESENT, Step.DISK)
    late = Report(cloud.agents["h"].incarnation, 10_000, "a", want.fence, seen, f"disk.{want.nonce}")
    first, second = overlap(
        cloud.store,
        lambda tx: server_rebuild.replace_disk(tx, "a", lambda _tx, _server: {}, "new", caller()),
        lambda tx: agents.report(tx, "h", late),
    )
    assert (first, second) == ("h", None)
    assert not cloud.wants()["a"].disk_recorded


def test_a_rebuild_and_a_delete_at_once_end_in_the_delete(cloud: Cloud) -> None:
    cloud.active()
    first, second = overlap(
        cloud.store,
        lambda tx: server_rebuild.replace_disk(tx, "a", lambda _tx, _server: {}, "new", caller()),
        lambda tx: servers.delete_server(tx, "a", caller()),
    )
    assert (first, second) == ("h", "h")
    assert cloud.wants()["a"].gone


def resize(tx: Tx, name: str, ram_mb: int) -> str:
    flavor_id = f"f{ram_mb}"
    with contextlib.suppress(Conflict):
        create_flavor(tx, FlavorRow(id=flavor_id, name=flavor_id, vcpus=1, ram_mb=ram_mb, disk_gb=1))
    return server_resize.resize_server(tx, name, None, caller(), flavor_id=flavor_id)


def taken(tx: Tx) -> int:
    return int(tx.execute(sa.select(sa.func.sum(placements.c.ram_mb))).scalar_one())


@pytest.fixture
def projects(cloud: Cloud) -> None:
    """Two projects: what two users of one ask for waits for each other anyway."""
    for name in ("project", "other"):
        cloud.store.transact(identity.create_project, identity.Project(id=name, name=name))


def test_two_resizes_never_oversubscribe_a_host(cloud: Cloud, projects: None) -> None:
    cloud.active("a")
    cloud.active("b")
    cloud.store.transact(
        lambda tx: tx.execute(
            sa.update(servers_table).where(servers_table.c.id == "b").values(project_id="other")
        )
    )
    first, second = overlap(cloud.store, lambda tx: resize(tx, "a", 600), lambda tx: resize(tx, "b", 601))
    assert first == "h"
    assert isinstance(second, Invalid)
    assert "No valid host" in str(second)
    assert cloud.store.read(taken) == 664


def test_a_resize_and_a_placement_at_once_never_oversubscribe_a_host(cloud: Cloud, projects: None) -> None:
    cloud.active("a")
    cloud.create("b", 600)
    first, second = overlap(
        cloud.store,
        lambda tx: servers.place(tx, "b", "h", "n2"),
        lambda tx: resize(tx, "a", 600),
    )
    assert first is True
    assert isinstance(second, Invalid)
    cloud.create("c", 600)
    cloud.store.transact(servers.delete_server, "b", caller())
    cloud.removed("b")
    first, second = overlap(
        cloud.store,
        lambda tx: resize(tx, "a", 600),
        lambda tx: servers.place(tx, "c", "h", "n3"),
    )
    assert (first, second) == ("h", False)


def test_a_resize_and_a_delete_at_once_end_in_the_delete(cloud: Cloud, projects: None) -> None:
    cloud.active()
    first, second = overlap(
        cloud.store, lambda tx: resize(tx, "a", 600), lambda tx: servers.delete_server(tx, "a", caller())
    )
    assert (first, second) == ("h", "h")
    assert cloud.wants()["a"].gone
    cloud.removed()
    assert cloud.status().status == "DELETED"


def test_a_confirm_and_a_revert_at_once_are_one_of_them(cloud: Cloud, projects: None) -> None:
    cloud.active()
    cloud.store.transact(resize, "a", 600)
    cloud.report(Running(2))
    assert cloud.status().status == "VERIFY_RESIZE"
    first, second = overlap(
        cloud.store,
        lambda tx: server_resize.confirm_resize(tx, "a", caller()),
        lambda tx: server_resize.revert_resize(tx, "a", caller()),
    )
    assert first == "h"
    assert isinstance(second, Conflict)
    assert cloud.store.read(taken) == 600


def test_an_unshelving_and_a_placement_at_once_never_oversubscribe_a_host(
    cloud: Cloud, projects: None
) -> None:
    cloud.create("a", 600)
    assert cloud.place("a")
    cloud.report(Gone(), step=Step.DISK, disk_id="disk-1")
    cloud.report(Running(1))
    cloud.store.transact(server_shelve.shelve_server, "a", caller())
    cloud.report(Gone())
    cloud.store.transact(server_shelve.offload_server, "a", caller())
    cloud.create("b", 600)
    first, second = overlap(
        cloud.store,
        lambda tx: servers.place(tx, "b", "h", "n2"),
        lambda tx: server_shelve.unshelve_server(tx, "a", caller()),
    )
    assert first is True
    assert isinstance(second, Conflict)
    assert cloud.store.read(taken) == 600
    cloud.store.transact(servers.delete_server, "b", caller())
    cloud.removed("b")
    cloud.create("c", 600)
    first, second = overlap(
        cloud.store,
        lambda tx: server_shelve.unshelve_server(tx, "a", caller()),
        lambda tx: servers.place(tx, "c", "h", "n3"),
    )
    assert (first, second) == ("h", False)
    assert cloud.store.read(taken) == 600


def image_of(tx: Tx) -> str | None:
    asked = captures.Capture(image_id="i", name="i", properties={}, most=10)
    return captures.create_image_of(tx, "a", None, asked, caller())


def arrived(cloud: Cloud) -> Callable[[Tx], Any]:
    """The last step of the image's delivery."""
    fence = cloud.wants()["a"].fence
    agent = cloud.agents["h"].incarnation
    cloud.store.transact(captures.claim_capture, "h", agent, "a", fence, "i", nonce="n", seconds=60.0)
    data = Data(name="i.n", size=1, virtual_size=1, checksum="c", sha512="s")
    return lambda tx: captures.finish_capture(tx, "h", "a", fence, "i", nonce="n", data=data)


def image_row(tx: Tx) -> tuple[bool, bool]:
    """Whether it has data, and whether it is deleted."""
    row = tx.execute(sa.select(images.c.data_name, images.c.deleted_wall)).one()
    return row.data_name is not None, row.deleted_wall is not None


def test_an_image_that_arrives_and_its_servers_delete_at_once_leave_no_half(
    cloud: Cloud, projects: None
) -> None:
    cloud.active()
    cloud.store.transact(image_of)
    finish = arrived(cloud)
    first, second = overlap(cloud.store, finish, lambda tx: servers.delete_server(tx, "a", caller()))
    assert (first, second) == (True, "h")
    assert cloud.store.read(image_row) == (True, False)
    assert cloud.wants()["a"].gone


def test_a_delete_of_the_server_that_was_first_keeps_the_image_out(cloud: Cloud, projects: None) -> None:
    cloud.active()
    cloud.store.transact(image_of)
    finish = arrived(cloud)
    first, second = overlap(cloud.store, lambda tx: servers.delete_server(tx, "a", caller()), finish)
    assert first == "h"
    assert isinstance(second, agents.Stale)
    assert cloud.store.read(image_row) == (False, True)


@pytest.mark.parametrize("arrives_first", [True, False])
def test_an_image_that_arrives_and_its_own_delete_at_once_do_not_deadlock(
    cloud: Cloud, projects: None, arrives_first: bool
) -> None:
    cloud.active()
    cloud.store.transact(image_of)
    works = [arrived(cloud), lambda tx: captures.delete_image(tx, "i", project_id="project")]
    first, second = overlap(cloud.store, *(works if arrives_first else reversed(works)))
    if arrives_first:
        assert (first, second) == (True, ("i.n", None))
    else:
        assert first == (None, "h")
        assert isinstance(second, agents.Stale)
    assert cloud.store.read(image_row) == (False, True)
    assert cloud.wants()["a"].capture == ""


def test_a_stop_and_a_request_for_an_image_at_once_are_one_of_them(cloud: Cloud, projects: None) -> None:
    cloud.active()
    first, second = overlap(cloud.store, image_of, lambda tx: servers.stop_server(tx, "a", caller()))
    assert first == "h"
    assert isinstance(second, Conflict)


def test_a_create_that_waits_for_another_passes_over_its_address(postgres_store: Store) -> None:
    """Also where both search from the same place: all but two are in use, and the cursor is at the end."""
    cloud = Cloud(postgres_store, cidr="10.9.0.0/29")
    for name in "vwxyz":
        cloud.create(name)
    freed = sa.delete(ports).where(ports.c.server_id.in_(["w", "y"]))
    cloud.store.transact(lambda tx: tx.execute(freed))
    overlap(cloud.store, lambda tx: insert(tx, "a"), lambda tx: insert(tx, "b"))
    found = sa.select(ports.c.address).where(ports.c.server_id.in_(["a", "b"]))
    addresses = cloud.store.read(lambda tx: set(tx.execute(found).scalars()))
    assert addresses == {"10.9.0.3", "10.9.0.5"}


def test_a_create_does_not_take_the_address_of_a_delete_that_may_yet_fail(postgres_store: Store) -> None:
    cloud = Cloud(postgres_store, cidr="10.9.0.0/29")
    for name in "vwxyz":
        cloud.create(name)

    def undone(tx: Tx) -> None:
        tx.execute(sa.delete(ports).where(ports.c.server_id == "w"))

    first, second = overlap(cloud.store, undone, lambda tx: insert(tx, "a"))
    # The delete is not committed while the create looks, so there it is still taken.
    assert first is None
    assert isinstance(second, networks.NoMoreAddresses)
