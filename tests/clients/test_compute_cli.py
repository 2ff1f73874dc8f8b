"""The real clients against a real socket, with a host that obeys at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import openstack
import pytest
from running import Running, Shell
from tests.compute_site import KEY


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["Name"] for row in rows}


@pytest.mark.filterwarnings("default")
def test_the_openstack_command(cloud: Running) -> None:
    cli = cloud.cli
    key_file = Path(cloud.store.engine.url.database or "").with_name("key.pub")
    key_file.write_text(KEY)
    cli("keypair", "create", "--public-key", str(key_file), "k")
    cli("flavor", "create", "--ram", "64", "--vcpus", "1", "--disk", "0", "small")
    assert {"small", "t.nano"} <= names(cli("flavor", "list", "-f", "json"))
    made = cli(
        "server", "create", "--image", cloud.site.image, "--flavor", "small", "--key-name", "k",
        "--network", "private", "--property", "a=b", "--wait", "web", "-f", "json",
    )  # fmt: skip
    assert made["status"] == "ACTIVE"
    [row] = cli("server", "list", "--long", "-f", "json")
    assert (row["Name"], row["Status"], row["Power State"]) == ("web", "ACTIVE", 1)
    cli("server", "stop", "web")
    wait(lambda: cli("server", "show", "web", "-f", "json")["status"] == "SHUTOFF")
    cli("server", "start", "web")
    wait(lambda: cli("server", "show", "web", "-f", "json")["status"] == "ACTIVE")
    cli("server", "reboot", "--hard", "--wait", "web")
    assert "line 3" in cli("console", "log", "show", "web")
    actions = cli("server", "event", "list", "web", "-f", "json")
    assert [row["Action"] for row in actions] == ["reboot", "start", "stop", "create"]
    [port] = cli("port", "list", "--server", "web", "-f", "json")
    assert port["Status"] == "ACTIVE"
    cli("server", "delete", "--wait", "web")
    assert cli("server", "list", "-f", "json") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_pause_lock_and_mark_of_the_openstack_command(
    cloud: Running, sdk: openstack.connection.Connection
) -> None:
    cli = cloud.cli
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)

    def shows(wanted: str) -> bool:
        return bool(sdk.compute.get_server(server.id).status == wanted)

    cli("server", "pause", "web")
    wait(lambda: shows("PAUSED"))
    cli("server", "unpause", "web")
    wait(lambda: shows("ACTIVE"))
    cli("server", "suspend", "web")
    wait(lambda: shows("SUSPENDED"))
    cli("server", "resume", "web")
    wait(lambda: shows("ACTIVE"))
    cli("--os-compute-api-version", "2.73", "server", "lock", "--reason", "audit", "web")
    locked = cli("--os-compute-api-version", "2.73", "server", "show", "web", "-f", "json")
    assert (locked["locked"], locked["locked_reason"]) == (True, "audit")
    cli("server", "unlock", "web")
    cli("server", "set", "--state", "error", "--auto-approve", "web")
    assert shows("ERROR")
    cli("server", "set", "--state", "active", "--auto-approve", "web")
    assert shows("ACTIVE")
    cli("server", "rebuild", "--wait", "--image", cloud.site.image, "--name", "again", "web")
    assert sdk.compute.get_server(server.id).name == "again"
    actions = [action.action for action in sdk.compute.server_actions(server)]
    assert actions == [
        "rebuild",
        "resetState",
        "resetState",
        "unlock",
        "lock",
        "resume",
        "suspend",
        "unpause",
        "pause",
        "create",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_resize_of_the_openstack_command(cloud: Running, sdk: openstack.connection.Connection) -> None:
    cli = cloud.cli
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)

    def shows(status: str, flavor: str) -> bool:
        found = sdk.compute.get_server(server.id)
        return bool(found.status == status and found.flavor.original_name == flavor)

    cli("server", "resize", "--flavor", "t.micro", "--wait", "web")
    assert shows("VERIFY_RESIZE", "t.micro")
    assert names(cli("server", "list", "--status", "VERIFY_RESIZE", "-f", "json")) == {"web"}
    cli("server", "resize", "revert", "web")
    wait(lambda: shows("ACTIVE", "t.nano"))
    cli("server", "resize", "--flavor", "t.micro", "--wait", "web")
    cli("server", "resize", "confirm", "web")
    assert shows("ACTIVE", "t.micro")
    sdk.compute.resize_server(server, sdk.compute.find_flavor("m1.tiny"))
    wait(lambda: shows("VERIFY_RESIZE", "m1.tiny"))
    sdk.compute.confirm_server_resize(server)
    assert shows("ACTIVE", "m1.tiny")
    actions = [action.action for action in sdk.compute.server_actions(server)]
    assert actions == [
        "confirmResize",
        "resize",
        "confirmResize",
        "resize",
        "revertResize",
        "resize",
        "create",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_shelving_of_the_openstack_command(cloud: Running, sdk: openstack.connection.Connection) -> None:
    cli = cloud.cli
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)

    def shows(status: str) -> bool:
        return bool(sdk.compute.get_server(server.id).status == status)

    cli("server", "shelve", "--wait", "web")
    assert shows("SHELVED")
    cli("server", "unshelve", "--wait", "web")
    assert shows("ACTIVE")
    cli("server", "shelve", "--offload", "--wait", "web")
    assert shows("SHELVED_OFFLOADED")
    assert names(cli("server", "list", "--status", "SHELVED_OFFLOADED", "-f", "json")) == {"web"}
    cli("server", "unshelve", "--availability-zone", "nova", "--wait", "web")
    assert shows("ACTIVE")
    sdk.compute.shelve_server(server)
    wait(lambda: shows("SHELVED"))
    sdk.compute.shelve_offload_server(server)
    assert shows("SHELVED_OFFLOADED")
    sdk.compute.unshelve_server(server, host="host-1")
    wait(lambda: shows("ACTIVE"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_image_of_the_openstack_command(cloud: Running, sdk: openstack.connection.Connection) -> None:
    cli = cloud.cli
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)
    made = cli(
        "server", "image", "create", "--name", "copy", "--property", "a=b", "--wait", "web", "-f", "json"
    )
    assert (made["name"], made["status"]) == ("copy", "active")
    assert names(cli("image", "list", "--property", f"instance_uuid={server.id}", "-f", "json")) == {"copy"}
    cli(
        "server",
        "create",
        "--image",
        "copy",
        "--flavor",
        "t.nano",
        "--network",
        "private",
        "--wait",
        "second",
    )
    second = sdk.create_image_snapshot("again", server.id, wait=True, timeout=30)
    assert second.status == "active"
    cli("image", "delete", "copy", "again")


@pytest.mark.filterwarnings("default")
def test_a_console_url_of_either_kind_and_a_word_about_the_others(
    cloud: Running, sdk: openstack.connection.Connection
) -> None:
    sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)
    base = f"127.0.0.1:{cloud.port}/console?token="
    assert cloud.cli("console", "url", "show", "web", "-f", "json")["url"].startswith(f"http://{base}")
    shown = cloud.cli("console", "url", "show", "--serial", "web", "-f", "json")
    assert shown["url"].startswith(f"ws://{base}")
    assert (shown["protocol"], shown["type"]) == ("serial", "serial")
    status, _, errors = Shell(cloud).run("console", "url", "show", "--spice", "web")
    assert status == 1
    assert "Unavailable console type" in errors
    assert "serial console" in errors


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_pause_lock_and_mark_of_the_sdk(cloud: Running, sdk: openstack.connection.Connection) -> None:
    server = sdk.create_server("web", image=cloud.site.image, flavor="t.nano", wait=True, timeout=30)
    compute = sdk.compute

    def becomes(status: str) -> None:
        # A fresh copy: the one that was shown before would count as there already.
        compute.wait_for_server(compute.get_server(server.id), status, failures=[], interval=0.2, wait=20)

    compute.pause_server(server)
    becomes("PAUSED")
    compute.unpause_server(server)
    becomes("ACTIVE")
    compute.suspend_server(server)
    becomes("SUSPENDED")
    compute.resume_server(server)
    becomes("ACTIVE")
    compute.lock_server(server, locked_reason="audit")
    assert compute.get_server(server.id).is_locked
    compute.unlock_server(server)
    compute.reset_server_state(server, "error")
    becomes("ERROR")
    compute.reset_server_state(server, "active")
    becomes("ACTIVE")
    rebuilt = sdk.rebuild_server(server.id, cloud.site.image, wait=True, timeout=20)
    assert (rebuilt.id, rebuilt.status) == (server.id, "ACTIVE")


@pytest.mark.filterwarnings("default")
def test_lists_of_the_openstack_command(cloud: Running) -> None:
    cli = cloud.cli
    [host] = cli("hypervisor", "list", "-f", "json")
    assert host["State"] == "up"
    [service] = cli("compute", "service", "list", "-f", "json")
    assert (service["Binary"], service["State"]) == ("nova-compute", "up")
    [zone] = cli("availability", "zone", "list", "-f", "json")
    assert (zone["Zone Name"], zone["Zone Status"]) == ("nova", "available")
    assert names(cli("network", "list", "-f", "json")) == {"private"}
    assert names(cli("subnet", "list", "-f", "json")) == {"private-v4"}


def wait(ready: Any) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline


@pytest.mark.filterwarnings("default")
def test_the_sdk(cloud: Running, sdk: openstack.connection.Connection) -> None:
    made = sdk.create_keypair("k2", KEY)
    assert made.name == "k2"
    server = sdk.create_server(
        "sdk", image=cloud.site.image, flavor="t.nano", key_name="k2", wait=True, timeout=30
    )
    assert server.status == "ACTIVE"
    assert server.private_v4 or server.addresses["private"]
    compute = sdk.compute
    compute.stop_server(server)
    compute.wait_for_server(server, "SHUTOFF", interval=0.2, wait=20)
    compute.start_server(server)
    compute.wait_for_server(server, "ACTIVE", interval=0.2, wait=20)
    compute.reboot_server(server, "SOFT")
    compute.wait_for_server(server, "ACTIVE", interval=0.2, wait=20)
    assert "line 1" in compute.get_server_console_output(server)["output"]
    assert {action.action for action in compute.server_actions(server)} >= {"create", "stop"}
    assert [item.name for item in compute.servers()] == ["sdk"]
    assert [item.name for item in compute.servers(details=False, limit=1)] == ["sdk"]
    compute.set_server_metadata(server, a="b")
    assert compute.get_server_metadata(server).metadata == {"a": "b"}
    compute.update_server(server, name="renamed")
    assert compute.find_server("renamed").id == server.id
    assert sdk.get_compute_limits().total_instances_used == 1
    assert sdk.get_compute_quotas("admin").instances == 100
    assert [item.name for item in compute.hypervisors(details=True)] == ["host-1"]
    assert sdk.list_availability_zone_names() == ["nova"]
    [port] = sdk.network.ports(device_id=server.id)
    assert port.mac_address.startswith("52:54")
    assert sdk.network.find_security_group("default") is not None
    assert sdk.network.get_network(port.network_id).name == "private"
    assert sdk.delete_server("renamed", wait=True, timeout=20)
    assert sdk.delete_keypair("k2")
