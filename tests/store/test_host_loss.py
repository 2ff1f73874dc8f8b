"""A host is declared lost, struck off and let in again: nothing is destroyed, no address is given twice."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller
from tests.store.test_barriers import overlap
from unstuck.core.agents import Report
from unstuck.core.errors import Conflict, Forbidden, NotFound
from unstuck.core.server.data import Fence, Gone, Observation, Running, Step, Thing, Trouble
from unstuck.store import agents, host_loss, server_rebuild, servers
from unstuck.store.agents import Superseded, UnknownHost
from unstuck.store.engine import Store, Tx
from unstuck.store.overview import overview
from unstuck.store.schema.compute import placements
from unstuck.store.schema.network import ports


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    made = Cloud(any_store)
    made.host("h")
    made.host("other")
    return made


def address(tx: Tx, name: str = "a") -> str | None:
    return tx.execute(sa.select(ports.c.address).where(ports.c.server_id == name)).scalar_one_or_none()


def places(tx: Tx, name: str = "a") -> dict[str, str]:
    rows = tx.execute(
        sa.select(placements.c.host_id, placements.c.state).where(placements.c.server_id == name)
    )
    return {row.host_id: row.state for row in rows}


def down(cloud: Cloud, host: str = "h", *, is_down: bool = True) -> None:
    cloud.store.transact(host_loss.force_down, host, down=is_down)


def strike(cloud: Cloud, host: str = "h") -> None:
    cloud.store.transact(host_loss.strike_off, host)


def rejoin(cloud: Cloud, host: str = "h", token: str = "t", **more: str) -> None:
    known = {"host_id": host, "hostname": host, "secret_hash": host, "machine_id": host, **more}
    cloud.store.transact(host_loss.join, token, **known)


def make_token(cloud: Cloud, token: str = "t", seconds: float = 60.0) -> None:
    cloud.store.transact(host_loss.make_token, token, seconds)


def test_what_never_had_a_disk_there_is_placed_anew_with_its_address(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.place("a", "h")
    cloud.claim("a", "h")
    old = cloud.wants("h")["a"].fence
    cloud.report(Gone(), "a", "h", step=Step.FETCHING, disk=Thing.ABSENT)
    before = cloud.store.read(address)
    down(cloud)
    assert cloud.server().place is None
    assert not cloud.settled(), "it waits for a host again"
    assert not cloud.place("a", "h"), "nothing comes to a host that was declared lost"
    assert cloud.place("a", "other")
    assert cloud.wants("h")["a"].gone, "the former host cleans up when it is back"
    cloud.report(Gone(), "a", "other", step=Step.DISK, disk_id="disk")
    cloud.report(Running(1), "a", "other")
    assert cloud.status().status == "ACTIVE"
    assert cloud.store.read(places) == {"h": "tombstone", "other": "live"}
    # What the former host says of it counts for nothing, least of all that it has a disk.
    cloud.report(Gone(), "a", "h", fence=old, intent=1, step=Step.DISK, disk_id="late")
    assert cloud.status().status == "ACTIVE"
    cloud.report(Gone(), "a", "h", fence=old, intent=1, step=Step.REMOVED, disk=Thing.ABSENT)
    assert cloud.store.read(places) == {"other": "live"}
    assert cloud.store.read(address) == before


def test_a_former_host_that_is_clean_before_there_is_a_new_one_frees_no_address(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.place("a", "h")
    down(cloud)
    cloud.removed("a", "h")
    assert cloud.store.read(places) == {}
    assert cloud.store.read(address) is not None
    down(cloud, is_down=False)
    assert cloud.place("a", "h"), "it was only said to be lost, and is clean"


def test_a_deleted_server_keeps_its_address_until_the_former_host_is_clean(cloud: Cloud) -> None:
    cloud.create()
    assert cloud.place("a", "h")
    old = cloud.wants("h")["a"].fence
    down(cloud)
    assert cloud.place("a", "other")
    cloud.store.transact(servers.delete_server, "a", caller())
    cloud.removed("a", "other")
    assert cloud.store.read(places) == {"h": "tombstone"}
    assert cloud.store.read(address) is not None
    cloud.report(Gone(), "a", "h", fence=old, intent=1, step=Step.REMOVED, disk=Thing.ABSENT)
    assert cloud.store.read(address) is None


def test_a_server_with_a_disk_stays_where_it_is_until_its_host_is_struck_off(cloud: Cloud) -> None:
    cloud.active("a", "h")
    down(cloud)
    assert cloud.store.read(places) == {"h": "live"}
    assert cloud.status().status == "ACTIVE", "nobody has seen anything else"
    assert cloud.status().host_status == "DOWN"
    with pytest.raises(Conflict, match="was not declared lost"):
        strike(cloud, "other")
    strike(cloud)
    shown = cloud.status()
    assert shown.status == "ERROR"
    assert shown.fault is not None
    assert "struck off by an operator" in shown.fault[0]
    assert "join again" in shown.fault[1]
    assert cloud.settled()
    assert cloud.store.read(address) is not None


def test_a_server_that_is_rebuilt_is_not_taken_for_one_that_never_had_a_disk(cloud: Cloud) -> None:
    """No disk of it is recorded at that moment, and its old guest may run on the host that is lost."""
    cloud.create()
    cloud.place()
    cloud.claim()
    cloud.report(Gone(), step=Step.DISK, disk_id="disk")
    trouble = Trouble("guest-keeps-failing", "it was started, and nobody was told", "rebuild it", final=True)
    cloud.report(Gone(5), trouble=trouble)
    cloud.store.transact(server_rebuild.replace_disk, "a", lambda _tx, _server: {}, "new", caller())
    assert not cloud.server().disk_recorded
    assert not host_loss._nothing_there(cloud.server())


def test_striking_a_host_off_settles_everything_on_it(cloud: Cloud) -> None:
    cloud.active("data", "h")
    cloud.active("deleted", "h")
    cloud.store.transact(servers.delete_server, "deleted", caller())
    cloud.create("new")
    assert cloud.place("new", "h")
    down(cloud)
    strike(cloud)
    assert cloud.server("deleted").removed
    assert cloud.store.read(address, "deleted") is None, "its host was fenced: the address is free"
    assert cloud.server("new").place is None
    assert cloud.place("new", "other")
    assert cloud.status("data").status == "ERROR"
    cloud.store.transact(servers.delete_server, "data", caller())
    assert cloud.server("data").removed
    assert cloud.store.read(address, "data") is None
    assert cloud.store.read(overview).tombstones == 0, "nobody waits for a host that was given up"
    assert [host.id for host in cloud.store.read(overview).hosts] == ["other"]
    with pytest.raises(NotFound):
        strike(cloud)


def test_a_host_that_was_struck_off_is_not_let_in_silently(cloud: Cloud) -> None:
    cloud.active("a", "h")
    down(cloud)
    strike(cloud)
    with pytest.raises(Superseded):
        cloud.beat("h")
    with pytest.raises(UnknownHost):
        cloud.register("h")
    with pytest.raises(UnknownHost):
        cloud.store.read(agents.authenticate_host, "h", "h")
    with pytest.raises(Forbidden, match="join token"):
        rejoin(cloud)


def test_who_joins_again_gets_back_what_is_wanted_and_cleans_up_the_rest(cloud: Cloud) -> None:
    for name in ("kept", "deleted", "moved"):
        if name == "moved":
            cloud.create(name)
            assert cloud.place(name, "h")
        else:
            cloud.active(name, "h")
    down(cloud)
    strike(cloud)
    cloud.store.transact(servers.delete_server, "deleted", caller())
    assert cloud.place("moved", "other")
    make_token(cloud)
    rejoin(cloud)
    cloud.register("h")
    wants = cloud.wants("h")
    assert {name: want.gone for name, want in wants.items()} == {
        "kept": False,
        "deleted": True,
        "moved": True,
    }
    cloud.report(Running(1), "kept", "h")
    assert cloud.status("kept").status == "ACTIVE"
    assert cloud.server("kept").failure is None
    for name in ("deleted", "moved"):
        cloud.removed(name, "h")
    assert cloud.store.read(places, "deleted") == {}
    assert cloud.store.read(places, "moved") == {"other": "live"}
    assert cloud.store.read(address, "moved") is not None


def test_a_join_token_serves_one_host_once(cloud: Cloud) -> None:
    make_token(cloud)
    rejoin(cloud, "new")
    rejoin(cloud, "new")  # its answer was lost
    cloud.register("new")
    with pytest.raises(Forbidden):
        rejoin(cloud, "third")
    make_token(cloud, "late", -1.0)
    with pytest.raises(Forbidden):
        rejoin(cloud, "third", "late")
    make_token(cloud, "u")
    with pytest.raises(Conflict, match="another name"):
        rejoin(cloud, "third", "u", hostname="h")
    with pytest.raises(Conflict, match="another credential"):
        rejoin(cloud, "h", "u", secret_hash="stolen")
    rejoin(cloud, "third", "u")  # a refused request has used nothing up


def test_another_machine_with_a_copied_folder_does_not_join_as_the_old_one(cloud: Cloud) -> None:
    down(cloud)
    strike(cloud)
    make_token(cloud)
    with pytest.raises(Conflict, match="another machine"):
        rejoin(cloud, machine_id="clone")


# Two connections at once.


@pytest.fixture
def pair(postgres_store: Store) -> Cloud:
    made = Cloud(postgres_store)
    made.host("h")
    made.host("other")
    made.create()
    assert made.place("a", "h")
    made.claim("a", "h")
    return made


def records(cloud: Cloud, fence: Fence) -> Any:
    seen = Observation(1, Gone(), Thing.PRESENT, Step.DISK)
    disk = f"disk.{cloud.wants('h')['a'].nonce}"
    ask = Report(cloud.agents["h"].incarnation, next(cloud.sequence), "a", fence, seen, disk)
    return lambda tx: agents.report(tx, "h", ask)


def test_a_disk_is_recorded_or_its_server_placed_anew_but_never_both(pair: Cloud) -> None:
    """Otherwise a server is placed elsewhere whose disk, and perhaps whose guest, is here."""
    report = records(pair, pair.wants("h")["a"].fence)
    _, second = overlap(pair.store, report, lambda tx: host_loss.force_down(tx, "h", down=True))
    assert second is None
    assert pair.server().disk_recorded
    assert pair.store.read(places) == {"h": "live"}


def test_a_report_that_waited_for_the_loss_of_its_host_records_nothing(pair: Cloud) -> None:
    report = records(pair, pair.wants("h")["a"].fence)
    overlap(pair.store, lambda tx: host_loss.force_down(tx, "h", down=True), report)
    assert not pair.server().disk_recorded
    assert pair.server().seen is None
    assert pair.store.read(places) == {"h": "tombstone"}


def test_nothing_is_placed_on_a_host_that_is_just_being_declared_lost(pair: Cloud) -> None:
    pair.create("b")
    _, placed = overlap(
        pair.store,
        lambda tx: host_loss.force_down(tx, "h", down=True),
        lambda tx: servers.place(tx, "b", "h", "nonce"),
    )
    assert placed is False


def test_two_hosts_never_join_with_one_token(pair: Cloud) -> None:
    make_token(pair)

    def joining(host: str) -> Any:
        return lambda tx: host_loss.join(
            tx, "t", host_id=host, hostname=host, secret_hash=host, machine_id=host
        )

    first, second = overlap(pair.store, joining("x"), joining("y"))
    assert first is None
    assert isinstance(second, Forbidden)
