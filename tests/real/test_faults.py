"""kill -9 at every bad moment, with real processes and real guests: nothing gets stuck, nothing is doubled.

Each test runs one server to a barrier, kills, starts what was killed again, and asks for nothing more.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import proves
from tests.real.fault_cloud import FaultCloud, cloud_in, uploaded
from unstuck.cli import guests
from unstuck.runtime.processes import stopped

pytestmark = [
    pytest.mark.root,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for taps"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder into which the tiny image was uploaded: made once, because uploading is slow."""
    return uploaded(tmp_path_factory.mktemp("faults") / "state")


@pytest.fixture
def cloud(tmp_path: Path, template: Path) -> Iterator[FaultCloud]:
    """A control plane with the tiny image; the agent is the test's own."""
    root = tmp_path / "state"
    shutil.copytree(template, root, copy_function=copy)
    with cloud_in(root) as made:
        made.start("control")
        yield made


def copy(source: str, target: str) -> str:
    """Stored images are never written again, so that a link will do for them."""
    if "/blobs/" in source:
        os.link(source, target)
        return target
    return shutil.copy2(source, target)


def remove(cloud: FaultCloud, server: str) -> None:
    """The last check of every test: what was recovered can be deleted like any other."""
    cloud.delete(server)
    cloud.agree_gone(server)


@pytest.mark.slow
@proves("P8", "P9", "P10", "P12", "P13", ends="ACTIVE")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("driver.look", id="after_the_place_before_the_first_look"),
        pytest.param("control.claim", id="before_the_claim"),
        pytest.param("control.claim+", id="claimed_and_the_answer_lost"),
        pytest.param("driver.fetch.half", id="with_half_an_image"),
        pytest.param("driver.disk.half", id="with_a_disk_half_made"),
        pytest.param("control.report.disk", id="with_a_disk_that_is_not_recorded"),
        pytest.param("driver.make_nics+", id="with_taps_and_no_guest"),
    ],
)
def test_a_build_goes_on_after_its_agent_was_killed(cloud: FaultCloud, point: str) -> None:
    cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    assert not cloud.qemus(server)
    assert cloud.status(server) == "BUILD"
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    cloud.one(server)
    assert cloud.starts(server) == 1
    cloud.agree()
    remove(cloud, server)


@pytest.mark.slow
@pytest.mark.parametrize("child", ["goes_on", "is_killed"])
def test_an_agent_killed_between_fork_and_exec_leaves_no_second_guest(cloud: FaultCloud, child: str) -> None:
    cloud.start("host", "driver.exec")
    server = cloud.create()
    cloud.until("the child stops", lambda: any(guest.stopped for guest in guests.running(cloud.state)))
    before = cloud.one(server)
    cloud.kill("host")
    assert stopped(before.pid)
    cloud.start("host")

    def unclear() -> bool:
        return "guest-unknown" in [item["code"] for item in cloud.explain(server)["conditions"]]

    cloud.until("explain says that the guest cannot be seen", unclear)
    assert cloud.status(server) == "BUILD"
    assert cloud.one(server) == before
    if child == "goes_on":
        cloud.go_on(before.pid)
        cloud.until_status(server, "ACTIVE")
        assert cloud.one(server) == before
        assert cloud.starts(server) == 1
    else:
        cloud.signal(before.pid, signal.SIGKILL)
        cloud.until_status(server, "ACTIVE")
        assert cloud.one(server) != before
        assert cloud.starts(server) == 2
    cloud.agree()
    remove(cloud, server)


