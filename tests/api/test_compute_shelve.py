"""Shelving through the API: who may, when, what is shown, and the room that it gives up."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow, create_flavor
from unstuck.store.schema.compute import placements

SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    made = Site(cloud.store)
    half = FlavorRow(id="half", name="half", vcpus=1, ram_mb=600 << 10, disk_gb=1)
    made.store.transact(create_flavor, half)
    return made


@pytest.fixture
def server(demo: Cloud, admin: Cloud, site: Site) -> str:
    """A server of the member's that has more than half of its host's memory."""
    unlimited = {"quota_set": {"ram": -1}}
    admin.ask("PUT", f"/compute/v2.1/os-quota-sets/{site.project('demo')}", json=unlimited)
    return create(demo, site)


def create(cloud: Cloud, site: Site) -> str:
    made = cloud.ask("POST", SERVERS, json=site.body(flavorRef="half"))
    assert made.status_code == 202, made.text
    site.settle()
    return str(made.json()["server"]["id"])


def act(cloud: Cloud, server_id: str, name: str, body: Any = None, version: str = "2.96") -> httpx2.Response:
    headers = {"openstack-api-version": f"compute {version}"}
    return cloud.ask("POST", f"{SERVERS}/{server_id}/action", json={name: body}, headers=headers)


def state(cloud: Cloud, server_id: str) -> tuple[str, str | None, int]:
    shown = cloud.get(f"{SERVERS}/{server_id}").json()["server"]
    return shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-STS:power_state"]


def room(tx: Tx) -> tuple[int, int, int]:
    row = tx.execute(sa.select(placements.c.vcpus, placements.c.ram_mb, placements.c.disk_gb)).one()
    return row.vcpus, row.ram_mb, row.disk_gb


ALL, DISK = (1, 600 << 10, 1), (0, 0, 1)


def test_a_shelved_server_keeps_its_room(demo: Cloud, site: Site, server: str) -> None:
    assert act(demo, server, "unshelve").status_code == 409
    assert act(demo, server, "shelve").status_code == 202
    assert state(demo, server) == ("ACTIVE", "shelving", 1)
    for refused in ("shelve", "unshelve", "os-stop", "pause"):
        assert act(demo, server, refused).status_code == 409, refused
    [want] = site.host.wants().values()
    assert 0 < want.patience <= 60, "the guest is asked first"
    site.settle()
    assert state(demo, server) == ("SHELVED", None, 4)
    assert site.store.read(room) == ALL
    for name, body in (
        ("shelve", None), ("os-start", None), ("os-stop", None), ("reboot", {"type": "HARD"}),
        ("rebuild", {"imageRef": site.image}), ("resize", {"flavorRef": "1"}), ("pause", None),
    ):  # fmt: skip
        assert act(demo, server, name, body).status_code == 409, name
    assert len(demo.get(f"{SERVERS}?status=SHELVED").json()["servers"]) == 1
    assert act(demo, server, "unshelve").status_code == 202
    assert state(demo, server) == ("SHELVED", "unshelving", 0)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    actions = demo.get(f"{SERVERS}/{server}/os-instance-actions").json()["instanceActions"]
    assert [row["action"] for row in actions] == ["unshelve", "shelve", "create"]


def test_an_offloaded_one_gives_up_cpus_and_memory_and_keeps_its_disk(
    demo: Cloud, admin: Cloud, site: Site, server: str
) -> None:
    act(demo, server, "shelve")
    site.settle()
    assert act(demo, server, "shelveOffload").status_code == 403
    assert act(admin, server, "shelveOffload").status_code == 202
    assert act(admin, server, "shelveOffload").status_code == 409
    assert state(demo, server) == ("SHELVED_OFFLOADED", None, 4)
    assert site.store.read(room) == DISK
    assert server in site.host.wants(), "its disk is there, so its host knows of it"
    other = create(demo, site)
    assert state(demo, other)[0] == "ACTIVE", "in the room that was given up"
    refused = act(demo, server, "unshelve")
    assert refused.status_code == 409
    assert "No valid host was found" in refused.json()["conflictingRequest"]["message"]
    assert state(demo, server) == ("SHELVED_OFFLOADED", None, 4)
    demo.ask("DELETE", f"{SERVERS}/{other}")
    site.settle()
    assert act(demo, server, "unshelve").status_code == 202
    assert site.store.read(room) == ALL
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


@pytest.mark.parametrize("name", ["os-stop", "pause", "suspend"])
def test_what_is_off_paused_or_suspended_can_be_shelved_and_comes_back_running(
    demo: Cloud, site: Site, server: str, name: str
) -> None:
    act(demo, server, name)
    site.settle()
    assert act(demo, server, "shelve").status_code == 202
    site.settle()
    assert state(demo, server) == ("SHELVED", None, 4)
    act(demo, server, "unshelve")
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_delete_wins(demo: Cloud, admin: Cloud, site: Site, server: str) -> None:
    act(demo, server, "shelve")
    assert demo.ask("DELETE", f"{SERVERS}/{server}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{server}").status_code == 404
    other = create(demo, site)
    act(demo, other, "shelve")
    site.settle()
    act(admin, other, "shelveOffload")
    assert demo.ask("DELETE", f"{SERVERS}/{other}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{other}").status_code == 404


def test_an_operators_mark_takes_no_server_off_its_shelf(
    demo: Cloud, admin: Cloud, site: Site, server: str
) -> None:
    """A reboot is allowed in ERROR, but the room of what was offloaded is somebody else's."""
    act(demo, server, "shelve")
    site.settle()
    act(admin, server, "shelveOffload")
    act(admin, server, "os-resetState", {"state": "error"})
    assert state(demo, server)[0] == "ERROR"
    for name, body in (
        ("reboot", {"type": "HARD"}),
        ("rebuild", {"imageRef": site.image}),
        ("os-stop", None),
    ):
        assert act(demo, server, name, body).status_code == 409, name
    assert act(demo, server, "unshelve").status_code == 202
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


BAD = [
    ({"availability_zone": "nova"}, "2.76", 400, "availability_zone"),
    ({"availability_zone": "mars"}, "2.77", 400, "availability_zone"),
    ({"availability_zone": None}, "2.90", 400, "availability_zone"),
    ({"host": "host-1"}, "2.90", 400, "host"),
    ({"host": "host-1"}, "2.91", 403, "host"),
    ({"why": "x"}, "2.96", 400, "why"),
    ({"availability_zone": "nova"}, "2.96", 409, "availability zone"),
]


@pytest.mark.parametrize(("body", "version", "status", "field"), BAD)
def test_bad_ways_to_unshelve_are_refused(
    demo: Cloud, site: Site, server: str, body: Any, version: str, status: int, field: str
) -> None:
    act(demo, server, "shelve")
    site.settle()
    answer = act(demo, server, "unshelve", body, version)
    assert (answer.status_code, field in answer.text) == (status, True), answer.text
    assert state(demo, server) == ("SHELVED", None, 4)


def test_an_administrator_names_the_host_that_it_is_on(
    admin: Cloud, demo: Cloud, site: Site, server: str
) -> None:
    act(demo, server, "shelve")
    site.settle()
    act(admin, server, "shelveOffload")
    assert act(admin, server, "unshelve", {"host": "elsewhere"}).status_code == 400
    assert act(admin, server, "unshelve", {"host": "host-1", "availability_zone": None}).status_code == 202


def test_others_cannot_touch(admin: Cloud, demo: Cloud, site: Site) -> None:
    theirs = admin.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    site.settle()
    for name in ("shelve", "unshelve"):
        assert act(demo, theirs, name).status_code == 404, name
