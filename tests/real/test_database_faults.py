"""Single faults while a database is backed up, with real processes: each ends by itself, frees the instance,
loses no acknowledged row, and leaves nothing behind (docs/faults.md).

Every test ends with :meth:`Instance.free`: the next backup completes, what an outside writer was told is
there, and nothing is left in the guest, on the host, or in the store of objects.
"""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.proof import proves
from tests.real.database_cloud import BOTH, LEASE, DatabaseCloud, Instance
from tests.real.failing_stores import Far, far, small
from unstuck.blobs.objects import Location

__all__ = ["far", "small"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(300),
    BOTH,
]
PHASES = ["starting", "copying", "finishing"]


def slow_but(fast: str, names: list[str]) -> list[object]:
    return [name if name == fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


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
@proves("T9", ends="COMPLETED: the offer was still open")
@pytest.mark.parametrize("seconds", [5.0, 45.0])
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


@pytest.mark.parametrize("phase", slow_but("copying", PHASES))
@proves("T5", ends="nothing moved: given up for that, COMPLETED by the second attempt")
def test_a_tool_that_hangs_while_its_agent_is_healthy(shop: Instance, phase: str) -> None:
    shop.made.settings(starting=4.0, copying=4.0, finishing=4.0, attempts=6)
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
    shop.made.settings(claim=60.0)  # until the server has recovered, its agent takes nothing
    backup, _ = shop.held("copying")
    shop.kill(shop.postmaster())
    shop.let_all_go()
    found = shop.completed(backup)
    assert found["unstuck"]["attempt"] > 1
    shop.writes_go_on()
    shop.free()


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


@proves("B11", ends="one is taken, the other refused at once (409), naming the first")
def test_two_backups_requested_at_once(shop: Instance) -> None:
    def ask(number: int) -> httpx2.Response:
        body = {"backup": {"name": f"both-{number}", "instance": shop.id}}
        answer: httpx2.Response = shop.api.cloud.client.post(f"{shop.api.base}/backups", json=body)
        return answer

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    taken = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code != 202]
    assert len(taken) == 1
    assert {answer.status_code for answer in refused} == {409}
    backup = taken[0].json()["backup"]["id"]
    assert all(backup in answer.text for answer in refused)
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.free()


@proves("B12", ends="gone at once for its user; stopped, and its objects removed")
def test_a_backup_deleted_while_it_runs(made: DatabaseCloud, shop: Instance) -> None:
    backup, holds = shop.held("copying")
    shop.cloud.until("a piece is there", lambda: made.objects().list(f"backups/{backup}"))
    shop.api.ask("DELETE", f"/backups/{backup}")
    assert shop.is_unknown(backup)
    holds[0].go_on()
    shop.cloud.until("its objects are gone", lambda: not made.objects().list(f"backups/{backup}"))
    shop.free()


@proves("T6", ends="FAILED with that reason, nothing of it is left in the store")
def test_a_store_that_is_full(made: DatabaseCloud, shop: Instance, small: Path) -> None:
    made.settings(uploading=4.0, attempts=2)
    where = Location(small.as_uri())
    made.send_to("small", where)
    shop.failed(shop.request(), "the blob store.*No space left on device")
    made.only_objects_of_complete_backups("small", where)
    made.send_home()
    shop.free()


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 503])
@proves("T6", "B1", ends="FAILED with that reason, nothing of it is left in the store")
def test_a_store_that_answers_5xx(made: DatabaseCloud, shop: Instance, far: Far, status: int) -> None:
    made.settings(uploading=5.0, attempts=2)
    far.use()
    with far.proxy.doing(status, "PUT"):
        shop.failed(shop.request(), f"the blob store.*it answered {status}")
    far.only_complete()
    shop.completed(shop.request("far"))
    made.send_home()
    shop.free()


@proves("T7", ends="tried again until the credentials are right: COMPLETED by a later attempt")
def test_a_store_that_refuses_the_credentials_at_the_start(
    made: DatabaseCloud, shop: Instance, far: Far
) -> None:
    made.settings(uploading=6.0, attempts=6)
    made.send_to("far", msgspec.structs.replace(far.where, secret_key="wrong"))
    backup = shop.request()
    shop.until_phase(backup, "uploading")
    far.use()  # the operator puts the right ones into the file
    assert shop.completed(backup)["unstuck"]["attempt"] > 1
    far.only_complete()
    made.send_home()
    shop.free()


@pytest.mark.slow
@proves("B3", ends="COMPLETED by the same attempt, once it answers")
def test_a_store_that_does_not_answer_for_a_while(made: DatabaseCloud, shop: Instance, far: Far) -> None:
    made.settings(uploading=120.0)
    far.use()
    backup, holds = shop.held("copying")
    with far.proxy.doing("hang"):
        holds[0].go_on()
        shop.until_phase(backup, "uploading", 60.0)
    far.proxy.release()
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    far.only_complete()
    made.send_home()
    shop.free()