@proves("P15", ends="ACTIVE, the guest untouched")
def test_a_guest_that_ran_unreported_is_adopted_and_takes_every_order(cloud: FaultCloud) -> None:
    """The old fault: it runs, nobody was told, and it stays in BUILD for ever."""
    cloud.start("host", "control.report.running")
    server = cloud.create()
    cloud.until_stopped("host", "control.report.running")
    before, boot = cloud.one(server), cloud.say(server, "boot_id")
    assert cloud.status(server) == "BUILD"
    cloud.kill("host")
    assert cloud.status(server) == "BUILD"
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert cloud.one(server) == before
    assert cloud.starts(server) == 1
    assert cloud.say(server, "boot_id") == boot
    assert cloud.address(server) in cloud.say(server, "address")
    cloud.agree()

    lines = cloud.act(server, **{"os-getConsoleOutput": {}})["output"]
    assert "unstuck-tiny: hostname web" in lines
    cloud.act(server, **{"os-stop": None})
    cloud.until_status(server, "SHUTOFF")
    assert not cloud.qemus(server)
    cloud.agree()
    cloud.act(server, **{"os-start": None})
    cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "boots") == "2"
    cloud.act(server, reboot={"type": "SOFT"})
    cloud.until("the guest boots a third time", lambda: cloud.say(server, "boots") == "3")
    cloud.until_status(server, "ACTIVE")
    third = cloud.one(server)
    cloud.act(server, reboot={"type": "HARD"})
    cloud.until("another process runs it", lambda: third not in cloud.qemus(server))
    cloud.until_status(server, "ACTIVE")
    cloud.one(server)
    cloud.agree()
    remove(cloud, server)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["driver.start.forked", "driver.start+"])
def test_a_guest_whose_start_nobody_saw_is_adopted(cloud: FaultCloud, point: str) -> None:
    cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    before = cloud.one(server)
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert cloud.one(server) == before
    assert cloud.starts(server) == 1
    cloud.agree()
    remove(cloud, server)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "driver.quit",
        "driver.quit+",
        "driver.remove_nics+",
        "driver.remove_folder+",
        "control.report.removed+",
    ],
)
def test_a_removal_goes_on_after_its_agent_was_killed(cloud: FaultCloud, point: str) -> None:
    cloud.start("host", point)
    server = cloud.create()
    cloud.until_status(server, "ACTIVE")
    cloud.delete(server)
    cloud.until_stopped("host", point)
    cloud.kill("host")
    cloud.start("host")
    cloud.agree_gone(server)


@pytest.mark.slow
@proves("P16", "P17", ends="ACTIVE")
def test_a_report_whose_answer_was_lost_is_no_harm(cloud: FaultCloud) -> None:
    cloud.start("host", "control.report.running+")
    server = cloud.create()
    cloud.until_stopped("host", "control.report.running+")
    cloud.until_status(server, "ACTIVE")
    before = cloud.one(server)
    cloud.kill("host")
    cloud.start("host", "control.report.running+")
    cloud.until_stopped("host", "control.report.running+")  # the new agent has said it as well
    cloud.go_on(cloud.pid("host"))
    assert cloud.status(server) == "ACTIVE"
    assert cloud.one(server) == before
    assert cloud.starts(server) == 1
    cloud.agree()
    remove(cloud, server)


@proves("P19", ends="gone after the restart")
@pytest.mark.parametrize(
    "point",
    [
        "driver.make_disk",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("driver.fetch.half", "driver.disk.half", "driver.start+", "control.report.running")
        ),
    ],
)
def test_a_delete_during_the_build_is_done_by_the_next_agent(cloud: FaultCloud, point: str) -> None:
    cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    cloud.delete(server)
    cloud.kill("host")
    found = cloud.server(server)
    assert found is None or found["OS-EXT-STS:task_state"] == "deleting"
    cloud.start("host")
    cloud.agree_gone(server)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["driver.make_disk", "driver.start"])
def test_a_build_waits_for_a_control_plane_that_was_killed(cloud: FaultCloud, point: str) -> None:
    agent = cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    cloud.kill("control")
    cloud.go_on(agent)
    cloud.start("control")
    cloud.until_status(server, "ACTIVE")
    assert cloud.pid("host") == agent
    assert not stopped(agent)
    cloud.one(server)
    assert cloud.starts(server) == 1
    cloud.agree()
    remove(cloud, server)


