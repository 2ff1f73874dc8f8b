"""More of the faults of test_database_faults, which stands for them in every run: the other phases, longer
absences, later agents."""

from __future__ import annotations

import pytest

from tests.proof import proves
from tests.real.database_cloud import BOTH, LEASE, Instance

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(300),
    BOTH,
]
PHASES = ["starting", "copying", "finishing"]


@proves("T4", ends="given up, offered anew; COMPLETED once the agent is thawed")
def test_an_agent_frozen_for_longer_than_its_lease_then_thawed(shop: Instance) -> None:
    backup, holds = shop.held("copying")
    agent = shop.hold(shop.agent())
    holds[0].go_on()
    shop.until_attempt(backup, 2, LEASE * 2)
    shop.writes_go_on()
    agent.go_on()
    found = shop.completed(backup)
    assert found["unstuck"]["attempt"] == 2
    shop.free()


@proves("T11", ends="the second COMPLETED, the first FAILED: a late agent harms neither")
def test_an_agent_that_comes_late_while_a_second_backup_is_there(shop: Instance) -> None:
    shop.made.settings(starting=60.0, copying=60.0, claim=60.0)
    first, holds = shop.held("copying")
    agent = shop.hold(shop.agent())
    shop.api.ask("POST", f"/backups/{first}/action", json={"cancel": {}})
    shop.failed(first, "cancelled", LEASE * 3)
    second = shop.request("second")
    agent.go_on()
    holds[0].go_on()
    assert shop.completed(second)["unstuck"]["attempt"] == 1
    assert shop.backup(first)["status"] == "FAILED"
    shop.free()


@proves("B10", ends="COMPLETED by the attempt after the pause")
def test_a_guest_that_is_paused_for_longer_than_the_lease(shop: Instance) -> None:
    backup, holds = shop.held("copying")
    with shop.frozen():
        shop.until_backup(
            backup, "is offered anew", lambda found: found["unstuck"]["attempt"] == 2, LEASE * 2
        )
    holds[0].go_on()
    shop.completed(backup)
    shop.writes_go_on()
    shop.free()


@proves("T16", ends="no backup: as if nobody had asked")
def test_the_api_is_killed_before_its_commit(shop: Instance) -> None:
    cloud = shop.cloud
    cloud.kill("control")
    cloud.start("control", "commit.create_backup")
    shop.ask_in_vain()
    cloud.until_stopped("control", "commit.create_backup")
    cloud.kill("control")
    cloud.start("control")
    assert "in vain" not in [each["name"] for each in shop.made.backups_of(shop.id)]
    shop.free()


@proves("B22", ends="COMPLETED: whoever verifies next tries to the end")
def test_the_control_plane_is_killed_while_it_verifies_and_the_deadline_for_that_is_short(
    shop: Instance,
) -> None:
    shop.made.settings(verify=15.0)
    shop.cloud.kill("control")
    shop.cloud.start("control", "blobs.verify")
    backup = shop.request()
    shop.cloud.until_stopped("control", "blobs.verify")
    shop.cloud.kill("control")
    shop.cloud.start("control")
    assert shop.completed(backup, 200.0)["unstuck"]["attempt"] == 1
    shop.free()
