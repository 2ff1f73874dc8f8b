"""Images of the disks of real guests: what is on them, whoever dies meanwhile, and what boots from them."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.real.fault_cloud import FaultCloud
from tests.real.test_action_faults import disks, hit, running
from tests.real.test_faults import cloud as cloud
from tests.real.test_faults import remove
from tests.real.test_faults import template as template
from unstuck.cli.cloud import COMPUTE

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for taps"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]


def image(cloud: FaultCloud, name: str = "copy") -> dict[str, Any] | None:
    found = [item for item in cloud.cloud.get("/image/v2/images")["images"] if item["name"] == name]
    return found[0] if found else None


def until_active(cloud: FaultCloud, name: str = "copy") -> dict[str, Any]:
    def active() -> dict[str, Any] | None:
        found = image(cloud, name)
        return found if found is not None and found["status"] == "active" else None

    return cloud.until(f"image {name} is active", active)


def boot(cloud: FaultCloud, image_id: str) -> str:
    """A second server, from the image."""
    order = cloud.order("second")
    order["server"]["imageRef"] = image_id
    answer = cloud.cloud.ask("POST", "/compute/v2.1/servers", json=order, headers=COMPUTE)
    made = str(answer.json()["server"]["id"])
    cloud.until_status(made, "ACTIVE")
    return made


def nothing_left(cloud: FaultCloud, server: str) -> None:
    cloud.until(
        "no image is left on the host",
        lambda: not list((cloud.state.host / "servers" / server).glob("image-*")),
    )
    cloud.agree()


def test_an_image_of_a_running_guest_boots_with_what_was_on_its_disk(cloud: FaultCloud) -> None:
    server = running(cloud)
    guest, boot_id = cloud.one(server), cloud.say(server, "boot_id")
    cloud.act(server, createImage={"name": "copy"})
    made = until_active(cloud)
    cloud.until_status(server, "ACTIVE")
    assert (cloud.one(server), cloud.say(server, "boot_id")) == (guest, boot_id), "it ran on"
    assert (made["disk_format"], made["min_disk"], made["image_type"]) == ("qcow2", 1, "snapshot")
    nothing_left(cloud, server)
    second = boot(cloud, made["id"])
    assert cloud.say(second, "read") == "kept"
    cloud.act(server, createImage={"name": "again"})
    until_active(cloud, "again")
    cloud.until_status(server, "ACTIVE")
    remove(cloud, second)
    remove(cloud, server)


@pytest.mark.parametrize("state", ["os-stop", "pause", "suspend"])
def test_an_image_of_a_guest_that_does_not_run(cloud: FaultCloud, state: str) -> None:
    server = running(cloud)
    cloud.act(server, **{state: None})
    becomes = {"os-stop": "SHUTOFF", "pause": "PAUSED", "suspend": "SUSPENDED"}[state]
    cloud.until_status(server, becomes)
    cloud.act(server, createImage={"name": "copy"})
    made = until_active(cloud)
    cloud.until_status(server, becomes)
    nothing_left(cloud, server)
    second = boot(cloud, made["id"])
    assert cloud.say(second, "read") == "kept"
    remove(cloud, second)
    remove(cloud, server)


@pytest.mark.parametrize(
    "point", ["driver.capture", "driver.capture+", "driver.capture.half", "driver.drop_copies"]
)
@pytest.mark.parametrize("on", [True, False])
def test_an_image_whose_agent_is_killed_is_made_all_the_same(cloud: FaultCloud, point: str, on: bool) -> None:
    server = running(cloud)
    if not on:
        cloud.act(server, **{"os-stop": None})
        cloud.until_status(server, "SHUTOFF")
    before = disks(cloud, server)
    hit(cloud, server, point, createImage={"name": "copy"})
    cloud.kill("host")
    cloud.start("host")
    until_active(cloud)
    cloud.until_status(server, "ACTIVE" if on else "SHUTOFF")
    nothing_left(cloud, server)
    assert disks(cloud, server) == before
    if not on:
        cloud.act(server, **{"os-start": None})
        cloud.until_status(server, "ACTIVE")
    assert cloud.say(server, "read") == "kept"
    remove(cloud, server)


@pytest.mark.parametrize("point", ["driver.capture+", "driver.capture.half"])
def test_a_delete_overtakes_an_image_whose_agent_was_killed(cloud: FaultCloud, point: str) -> None:
    server = running(cloud)
    hit(cloud, server, point, createImage={"name": "copy"})
    cloud.delete(server)
    assert image(cloud) is None
    cloud.kill("host")
    cloud.start("host")
    cloud.agree_gone(server)


def test_an_image_that_is_deleted_while_it_is_made_leaves_nothing(cloud: FaultCloud) -> None:
    server = running(cloud)
    hit(cloud, server, "driver.capture.half", createImage={"name": "copy"})
    found = image(cloud)
    assert found is not None
    cloud.cloud.ask("DELETE", f"/image/v2/images/{found['id']}")
    cloud.kill("host")
    cloud.start("host")
    cloud.until_status(server, "ACTIVE")
    nothing_left(cloud, server)
    assert image(cloud) is None
    assert cloud.say(server, "read") == "kept"
    remove(cloud, server)