def test_both_killed_while_a_guest_runs_unreported(cloud: FaultCloud) -> None:
    cloud.start("host", "control.report.running")
    server = cloud.create()
    cloud.until_stopped("host", "control.report.running")
    before = cloud.one(server)
    cloud.kill("control")
    cloud.kill("host")
    assert cloud.one(server) == before
    cloud.start("control")
    assert cloud.status(server) == "BUILD"
    assert cloud.one(server) == before
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert cloud.one(server) == before
    assert cloud.starts(server) == 1
    cloud.agree()
    remove(cloud, server)


@pytest.mark.slow
def test_while_the_agent_is_away_the_api_tells_the_truth(cloud: FaultCloud) -> None:
    cloud.start("host", "control.claim#2")
    first = cloud.create("first")
    cloud.until_status(first, "ACTIVE")
    before = cloud.one(first)
    second = cloud.create("second")
    cloud.until_stopped("host", "control.claim")
    cloud.kill("host")
    seen: list[str] = []

    def away() -> bool:
        """Every answer on the way counts, not just the last."""
        one, two = cloud.server(first), cloud.server(second)
        assert one is not None
        assert two is not None
        assert (one["status"], two["status"]) == ("ACTIVE", "BUILD")
        if one["host_status"] not in seen:
            seen.append(one["host_status"])
        return bool(one["host_status"] == "DOWN")

    cloud.until("the host is shown as down", away, seconds=120.0)
    assert seen == ["UP", "UNKNOWN", "DOWN"]
    for server in (first, second):
        told = cloud.explain(server)
        assert "has been silent for" in told["reason"]
        assert "when the agent is back" in told["next"]
        assert told["since"]
        assert "host-away" in [item["code"] for item in told["conditions"]]
    cloud.act(first, **{"os-stop": None})  # accepted, and said to be waiting
    found = cloud.server(first)
    assert found is not None
    assert (found["status"], found["OS-EXT-STS:task_state"]) == ("ACTIVE", "powering-off")
    assert "what was asked for waits for it" in cloud.explain(first)["reason"]
    assert cloud.one(first) == before
    cloud.start("host")
    cloud.until_status(first, "SHUTOFF")
    cloud.until_status(second, "ACTIVE")
    cloud.agree()
    remove(cloud, first)
    remove(cloud, second)


def restart_until_it_rests(cloud: FaultCloud, server: str) -> None:
    """A new agent looks, decides, and reports the guest stopped: had it started it, it would not say so."""
    cloud.kill("host")
    cloud.start("host", "control.report.stopped+")
    cloud.until_stopped("host", "control.report.stopped+")
    cloud.go_on(cloud.pid("host"))
    assert cloud.status(server) == "SHUTOFF"
    assert not cloud.qemus(server)


@pytest.mark.slow
def test_a_stop_is_not_undone_by_another_agent(cloud: FaultCloud) -> None:
    cloud.start("host")
    server = cloud.create()
    cloud.until_status(server, "ACTIVE")
    cloud.say(server, "boot_id")
    cloud.act(server, **{"os-stop": None})
    cloud.until_status(server, "SHUTOFF")
    restart_until_it_rests(cloud, server)
    cloud.agree()
    remove(cloud, server)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["there", "away"])
def test_a_guest_that_powers_itself_off_stays_off(cloud: FaultCloud, agent: str) -> None:
    cloud.start("host")
    server = cloud.create()
    cloud.until_status(server, "ACTIVE")
    cloud.say(server, "boot_id")
    if agent == "away":
        cloud.kill("host")
    assert cloud.say(server, "poweroff") == "ok"
    if agent == "away":
        cloud.start("host")
    cloud.until_status(server, "SHUTOFF")
    cloud.until("its process is gone", lambda: not cloud.qemus(server))
    restart_until_it_rests(cloud, server)
    cloud.agree()
    cloud.act(server, **{"os-start": None})
    cloud.until_status(server, "ACTIVE")
    remove(cloud, server)
