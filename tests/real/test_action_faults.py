"""kill -9 of the agent in the middle of an action, with real guests: the action is finished, once."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from tests.real.fault_cloud import FaultCloud
from tests.real.test_faults import cloud as cloud
from tests.real.test_faults import remove
from tests.real.test_faults import template as template
from unstuck.cli.cloud import COMPUTE, connect

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for taps"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]


def running(cloud: FaultCloud) -> str:
    """A server that runs, with something on its disk."""
    cloud.start("host")
    server = cloud.create()
    cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "write kept") == "ok"
    return server


def hit(cloud: FaultCloud, server: str, point: str, **action: object) -> None:
    """Ask for an action and kill the agent at this point of it."""
    cloud.kill("host")
    cloud.start("host", point)
    cloud.act(server, **action)
    cloud.until_stopped("host", point)


def disks(cloud: FaultCloud, server: str) -> list[str]:
    return sorted(path.name for path in Path(cloud.state.host / "servers" / server).glob("disk-*.qcow2"))


@pytest.mark.parametrize("point", ["driver.pause", "driver.pause+", "control.report.paused"])
def test_a_pause_is_finished_and_taken_back(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    guest, boot = cloud.one(server), cloud.say(server, "boot_id")
    hit(cloud, server, point, pause=None)
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "PAUSED")
    assert cloud.one(server) == guest
    cloud.agree()
    cloud.act(server, unpause=None)
    cloud.until_status(server, "ACTIVE")
    assert cloud.one(server) == guest
    assert cloud.say(server, "boot_id") == boot
    remove(cloud, server)


@pytest.mark.parametrize(
    "point",
    [
        "driver.quit+",
        "driver.disk.half",
        "control.report.disk",
        "control.report.disk+",
        "driver.drop_disks",
        "driver.drop_disks+",
        "driver.start.forked",
    ],
)
def test_a_rebuild_has_the_old_disk_or_the_new_one_at_every_moment(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    address, [old] = cloud.address(server), disks(cloud, server)
    found = cloud.server(server)
    assert found is not None
    hit(cloud, server, point, rebuild={"imageRef": found["image"]["id"]})
    assert cloud.status(server) == "REBUILD"
    there = disks(cloud, server)
    if point in ("driver.quit+", "driver.disk.half", "control.report.disk"):
        assert old in there, "the new one is not recorded yet"
    if point in ("driver.drop_disks+", "driver.start.forked"):
        assert old not in there
    assert there
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "boots") == "1"
    assert cloud.address(server) == address
    [new] = disks(cloud, server)
    assert new != old
    cloud.agree()
    remove(cloud, server)


def larger(cloud: FaultCloud) -> str:
    """A flavor with more of everything than the server has."""
    body = {"flavor": {"name": "larger", "vcpus": 2, "ram": 192, "disk": 2, "id": "larger"}}
    with connect(cloud.state) as admin:
        admin.ask("POST", "/compute/v2.1/flavors", json=body, headers=COMPUTE)
    return "larger"


def disk_gib(cloud: FaultCloud, server: str) -> float:
    """The size of its one root disk, as a guest sees it."""
    [path] = Path(cloud.state.host / "servers" / server).glob("disk-*.qcow2")
    return float(struct.unpack_from(">Q", path.read_bytes()[:32], 24)[0]) / (1 << 30)


@pytest.mark.parametrize(
    "point",
    ["driver.quit", "driver.quit+", "driver.grow_disk", "driver.grow.half", "driver.grow_disk+",
     "driver.start.forked", "control.report.running"],
)  # fmt: skip
def test_a_resize_keeps_the_disk_and_ends_with_one_guest(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    [disk], address = disks(cloud, server), cloud.address(server)
    hit(cloud, server, point, resize={"flavorRef": larger(cloud)})
    assert cloud.status(server) == "RESIZE"
    assert disks(cloud, server) == [disk]
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "VERIFY_RESIZE")
    cloud.one(server)
    assert (cloud.say(server, "read"), cloud.address(server)) == ("kept", address)
    assert disk_gib(cloud, server) == 2.0
    cloud.agree()
    cloud.act(server, revertResize=None)
    cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "read") == "kept"
    assert (disks(cloud, server), disk_gib(cloud, server)) == ([disk], 2.0)
    cloud.agree()
    remove(cloud, server)


@pytest.mark.parametrize("point", ["driver.power_down", "driver.quit", "control.report.stopped"])
def test_a_shelved_server_is_off_with_its_disk_where_it_was(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    before = disks(cloud, server)
    hit(cloud, server, point, shelve=None)
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "SHELVED")
    assert not cloud.qemus(server)
    with connect(cloud.state) as admin:
        path = f"/compute/v2.1/servers/{server}/action"
        admin.ask("POST", path, json={"shelveOffload": None}, headers=COMPUTE)
    cloud.until_status(server, "SHELVED_OFFLOADED")
    assert disks(cloud, server) == before
    cloud.agree()
    hit(cloud, server, "driver.start.forked", unshelve=None)
    guest = cloud.one(server)
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert (cloud.one(server), cloud.say(server, "read")) == (guest, "kept")
    cloud.agree()
    remove(cloud, server)


def test_a_delete_overtakes_a_rebuild_whose_agent_was_killed(cloud: FaultCloud) -> None:
    server = running(cloud)
    found = cloud.server(server)
    assert found is not None
    hit(cloud, server, "control.report.disk", rebuild={"imageRef": found["image"]["id"]})
    cloud.delete(server)
    cloud.kill("host")
    cloud.start("host")
    cloud.agree_gone(server)


@pytest.mark.parametrize(
    "point", ["driver.save", "driver.save.half", "driver.save+", "driver.quit", "driver.quit+"]
)
def test_a_suspend_keeps_the_guest_or_its_whole_memory(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    boot = cloud.say(server, "boot_id")
    hit(cloud, server, point, suspend=None)
    assert cloud.qemus(server) or list(Path(cloud.state.host / "servers" / server).glob("memory-1"))
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "SUSPENDED")
    assert not cloud.qemus(server)
    cloud.agree()
    cloud.act(server, resume=None)
    cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "boot_id") == boot
    assert cloud.say(server, "read") == "kept"
    cloud.agree()
    remove(cloud, server)


@pytest.mark.parametrize(
    "point",
    ["driver.start.forked", "driver.start+", "driver.drop_memory", "driver.drop_memory+", "driver.resume+"],
)
def test_a_resume_wakes_the_guest_once(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    boot = cloud.say(server, "boot_id")
    cloud.act(server, suspend=None)
    cloud.until_status(server, "SUSPENDED")
    hit(cloud, server, point, resume=None)
    before = cloud.one(server)
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    assert cloud.one(server) == before
    assert cloud.say(server, "boot_id") == boot
    assert not list(Path(cloud.state.host / "servers" / server).glob("memory-*"))
    cloud.agree()
    remove(cloud, server)
