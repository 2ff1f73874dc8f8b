"""Configuration groups in Trove's form: parameters, groups, and the instances that have them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.core.instance.view import Configured
from unstuck.store.engine import Store

NOBODY = "9d0b9f57-3c3c-4d2f-8d38-0d5a3c1f2b11"


@pytest.fixture
def site(cloud: Cloud, store: Store) -> DatabaseSite:
    return DatabaseSite(store)


def make(trove: Trove, values: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body = {"name": "fast", "values": {"work_mem": "8MB", "jit": False} if values is None else values, **more}
    made: dict[str, Any] = trove.post("/configurations", {"configuration": body}, 200)["configuration"]
    return made


def ready(trove: Trove, site: DatabaseSite, **more: Any) -> str:
    key = str(trove.post("/instances", site.body(**more), 200)["instance"]["id"])
    site.settle(4)
    return key


def put(trove: Trove, path: str, body: Any, status: int = 202, method: str = "PUT") -> None:
    answer = trove.ask(method, path, json=body)
    assert (answer.status_code, answer.content) == (status, b""), answer.text


def attach(trove: Trove, instance: str, group: str | None) -> None:
    put(trove, f"/instances/{instance}", {"instance": {"configuration": group}})


def test_parameters_are_listed_with_their_bounds(trove: Trove, site: DatabaseSite) -> None:
    of = f"/datastores/postgresql/versions/{site.version}/parameters"
    listed = {item["name"]: item for item in trove.get(of)["configuration-parameters"]}
    assert len(listed) >= 40
    shown = listed["shared_buffers"]
    assert (shown["type"], shown["restart_required"], shown["unstuck"]["unit"]) == ("integer", True, "8kB")
    assert shown["min"] < shown["max"]
    assert shown["datastore_version_id"] == site.version
    assert "min" not in listed["jit"]
    assert listed["log_statement"]["unstuck"]["choices"] == ["none", "ddl", "mod", "all"]
    for path in (of, "/datastores/postgresql/versions/17/parameters",
                 f"/datastores/versions/{site.version}/parameters"):  # fmt: skip
        assert trove.get(f"{path}/shared_buffers") == shown
        trove.missing("GET", f"{path}/archive_command")
    trove.missing("GET", f"/datastores/versions/{NOBODY}/parameters")
    trove.missing("GET", "/datastores/mysql/versions/8/parameters")


def test_a_group_is_made_shown_changed_and_deleted(trove: Trove, site: DatabaseSite) -> None:
    made = make(trove, description="for reports", datastore={"type": "postgresql", "version": "17"})
    one = f"/configurations/{made['id']}"
    assert trove.get(one)["configuration"] == made
    assert made["values"] == {"work_mem": "8MB", "jit": False}
    assert (made["instance_count"], made["datastore_name"]) == (0, "postgresql")
    assert (made["datastore_version_id"], made["datastore_version_name"]) == (site.version, "17")
    [listed] = trove.get("/configurations")["configurations"]
    assert listed == {key: value for key, value in made.items() if key != "values"}
    put(trove, one, {"configuration": {"values": {"jit": True}}}, 200, "PATCH")
    assert trove.get(one)["configuration"]["values"] == {"work_mem": "8MB", "jit": True}
    put(trove, one, {"configuration": {"values": {"jit": True}, "name": "slow", "description": "x"}})
    shown = trove.get(one)["configuration"]
    assert (shown["values"], shown["name"], shown["description"]) == ({"jit": True}, "slow", "x")
    assert trove.ask("DELETE", one).status_code == 202
    trove.missing("GET", one)
    assert trove.get("/configurations") == {"configurations": []}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"archive_command": "cp"}, "archive_command"), ({"work_mem": "much"}, "work_mem"),
        ({"work_mem": None}, "work_mem"), ({"max_connections": 10**7}, "max_connections"),
        ({"jit": 7}, "jit"), ({"log_statement": "some"}, "log_statement"), ({"": 1}, "no parameter"),
        ({"shared_preload_libraries": "/tmp/x.so"}, "shared_preload_libraries"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_the_parameter_s_name(
    trove: Trove, values: dict[str, Any], word: str
) -> None:
    made = make(trove)
    body = {"configuration": {"name": "bad", "values": values}}
    assert word in trove.refused("POST", "/configurations", 422, "unprocessableEntity", json=body)
    body = {"configuration": {"values": values}}
    one = f"/configurations/{made['id']}"
    for method in ("PUT", "PATCH"):
        assert word in trove.refused(method, one, 422, "unprocessableEntity", json=body)
    assert trove.get(one)["configuration"] == made


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"name": "", "values": {}}, "name"), ({"values": {}}, "name"), ({"name": "x"}, "values"),
        ({"name": "x", "values": {"jit": []}}, "values"), ({"name": "x", "values": []}, "values"),
        ({"name": "x", "values": {}, "datastore": {"type": "mysql"}}, "datastore"),
        ({"name": "x", "values": {}, "datastore": {"version": "9"}}, "datastore.version"),
        ({"name": "x", "values": {}, "colour": "red"}, "colour"),
        ({"name": "x", "values": {f"p{n}": 1 for n in range(201)}}, "configuration.values"),
    ],
)  # fmt: skip
def test_a_bad_group_is_refused_by_field(trove: Trove, body: dict[str, Any], word: str) -> None:
    assert word in trove.bad("POST", "/configurations", json={"configuration": body})
    assert trove.get("/configurations") == {"configurations": []}


def test_an_instance_gets_a_group_and_shows_what_came_of_it(trove: Trove, site: DatabaseSite) -> None:
    group = make(trove)["id"]
    key = ready(trove, site)
    assert "configuration" not in trove.get(f"/instances/{key}")["instance"]
    with site.running():
        attach(trove, key, group)
        shown = trove.get(f"/instances/{key}")["instance"]
        assert (shown["configuration"]["id"], shown["configuration"]["name"]) == (group, "fast")
        # The call waited until it showed.
        assert shown["unstuck"]["configuration"]["applied"] == {"work_mem": "8192kB", "jit": "off"}
        assert trove.get(f"/configurations/{group}/instances") == {"instances": [{"id": key, "name": "shop"}]}
        assert trove.get(f"/configurations/{group}")["configuration"]["instance_count"] == 1
        body = {"configuration": {"values": {"jit": True}}}
        put(trove, f"/configurations/{group}", body, 200, "PATCH")
        shown = trove.get(f"/instances/{key}")["instance"]
        assert shown["unstuck"]["configuration"]["applied"]["jit"] == "on"
    assert "attached" in trove.bad("DELETE", f"/configurations/{group}")
    attach(trove, key, None)
    assert "configuration" not in trove.get(f"/instances/{key}")["instance"]
    assert trove.ask("DELETE", f"/configurations/{group}").status_code == 202


def test_what_waits_for_a_restart_and_what_is_refused_are_said(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site, configuration=make(trove)["id"])
    [server] = site.host.guests
    site.host.views[server] = {"configured": Configured({"jit": "off"}, ("max_connections",))}
    site.settle()
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("RESTART_REQUIRED", "HEALTHY")
    assert shown["unstuck"]["configuration"] == {
        "applied": {"jit": "off"}, "restart_required": ["max_connections"], "refused": None,
    }  # fmt: skip
    site.host.views[server] = {"configured": Configured({}, (), "no memory")}
    site.settle()
    shown = trove.get(f"/instances/{key}")["instance"]
    assert shown["status"] == "ACTIVE"
    assert shown["unstuck"]["configuration"]["refused"] == "no memory"
    said = trove.cloud.get(f"/unstuck/v1/explain/instance/{key}").json()["conditions"]
    assert "parameters-refused" in {item["code"] for item in said}


def test_a_group_that_cannot_fit_is_refused_where_it_is_attached(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    group = make(trove, {"shared_buffers": "1GB"})["id"]
    body = {"instance": {"configuration": group}}
    said = trove.refused("PUT", f"/instances/{key}", 422, "unprocessableEntity", json=body)
    assert "shared_buffers" in said
    assert key in said
    refused = site.body(configuration=group)
    assert "shared_buffers" in trove.refused("POST", "/instances", 422, "unprocessableEntity", json=refused)
    assert len(trove.get("/instances")["instances"]) == 1


def test_the_defaults_are_shown(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    shown = trove.get(f"/instances/{key}/configuration")["instance"]["configuration"]
    assert (shown["shared_buffers"], shown["max_wal_size"]) == ("128MB", "128MB")
    trove.missing("GET", f"/instances/{NOBODY}/configuration")


def test_another_project_s_group_is_not_there(trove: Trove, site: DatabaseSite, admin: Cloud) -> None:
    theirs = make(Trove(admin, "admin"))["id"]
    key = ready(trove, site)
    for method in ("GET", "DELETE"):
        trove.missing(method, f"/configurations/{theirs}")
    trove.missing("GET", f"/configurations/{theirs}/instances")
    trove.missing("PUT", f"/configurations/{theirs}", json={"configuration": {"values": {}}})
    trove.missing("PUT", f"/instances/{key}", json={"instance": {"configuration": theirs}})
    trove.missing("PUT", f"/instances/{key}", json={"instance": {"configuration": "fast"}})
    trove.missing("POST", "/instances", json=site.body(configuration=theirs))


def test_attaching_waits_for_no_agent_that_is_away(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    [server] = site.host.guests
    site.host.silent.add(server)
    site.settle()
    began = time.monotonic()
    attach(trove, key, make(trove)["id"])
    assert time.monotonic() - began < 3


def test_lists_come_in_pages(trove: Trove, site: DatabaseSite) -> None:
    made = sorted(make(trove)["id"] for _ in range(3))
    first = trove.get("/configurations?limit=2")
    assert [item["id"] for item in first["configurations"]] == made[:2]
    [link] = first["links"]
    assert f"marker={made[1]}" in link["href"]
    after = trove.get(f"/configurations?limit=2&marker={made[1]}")
    assert [item["id"] for item in after["configurations"]] == made[2:]
    assert "links" not in after
