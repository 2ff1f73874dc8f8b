"""Resize through the API: who may, when, what is shown, and the room that is taken for it."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.store.engine import Store, Tx
from unstuck.store.flavors import FlavorRow, create_flavor
from unstuck.store.schema.compute import operations, placements

SERVERS = "/compute/v2.1/servers"
LATEST = {"openstack-api-version": "compute 2.96"}
SIZES = {"small": (1, 64, 1), "large": (4, 512, 3), "flat": (2, 256, 0)}


@pytest.fixture
def site(cloud: Cloud) -> Site:
    made = Site(cloud.store)
    for name, (vcpus, ram, disk) in SIZES.items():
        row = FlavorRow(id=name, name=name, vcpus=vcpus, ram_mb=ram, disk_gb=disk)
        made.store.transact(create_flavor, row)
    return made


@pytest.fixture
def server(demo: Cloud, site: Site) -> str:
    """A server of the member's, of the flavor ``small``, and it runs."""
    made = demo.ask("POST", SERVERS, json=site.body(flavorRef="small"))
    assert made.status_code == 202, made.text
    site.settle()
    return str(made.json()["server"]["id"])


def act(cloud: Cloud, server_id: str, name: str, body: Any = None) -> httpx2.Response:
    return cloud.ask("POST", f"{SERVERS}/{server_id}/action", json={name: body}, headers=LATEST)


def resize(cloud: Cloud, server_id: str, flavor: str, **more: Any) -> httpx2.Response:
    return act(cloud, server_id, "resize", {"flavorRef": flavor, **more})


