"""An image that is deleted, or cut off, while a host fetches it. Real processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.fault_cloud import FaultCloud
from tests.real.test_faults import cloud, pytestmark, template
from unstuck.cli.cloud import COMPUTE, connect

__all__ = ["cloud", "pytestmark", "template"]


def delete_images(cloud: FaultCloud) -> None:
    with connect(cloud.state) as admin:
        for image in admin.get("/image/v2/images")["images"]:
            admin.ask("DELETE", f"/image/v2/images/{image['id']}")


def shown(cloud: FaultCloud, server_id: str) -> dict[str, Any]:
    answer = cloud.cloud.client.get(f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)
    found: dict[str, Any] = answer.json()["server"]
    return found


def test_an_image_that_is_deleted_and_cut_off_in_its_fetch_ends_in_error_with_the_reason(
    cloud: FaultCloud,
) -> None:
    cloud.start("host", barrier="driver.fetch.half")
    server = cloud.create()
    cloud.until_stopped("host", "driver.fetch.half")
    delete_images(cloud)
    cloud.kill("host")
    cloud.start("host")
    cloud.until(
        "it is told", lambda: shown(cloud, server)["status"] == "ERROR", lambda: str(shown(cloud, server))
    )
    message = shown(cloud, server)["fault"]["message"]
    assert "No image found" in message
    assert "rebuild the server from another image" in message
    assert not list(cloud.state.host.glob("images/*.part*"))
    cloud.delete(server)
    cloud.agree_gone(server)


@pytest.mark.slow
def test_an_image_that_is_deleted_in_its_fetch_is_fetched_to_its_end(cloud: FaultCloud) -> None:
    """Who reads it already has it: its bytes stay until then."""
    pid = cloud.start("host", barrier="driver.fetch.half")
    server = cloud.create()
    cloud.until_stopped("host", "driver.fetch.half")
    delete_images(cloud)
    cloud.go_on(pid)
    # Whether the other two of its three images were asked for in time is open: both ends are true ones.
    cloud.until(
        "it settles",
        lambda: shown(cloud, server)["status"] in ("ACTIVE", "ERROR"),
        lambda: str(shown(cloud, server)),
    )
    found = shown(cloud, server)
    assert found["status"] == "ACTIVE" or "No image found" in found["fault"]["message"]
    cloud.delete(server)
    cloud.agree_gone(server)


@pytest.mark.slow
@pytest.mark.parametrize("after", ["at once", "later"])
def test_a_fetch_that_is_cut_off_with_its_control_plane_is_begun_again(cloud: FaultCloud, after: str) -> None:
    pid = cloud.start("host", barrier="driver.fetch.half")
    server = cloud.create()
    cloud.until_stopped("host", "driver.fetch.half")
    cloud.kill("control")
    cloud.go_on(pid)
    if after == "later":
        cloud.until("the cut fetch is cleared", lambda: not list(cloud.state.host.glob("images/*.part*")))
    cloud.start("control")
    cloud.until_status(server, "ACTIVE")
    cloud.delete(server)
    cloud.agree_gone(server)
