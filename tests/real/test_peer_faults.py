"""The faults that real Nova was given (docs/faults.md), by analogy: real processes, guests that outlive them.

The driver is the instant one, as Nova had its fake one. A lost message is a process killed when only it
knew of the work; a broker that is away is a control plane, or a store, that is away.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.proof import proves
from tests.real.fault_cloud import FaultCloud, cloud_in, uploaded
from unstuck.cli.cloud import COMPUTE

pytestmark = [pytest.mark.timeout(600), pytest.mark.root]
MANY = 12


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with the tiny image in it."""
    return uploaded(tmp_path_factory.mktemp("peers") / "state", "instant")


@pytest.fixture
def cloud(tmp_path: Path, template: Path) -> Iterator[FaultCloud]:
    """A state folder in which nothing runs yet."""
    shutil.copytree(template, tmp_path / "state")
    with cloud_in(tmp_path / "state", "instant") as made:
        yield made


def ends_well(cloud: FaultCloud, *servers: str) -> None:
    """ACTIVE, in agreement with this machine, and deletable like any other."""
    for server in servers:
        cloud.until_status(server, "ACTIVE")
        assert cloud.marker(server)
    cloud.agree()
    for server in servers:
        cloud.delete(server)
    for server in servers:
        cloud.agree_gone(server)


def names(cloud: FaultCloud) -> list[str]:
    return [item["name"] for item in cloud.cloud.get("/compute/v2.1/servers", headers=COMPUTE)["servers"]]


