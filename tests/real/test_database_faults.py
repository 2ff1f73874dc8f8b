"""Single faults while a database is backed up, with real processes: each ends by itself, frees the instance,
loses no acknowledged row, and leaves nothing behind (docs/faults.md).

Every test ends with :meth:`Instance.free`: the next backup completes, what an outside writer was told is
there, and nothing is left in the guest, on the host, or in the store of objects.
"""

from __future__ import annotations

import time

import pytest

from tests.proof import proves
from tests.real.database_cloud import LEASE, Instance

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("database"), pytest.mark.timeout(300)]
PHASES = ["starting", "copying", "finishing"]


def slow_but(fast: str, names: list[str]) -> list[object]:
    return [name if name == fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


# --- the agent


@proves("T2", ends="COMPLETED by the next process of the agent")
def test_an_agent_that_is_dead_at_the_request(shop: Instance) -> None:
    shop.kill_agent()
    shop.completed(shop.request())
    shop.free()


@pytest.mark.parametrize("phase", slow_but("copying", PHASES))
@proves("T3", ends="COMPLETED by the second attempt")
def test_an_agent_killed_in_each_phase(shop: Instance, phase: str) -> None:
    backup, holds = shop.held(phase)
    shop.kill_agent()
    for hold in holds:
        hold.go_on()
    found = shop.completed(backup)
    assert found["unstuck"]["attempt"] == 2
    shop.free()


@pytest.mark.slow
@proves("T4", ends="COMPLETED by the same attempt")
def test_an_agent_frozen_for_less_than_its_lease(shop: Instance) -> None:
    shop.made.settings(copying=60.0, finishing=60.0, uploading=60.0)
    backup, holds = shop.held("copying")
    agent = shop.hold(shop.agent())
    holds[0].go_on()
    time.sleep(LEASE / 2)
    agent.go_on()
    found = shop.completed(backup)
    assert found["unstuck"]["attempt"] == 1
    shop.free()


@pytest.mark.slow
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


@proves("T9", ends="COMPLETED: the offer was still open")
@pytest.mark.parametrize("seconds", [5.0, pytest.param(45.0, marks=pytest.mark.slow)])
def test_an_agent_that_comes_late(shop: Instance, seconds: float) -> None:
    shop.made.settings(claim=seconds + 30.0)
    agent = shop.hold(shop.agent())
    backup = shop.request()
    time.sleep(seconds)  # this long is the fault
    assert shop.backup(backup)["status"] == "NEW"
    agent.go_on()
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.free()


@proves("T10", ends="FAILED, and stays so: a late agent finds nothing to do")
@pytest.mark.parametrize("seconds", [5.0, pytest.param(45.0, marks=pytest.mark.slow)])
def test_an_agent_that_comes_after_its_attempt_was_given_up(shop: Instance, seconds: float) -> None:
    shop.made.settings(claim=seconds - 2.0)
    agent = shop.hold(shop.agent())
    backup = shop.request()
    time.sleep(seconds)  # this long is the fault
    before = shop.failed(backup, "no agent of the instance took it within")
    agent.go_on()
    shop.free()
    after = shop.backup(backup)
    assert (after["status"], after["unstuck"]["reason"]) == ("FAILED", before["unstuck"]["reason"])


@pytest.mark.slow
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


# --- its tool, and the server


@pytest.mark.parametrize("phase", slow_but("copying", PHASES))
@proves("T5", ends="nothing moved: given up for that, COMPLETED by the second attempt")
def test_a_tool_that_hangs_while_its_agent_is_healthy(shop: Instance, phase: str) -> None:
    shop.made.settings(starting=4.0, copying=4.0, finishing=4.0)
    backup, holds = shop.held(phase)
    shop.hold(shop.tool())
    if phase != "starting":
        holds[0].go_on()  # the server goes on, as far as nobody reads
    shop.until_attempt(backup, 2)
    shop.let_all_go()
    shop.completed(backup)
    shop.free()


@proves("B7", ends="COMPLETED by another attempt, the database recovered by itself")
def test_the_server_crashes_in_mid_backup(shop: Instance) -> None:
    backup, _ = shop.held("copying")
    shop.kill(shop.postmaster())
    shop.let_all_go()
    found = shop.completed(backup)
    assert found["unstuck"]["attempt"] > 1
    shop.writes_go_on()
    shop.free()


@pytest.mark.slow
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


# --- control plane and host agent


@proves("T16", ends="COMPLETED: the backup exists from the commit on, though its user never heard of it")
def test_the_api_is_killed_after_its_commit(shop: Instance) -> None:
    cloud = shop.cloud
    cloud.kill("control")
    cloud.start("control", "commit.create_backup+")
    shop.ask_in_vain()
    cloud.until_stopped("control", "commit.create_backup+")
    cloud.kill("control")
    cloud.start("control")
    (backup,) = [each["id"] for each in shop.made.backups_of(shop.id) if each["name"] == "in vain"]
    shop.completed(backup)
    shop.free()


@pytest.mark.slow
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


@pytest.mark.parametrize("phase", slow_but("copying", PHASES))
@proves("T17", "T18", "T19", ends="COMPLETED")
def test_the_control_plane_is_killed_while_a_backup_runs(shop: Instance, phase: str) -> None:
    backup, holds = shop.held(phase)
    shop.cloud.kill("control")
    holds[0].go_on()
    shop.cloud.start("control")
    shop.completed(backup)
    shop.free()


@pytest.mark.slow
@proves("B15", ends="COMPLETED; the database is in use all the time")
def test_the_control_plane_is_away_for_longer_than_the_lease(shop: Instance) -> None:
    backup, holds = shop.held("copying")
    shop.cloud.kill("control")
    holds[0].go_on()
    time.sleep(LEASE + 10.0)  # this long is the fault
    shop.writes_go_on()
    shop.cloud.start("control")
    shop.completed(backup)
    shop.free()


@proves("B5", ends="COMPLETED, by the same attempt of the same agent")
def test_the_host_agent_is_restarted_in_mid_backup(shop: Instance) -> None:
    shop.made.settings(copying=60.0, uploading=60.0)
    backup, holds = shop.held("copying")
    shop.cloud.kill("host")
    shop.cloud.start("host")
    holds[0].go_on()
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.free()


@proves("B6", ends="COMPLETED: its manifest is found and verified")
def test_the_manifest_is_written_and_the_report_is_lost_with_both_agents(shop: Instance) -> None:
    cloud = shop.cloud
    cloud.kill("host")
    cloud.start("host", "guests.done")
    backup = shop.request()
    cloud.until_stopped("host", "guests.done")
    agent = shop.hold(shop.agent())
    cloud.kill("host")
    shop.kill(agent.pid)
    cloud.start("host")
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.free()
