"""Messages of agents that come twice, late, or from somebody who is no more (law 5), on both databases."""

from __future__ import annotations

import pytest

from tests.store.play import Cloud, facts
from unstuck.core.agents import Claim, Heartbeat, Register, Report
from unstuck.core.server.data import Gone, Observation, Running, Step, Thing
from unstuck.store import agents
from unstuck.store.engine import Store


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    made = Cloud(any_store)
    made.host()
    made.create()
    assert made.place()
    return made


def test_a_registration_whose_answer_was_lost_gets_the_same_grant_and_ends_no_lease(cloud: Cloud) -> None:
    now = cloud.agents["h"].incarnation
    first = cloud.store.transact(agents.register, "h", Register("start", facts(), now))
    cloud.agents["h"] = first
    cloud.claim()
    again = cloud.store.transact(agents.register, "h", Register("start", facts(), now))
    assert (again.incarnation, again.granted) == (first.incarnation, True) == (now + 1, True)
    assert cloud.server().lease_incarnation == first.incarnation


def test_a_claim_whose_answer_was_lost_gets_the_same_grant(cloud: Cloud) -> None:
    want = cloud.wants()["a"]
    cloud.claim()
    first = cloud.server()
    cloud.claim()
    again = cloud.server()
    assert (again.place, again.lease_incarnation) == (first.place, first.lease_incarnation)
    assert cloud.wants()["a"] == want
    cloud.report(Gone(), step=Step.DISK, disk_id="disk-1")
    cloud.report(Running(1))
    cloud.claim()  # a copy that comes when the work is done gives nobody a lease
    assert cloud.settled()
    assert cloud.server().lease_incarnation is None


def test_whatever_an_old_incarnation_says_late_changes_nothing(cloud: Cloud) -> None:
    cloud.active("b")
    old = cloud.agents["h"].incarnation
    fence = cloud.wants()["b"].fence
    cloud.register()
    cloud.report(Running(1), "b")
    before = cloud.server("b")
    seen = Observation(1, Gone(), Thing.ABSENT, Step.REMOVED)
    for call, ask in (
        (agents.report, Report(old, 10**6, "b", fence, seen)),
        (agents.claim, Claim(old, "b", fence)),
        (agents.heartbeat, Heartbeat(old, 10**6, ("stranger",))),
    ):
        with pytest.raises(agents.Superseded, match="superseded by"):
            cloud.store.transact(call, "h", ask)  # type: ignore[arg-type]
    asked = cloud.store.transact(agents.register, "h", Register("late", facts(), old - 1))
    assert not asked.granted
    assert cloud.server("b") == before
    assert cloud.agents["h"].incarnation == asked.incarnation


def test_a_report_that_was_overtaken_changes_nothing(cloud: Cloud) -> None:
    cloud.active("b")
    cloud.report(Running(1), "b", sequence=1000)
    before = cloud.server("b")
    cloud.report(Gone(), "b", sequence=999)
    cloud.report(Gone(), "b", sequence=1000)
    assert cloud.server("b") == before