@proves("N1", "P15", ends="ACTIVE, the guest untouched")
def test_n01_p15_the_agent_dies_when_the_guest_runs_and_the_record_does_not_say_so(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host", "control.report.running")
    server = cloud.create()
    cloud.until_stopped("host", "control.report.running")
    before = cloud.marker(server)
    cloud.kill("host")
    assert cloud.status(server) == "BUILD"
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert before is not None
    assert cloud.marker(server) == before
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N2", ends="ACTIVE")
def test_n02_the_agent_dies_before_the_guests_start(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host", "driver.start")
    server = cloud.create()
    cloud.until_stopped("host", "driver.start")
    assert cloud.marker(server) is None
    cloud.kill("host")
    cloud.start("host")
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N3", "P22", ends="ACTIVE")
def test_n03_p22_the_agent_is_dead_while_the_order_waits(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host")
    cloud.kill("host")
    server = cloud.create()
    assert cloud.status(server) == "BUILD"
    cloud.start("host")
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N4", ends="ACTIVE")
def test_n04_the_agent_is_dead_while_the_order_waits_and_the_control_plane_dies_too(
    cloud: FaultCloud,
) -> None:
    cloud.start("control")
    cloud.start("host")
    cloud.kill("host")
    server = cloud.create()
    cloud.kill("control")
    cloud.start("control")
    cloud.start("host")
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N5", ends="all 12 ACTIVE")
def test_n05_the_agent_dies_with_many_builds_on_their_way(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host", f"driver.start#{MANY // 2}")
    servers = [cloud.create(f"web-{number}") for number in range(MANY)]
    cloud.until_stopped("host", "driver.start")
    cloud.kill("host")
    cloud.start("host")
    ends_well(cloud, *servers)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [10.0, 5.0])
@proves("N6", "N10", ends="ACTIVE")
def test_n06_n10_the_control_plane_is_away_during_the_start(cloud: FaultCloud, seconds: float) -> None:
    away(cloud, "driver.start", seconds)


@pytest.mark.slow
@proves("N11", "P16", ends="ACTIVE, the guest untouched")
def test_n11_p16_the_control_plane_is_away_for_long_when_the_start_returns(cloud: FaultCloud) -> None:
    away(cloud, "control.report.running", 100.0)


def away(cloud: FaultCloud, point: str, seconds: float) -> None:
    """The control plane is dead for so long while the agent goes on from ``point``."""
    cloud.start("control")
    agent = cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    cloud.kill("control")
    cloud.go_on(agent)
    cloud.until("the guest runs", lambda: cloud.marker(server))
    before = cloud.marker(server)
    time.sleep(seconds)  # this long is the fault
    cloud.start("control")
    cloud.until_status(server, "ACTIVE")
    assert cloud.marker(server) == before
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N7", "P2", ends="ACTIVE: the server exists from the commit on, though its user never heard of it")
def test_n07_p02_the_control_plane_dies_when_only_it_knows_of_the_order(cloud: FaultCloud) -> None:
    cloud.start("control", "commit.create_servers+")
    cloud.start("host")
    lost(cloud)
    cloud.until_stopped("control", "commit.create_servers+")
    cloud.kill("control")
    cloud.start("control")
    found = cloud.cloud.get("/compute/v2.1/servers", headers=COMPUTE)["servers"]
    assert [item["name"] for item in found] == ["web"]
    ends_well(cloud, found[0]["id"])


@proves("P1", ends="no server, no port, no quota in use: as if nobody had asked")
def test_p01_the_control_plane_dies_before_the_commit(cloud: FaultCloud) -> None:
    cloud.start("control", "commit.create_servers")
    cloud.start("host")
    lost(cloud)
    cloud.until_stopped("control", "commit.create_servers")
    cloud.kill("control")
    cloud.start("control")
    assert names(cloud) == []
    assert cloud.cloud.get("/networking/v2.0/ports")["ports"] == []
    limits = cloud.cloud.get("/compute/v2.1/limits")["limits"]["absolute"]
    assert limits["totalInstancesUsed"] == 0
    cloud.agree()
    ends_well(cloud, cloud.create())


def lost(cloud: FaultCloud) -> None:
    """A request for a server whose answer never comes."""
    order = cloud.order("web")
    with pytest.raises(httpx2.TransportError):
        cloud.create_within(1.0, order)


@pytest.mark.slow
@proves("N8", ends="refused at once, nothing created")
def test_n08_a_request_while_the_control_plane_is_down_is_refused_at_once(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host")
    order = cloud.order("web")
    cloud.kill("control")
    began = time.monotonic()
    with pytest.raises(httpx2.ConnectError):
        cloud.create_within(10.0, order)
    assert time.monotonic() - began < 5.0
    cloud.start("control")
    assert names(cloud) == []
    ends_well(cloud, cloud.create())


@pytest.mark.slow
@pytest.mark.parametrize("point", ["store.place", "commit.place", "store.place+"])
@proves("N9", "P4", "P7", ends="ACTIVE")
def test_n09_p04_p07_the_control_plane_dies_while_the_host_is_chosen(cloud: FaultCloud, point: str) -> None:
    cloud.start("control", point)
    cloud.start("host")
    server = cloud.create()
    cloud.until_stopped("control", point)
    cloud.kill("control")
    cloud.start("control")
    ends_well(cloud, server)


@pytest.mark.slow
@proves("N12", "P19", ends="gone after the restart")
@pytest.mark.parametrize("point", ["driver.make_disk", "driver.start", "control.report.running"])
def test_n12_p19_deleted_during_the_build_and_the_agent_is_dead(cloud: FaultCloud, point: str) -> None:
    cloud.start("control")
    cloud.start("host", point)
    server = cloud.create()
    cloud.until_stopped("host", point)
    cloud.kill("host")
    cloud.delete(server)
    cloud.start("host")
    cloud.agree_gone(server)


@pytest.mark.slow
@proves("N13", ends="deleted at once for its user; the guest is gone seconds after the restart")
def test_n13_deleted_while_its_host_is_seen_as_down(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host", "control.report.running")
    server = cloud.create()
    cloud.until_stopped("host", "control.report.running")
    cloud.kill("host")
    cloud.until("its host is seen as down", lambda: host_status(cloud, server) == "DOWN", seconds=120.0)
    cloud.delete(server)
    cloud.until_status(server, "GONE")
    assert cloud.marker(server)
    cloud.start("host")
    cloud.until("the guest is gone", lambda: cloud.marker(server) is None, seconds=20.0)
    cloud.agree_gone(server)


@pytest.mark.slow
@proves("N14", ends="BUILD that says what it waits for; ACTIVE when the host is back within five minutes")
def test_n14_a_request_while_the_only_host_is_seen_as_down(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host")
    first = cloud.create("first")
    cloud.until_status(first, "ACTIVE")
    cloud.kill("host")
    cloud.until("the host is seen as down", lambda: host_status(cloud, first) == "DOWN", seconds=120.0)
    server = cloud.create()
    assert cloud.status(server) == "BUILD"
    assert cloud.explain(server)["reason"]
    cloud.start("host")
    ends_well(cloud, first, server)


def host_status(cloud: FaultCloud, server: str) -> str:
    found = cloud.server(server)
    assert found is not None
    return str(found["host_status"])
