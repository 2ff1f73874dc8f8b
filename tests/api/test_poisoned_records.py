"""One record that cannot be read spoils itself and nobody else (law 8): lists never fail for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.store.schema import metadata
from unstuck.store.servers import due_servers

COMPUTE = "/compute/v2.1"
TORN = '{"torn": '


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def poison(cloud: Cloud, table: str, column: str, key: str, value: str = TORN) -> None:
    rows = metadata.tables[table]
    cloud.store.transact(
        lambda tx: tx.execute(sa.update(rows).where(rows.c.id == key).values({column: value}))
    )


def servers(demo: Cloud, site: Site, count: int = 3) -> list[str]:
    body = site.body(networks="auto", min_count=count, max_count=count)
    answer = demo.ask("POST", f"{COMPUTE}/servers", json=body, headers=at("2.96"))
    assert answer.status_code == 202, answer.text
    site.settle()
    listed = demo.get(f"{COMPUTE}/servers").json()["servers"]
    assert len(listed) == count
    return sorted(item["id"] for item in listed)


@pytest.mark.parametrize("value", [TORN, "[]", "null", '"text"', "{}", ""])
@pytest.mark.parametrize("column", ["spec", "seen", "failure", "flavor", "meta", "tags"])
def test_a_servers_poisoned_column_spoils_no_list_and_no_other_server(
    demo: Cloud, admin: Cloud, site: Site, column: str, value: str
) -> None:
    bad, *good = servers(demo, site)
    poison(demo, "servers", column, bad, value)
    harmless = (column, value) in {("meta", "{}"), ("tags", "[]")}
    for version in ("2.1", "2.47", "2.96"):
        answer = demo.get(f"{COMPUTE}/servers/detail", headers=at(version))
        assert answer.status_code == 200, answer.text
        shown = {item["id"]: item for item in json.loads(answer.content)["servers"]}
        assert shown.keys() == {bad, *good}
        assert {shown[item]["status"] for item in good} == {"ACTIVE"}
        assert shown[bad]["status"] == ("ERROR" if column == "failure" else "ACTIVE"), "a fact, no guess"
    assert demo.get(f"{COMPUTE}/servers/{bad}").status_code == 200
    assert demo.get(f"{COMPUTE}/servers/detail?status=ACTIVE").status_code == 200
    assert demo.get(f"{COMPUTE}/limits").status_code == 200
    assert demo.get(f"{COMPUTE}/os-simple-tenant-usage/{site.project('demo')}").status_code == 200
    assert (
        admin.get(f"{COMPUTE}/os-hypervisors/detail?with_servers=true", headers=at("2.53")).status_code == 200
    )
    told = demo.get(f"/unstuck/v1/explain/server/{bad}").json()
    codes = {condition["code"]: condition for condition in told["conditions"]}
    assert ("record-unreadable" in codes) is not harmless
    found = admin.get("/unstuck/v1/unreadable").json()["unreadable"]
    if harmless:
        assert found == []
    else:
        assert column in codes["record-unreadable"]["message"]
        assert [(item["id"], item["columns"]) for item in found] == [(bad, [column])]
        assert "delete the server" in found[0]["remedy"]
    assert {item["code"] for item in _conditions(demo, good[0])} == set()


def _conditions(who: Cloud, server_id: str) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = who.get(f"/unstuck/v1/explain/server/{server_id}").json()["conditions"]
    return conditions


@pytest.mark.parametrize("column", ["spec", "seen", "failure", "flavor", "meta", "tags"])
def test_a_poisoned_server_can_be_deleted_and_leaves_nothing(demo: Cloud, site: Site, column: str) -> None:
    bad, *good = servers(demo, site)
    poison(demo, "servers", column, bad)
    assert demo.ask("DELETE", f"{COMPUTE}/servers/{bad}").status_code == 204
    site.settle()
    assert {item["id"] for item in demo.get(f"{COMPUTE}/servers").json()["servers"]} == set(good)
    assert len(demo.get("/networking/v2.0/ports").json()["ports"]) == len(good)
    assert demo.store.read(due_servers, 10) == []


def test_a_lost_observation_is_told_anew_as_soon_as_somebody_looks(demo: Cloud, site: Site) -> None:
    bad, *_ = servers(demo, site)
    poison(demo, "servers", "seen", bad)
    assert demo.ask("POST", f"{COMPUTE}/servers/{bad}/action", json={"os-stop": None}).status_code == 202
    site.settle()
    assert demo.get(f"{COMPUTE}/servers/{bad}").json()["server"]["status"] == "SHUTOFF"
    assert _conditions(demo, bad) == []


def test_a_server_that_cannot_be_placed_because_its_spec_is_lost_says_just_that(
    demo: Cloud, site: Site
) -> None:
    answer = demo.ask("POST", f"{COMPUTE}/servers", json=site.body())
    bad = answer.json()["server"]["id"]
    poison(demo, "servers", "spec", bad)
    site.settle()
    shown = demo.get(f"{COMPUTE}/servers/{bad}").json()["server"]
    assert shown["status"] == "ERROR"
    assert "cannot be read in the store" in shown["fault"]["message"]
    assert "delete the server" in shown["fault"]["message"]


def test_what_was_poisoned_and_cannot_be_changed_says_so(demo: Cloud, site: Site) -> None:
    bad, *_ = servers(demo, site)
    poison(demo, "servers", "spec", bad)
    body = {"server": {"hostname": "other"}}
    answer = demo.ask("PUT", f"{COMPUTE}/servers/{bad}", json=body, headers=at("2.90"))
    assert answer.status_code == 409
    poison(demo, "servers", "meta", bad)
    answer = demo.ask("POST", f"{COMPUTE}/servers/{bad}/metadata", json={"metadata": {"a": "b"}})
    assert answer.status_code == 200
    assert demo.get(f"{COMPUTE}/servers/{bad}/metadata").json() == {"metadata": {"a": "b"}}


@pytest.mark.parametrize("column", ["facts", "unknown"])
def test_a_poisoned_host_spoils_no_list(admin: Cloud, site: Site, column: str) -> None:
    poison(admin, "hosts", column, site.host.id)
    for path in ("os-hypervisors/detail", "os-services", "os-availability-zone/detail"):
        assert admin.get(f"{COMPUTE}/{path}", headers=at("2.53")).status_code == 200
    assert admin.get("/unstuck/v1/status").status_code == 200
    found = admin.get("/unstuck/v1/unreadable").json()["unreadable"]
    assert [(item["kind"], item["columns"]) for item in found] == [("host", [column])]


@pytest.mark.parametrize("column", ["tags", "properties"])
def test_a_poisoned_image_spoils_no_list_and_boots_nothing_wrong(
    demo: Cloud, site: Site, column: str
) -> None:
    poison(demo, "images", column, site.image)
    assert len(demo.get("/image/v2/images").json()["images"]) == 3
    assert demo.get(f"/image/v2/images/{site.image}").status_code == 200
    answer = demo.ask("POST", f"{COMPUTE}/servers", json=site.body())
    # Without its properties it would boot without the kernel that it needs.
    assert answer.status_code == (400 if column == "properties" else 202), answer.text


def test_poisoned_flavors_projects_and_users_spoil_no_list(admin: Cloud, site: Site) -> None:
    poison(admin, "flavors", "extra_specs", "1")
    poison(admin, "projects", "extra", site.project("demo"))
    users = admin.get("/identity/v3/users").json()["users"]
    poison(admin, "users", "extra", next(item["id"] for item in users if item["name"] == "demo"))
    assert admin.get(f"{COMPUTE}/flavors/detail", headers=at("2.61")).status_code == 200
    assert len(admin.get("/identity/v3/projects").json()["projects"]) > 1
    assert len(admin.get("/identity/v3/users").json()["users"]) == len(users)
    kinds = [item["kind"] for item in admin.get("/unstuck/v1/unreadable").json()["unreadable"]]
    assert kinds == ["flavor", "project", "user"]