def show(cloud: Cloud, server_id: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.get(f"{SERVERS}/{server_id}", headers=LATEST).json()["server"]
    return found


def state(cloud: Cloud, server_id: str) -> tuple[str, str | None, int]:
    shown = show(cloud, server_id)
    return shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-STS:power_state"]


def room(store: Store) -> tuple[int, int, int]:
    """(vCPUs, MiB, GiB) that are taken on the host."""

    def read(tx: Tx) -> tuple[int, int, int]:
        row = tx.execute(sa.select(placements.c.vcpus, placements.c.ram_mb, placements.c.disk_gb)).one()
        return row.vcpus, row.ram_mb, row.disk_gb

    return store.read(read)


def used(cloud: Cloud) -> tuple[int, int]:
    limits = cloud.get("/compute/v2.1/limits").json()["limits"]["absolute"]
    return limits["totalCoresUsed"], limits["totalRAMUsed"]


def test_a_resize_that_is_confirmed(demo: Cloud, site: Site, server: str) -> None:
    for early in ("confirmResize", "revertResize"):
        assert act(demo, server, early).status_code == 409
    assert resize(demo, server, "large").status_code == 202
    assert state(demo, server) == ("RESIZE", "resize_prep", 1)
    assert (room(site.store), used(demo)) == (SIZES["large"], (4, 512))
    for name, body in (
        ("resize", {"flavorRef": "flat"}), ("confirmResize", None), ("revertResize", None), ("pause", None),
        ("os-stop", None), ("reboot", {"type": "HARD"}),
    ):  # fmt: skip
        assert act(demo, server, name, body).status_code == 409, name
    [want] = site.host.wants().values()
    assert (want.spec.flavor.vcpus, want.spec.flavor.ram_mb, want.spec.flavor.disk_gb) == SIZES["large"]
    assert (want.soft, 0 < want.patience <= 60) == (True, True)
    site.settle()
    assert state(demo, server) == ("VERIFY_RESIZE", None, 1)
    assert show(demo, server)["flavor"]["original_name"] == "large"
    for status in ("VERIFY_RESIZE", "verify_resize"):
        [listed] = demo.get(f"{SERVERS}?status={status}", headers=LATEST).json()["servers"]
        assert listed["id"] == server
    for name, body in (("os-stop", None), ("reboot", {"type": "HARD"}), ("resize", {"flavorRef": "flat"})):
        assert act(demo, server, name, body).status_code == 409, name
    assert act(demo, server, "confirmResize").status_code == 204
    assert state(demo, server) == ("ACTIVE", None, 1)
    assert (room(site.store), used(demo)) == (SIZES["large"], (4, 512))
    actions = demo.get(f"{SERVERS}/{server}/os-instance-actions").json()["instanceActions"]
    assert [row["action"] for row in actions] == ["confirmResize", "resize", "create"]
    assert act(demo, server, "confirmResize").status_code == 409


def test_a_resize_that_is_taken_back_leaves_the_disk_as_large_as_it_was_made(
    demo: Cloud, site: Site, server: str
) -> None:
    resize(demo, server, "large")
    site.settle()
    assert act(demo, server, "revertResize").status_code == 202
    assert state(demo, server) == ("REVERT_RESIZE", "resize_reverting", 1)
    assert room(site.store) == SIZES["large"], "its guest still has all of it"
    assert act(demo, server, "confirmResize").status_code == 409
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    shown = show(demo, server)["flavor"]
    assert (shown["original_name"], shown["disk"]) == ("small", 1)
    assert (room(site.store), used(demo)) == ((1, 64, 3), (1, 64))
    assert resize(demo, server, "large").status_code == 202
    site.settle()
    assert act(demo, server, "confirmResize").status_code == 204


def test_down_it_keeps_room_to_be_taken_back(demo: Cloud, site: Site, server: str) -> None:
    resize(demo, server, "large")
    site.settle()
    act(demo, server, "confirmResize")
    down = FlavorRow(id="down", name="down", vcpus=1, ram_mb=64, disk_gb=3)
    site.store.transact(create_flavor, down)
    assert resize(demo, server, "down").status_code == 202
    site.settle()
    assert (room(site.store), used(demo)) == ((4, 512, 3), (4, 512))
    assert act(demo, server, "confirmResize").status_code == 204
    assert (room(site.store), used(demo)) == ((1, 64, 3), (1, 64))


def test_a_stopped_server_is_resized_and_stays_stopped(demo: Cloud, site: Site, server: str) -> None:
    act(demo, server, "os-stop")
    site.settle()
    assert resize(demo, server, "large").status_code == 202
    assert state(demo, server) == ("RESIZE", "resize_prep", 4)
    site.settle()
    assert state(demo, server) == ("VERIFY_RESIZE", None, 4)
    act(demo, server, "confirmResize")
    assert state(demo, server) == ("SHUTOFF", None, 4)
    assert act(demo, server, "os-start").status_code == 202
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_a_paused_server_is_not_resized(demo: Cloud, site: Site, server: str) -> None:
    act(demo, server, "pause")
    site.settle()
    assert resize(demo, server, "large").status_code == 409


def test_delete_wins_in_every_state_of_a_resize(demo: Cloud, site: Site, server: str) -> None:
    def another() -> str:
        made = demo.ask("POST", SERVERS, json=site.body(flavorRef="small")).json()["server"]["id"]
        site.settle()
        resize(demo, made, "large")
        return str(made)

    resizing = another()
    assert demo.ask("DELETE", f"{SERVERS}/{resizing}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{resizing}").status_code == 404
    resized = another()
    site.settle()
    assert demo.ask("DELETE", f"{SERVERS}/{resized}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{resized}").status_code == 404
    reverting = another()
    site.settle()
    act(demo, reverting, "revertResize")
    assert demo.ask("DELETE", f"{SERVERS}/{reverting}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{reverting}").status_code == 404
    assert room(site.store) == SIZES["small"], "the one that was not touched"


def test_a_host_without_room_says_so_and_nothing_is_changed(demo: Cloud, site: Site, server: str) -> None:
    demo.store.transact(lambda tx: create_flavor(tx, FlavorRow(id="wide", name="wide", vcpus=1, ram_mb=64,
                                                               disk_gb=20_000)))  # fmt: skip
    answer = resize(demo, server, "wide")
    assert answer.status_code == 400
    assert "No valid host was found" in answer.json()["badRequest"]["message"]
    assert state(demo, server) == ("ACTIVE", None, 1)
    assert room(site.store) == SIZES["small"]


def test_the_quota_counts(demo: Cloud, admin: Cloud, site: Site, server: str) -> None:
    project = site.project("demo")
    limit = {"quota_set": {"cores": 3, "ram": 512}}
    assert admin.ask("PUT", f"/compute/v2.1/os-quota-sets/{project}", json=limit).status_code == 200
    answer = resize(demo, server, "large")
    assert answer.status_code == 403
    assert "Quota exceeded for cores" in answer.json()["forbidden"]["message"]
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_an_overdue_resize_can_be_taken_back(demo: Cloud, site: Site, server: str) -> None:
    resize(demo, server, "large")
    assert act(demo, server, "revertResize").status_code == 409
    past = sa.update(operations).where(operations.c.state == "open").values(deadline=0.0)
    site.store.transact(lambda tx: tx.execute(past) and None)
    assert act(demo, server, "revertResize").status_code == 202
    site.settle()
    assert (state(demo, server), show(demo, server)["flavor"]["original_name"]) == (
        ("ACTIVE", None, 1),
        "small",
    )


BAD = [
    ({}, "flavorRef"),
    ({"flavorRef": ""}, "flavorRef"),
    ({"flavorRef": "nowhere"}, "flavorRef"),
    ({"flavorRef": None}, "flavorRef"),
    ({"flavorRef": "small"}, "flavorRef"),
    ({"flavorRef": "flat"}, "disk"),
    ({"flavorRef": "large", "OS-DCF:diskConfig": "x"}, "diskConfig"),
    ({"flavorRef": "large", "why": "x"}, "why"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_bad_resizes_name_the_field_and_change_nothing(
    demo: Cloud, site: Site, server: str, body: dict[str, Any], field: str
) -> None:
    before = show(demo, server)
    answer = act(demo, server, "resize", body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["badRequest"]["message"]
    assert show(demo, server) == before


def test_others_cannot_touch(admin: Cloud, demo: Cloud, site: Site) -> None:
    theirs = admin.ask("POST", SERVERS, json=site.body(flavorRef="small")).json()["server"]["id"]
    site.settle()
    for name, body in (("resize", {"flavorRef": "large"}), ("confirmResize", None), ("revertResize", None)):
        assert act(demo, theirs, name, body).status_code == 404, name


def test_a_resize_explains_itself(demo: Cloud, site: Site, server: str) -> None:
    resize(demo, server, "large")
    site.settle()
    told = demo.get(f"/unstuck/v1/explain/server/{server}").json()
    assert "new flavor" in told["reason"]
    assert "confirms" in told["next"]
