"""Instances through the database API: from create to delete, and what is refused on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.store.engine import Store

NOBODY = "9d0b9f57-3c3c-4d2f-8d38-0d5a3c1f2b11"


def make(trove: Trove, site: DatabaseSite, **more: Any) -> str:
    made = trove.post("/instances", site.body(**more), 200)["instance"]
    return str(made["id"])


def ready(trove: Trove, site: DatabaseSite, **more: Any) -> str:
    key = make(trove, site, **more)
    site.settle(4)
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY"), shown["unstuck"]
    return key


def test_an_instance_is_built_shown_and_deleted(trove: Trove, site: DatabaseSite) -> None:
    made = trove.post("/instances", site.body(), 200)["instance"]
    assert made["status"] == "BUILD"
    assert made["operating_status"] == ""
    assert made["flavor"]["id"] == "3"
    assert made["volume"] == {"size": 1}
    assert made["datastore"] == {"type": "postgresql", "version": "17", "version_number": "17"}
    assert made["access"]["is_public"] is False
    assert made["unstuck"]["reason"]
    assert made["unstuck"]["by_seconds"] is not None
    assert "password" not in str(made)
    site.settle(4)
    shown = trove.get(f"/instances/{made['id']}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY")
    assert shown["volume"] == {"size": 1, "used": 0.1, "used_percent": 10.0}
    [address] = shown["addresses"]
    assert address["type"] == "private"
    assert shown["ip"] == [address["address"]]
    assert "server_id" not in shown
    [listed] = trove.get("/instances")["instances"]
    assert listed["id"] == made["id"]
    [detailed] = trove.get("/instances/detail")["instances"]
    assert detailed["created"] == shown["created"]
    assert trove.ask("DELETE", f"/instances/{made['id']}").status_code == 202
    trove.missing("GET", f"/instances/{made['id']}")
    assert trove.get("/instances")["instances"] == []


def test_a_password_is_written_nowhere(
    trove: Trove, site: DatabaseSite, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    secret = "never-write-this-down"
    user = {"name": "anna", "password": secret}
    answers = [trove.ask("POST", "/instances", json=site.body(users=[user])).text]
    for wrong in ({"users": [{**user, "colour": 1}]}, {"users": [{**user, "host": "h"}]}, {"users": secret}):
        answers.append(trove.bad("POST", "/instances", json=site.body(**wrong)))
    site.settle(4)
    key = trove.get("/instances")["instances"][0]["id"]
    with site.running():
        answers.append(trove.ask("POST", f"/instances/{key}/users", json={"users": [user]}).text)
        change = {"user": {"password": secret}}
        answers.append(trove.ask("PUT", f"/instances/{key}/users/anna", json=change).text)
    assert len(site.host.asked) == 2
    assert secret not in "".join(answers)
    out, errors = capfd.readouterr()
    assert secret not in caplog.text + out + errors
    for file in tmp_path.iterdir():
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_servers_of_instances_are_in_no_list_of_their_owner(
    trove: Trove, operator: Trove, site: DatabaseSite, demo: Cloud, admin: Cloud
) -> None:
    key = ready(trove, site)
    assert demo.get("/compute/v2.1/servers").json()["servers"] == []
    shown = operator.get(f"/mgmt/instances/{key}")["instance"]
    server = admin.get(f"/compute/v2.1/servers/{shown['server']['id']}").json()["server"]
    assert server["name"] == "shop" == shown["server"]["name"]
    assert demo.get(f"/compute/v2.1/servers/{shown['server']['id']}").status_code == 404


def test_what_is_another_projects_is_not_there(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    key = make(operator, site)
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("GET", "/backups"), ("GET", "/databases"), ("GET", "/root"),
    ):  # fmt: skip
        assert key in trove.missing(method, f"/instances/{key}{path}")
    trove.missing("PUT", f"/instances/{key}", json={"instance": {"name": "mine"}})
    trove.missing("POST", f"/instances/{key}/action", json={"restart": {}})
    other = trove.cloud.get(f"/database/v1.0/{operator.project}/instances")
    assert (other.status_code, list(other.json())) == (403, ["forbidden"])


def test_an_administrator_sees_any_and_names_any_project(
    trove: Trove, operator: Trove, site: DatabaseSite
) -> None:
    key = ready(trove, site)
    assert operator.get(f"/instances/{key}")["instance"]["tenant_id"] == trove.project
    assert operator.get("/instances")["instances"] == []
    theirs = operator.cloud.get(f"/database/v1.0/{trove.project}/instances").json()["instances"]
    assert [item["id"] for item in theirs] == [key]
    [managed] = operator.get("/mgmt/instances?deleted=False")["instances"]
    assert managed["tenant_id"] == trove.project
    assert operator.get(f"/mgmt/instances?project_id={operator.project}")["instances"] == []
    trove.refused("GET", "/mgmt/instances", 403, "forbidden")


def test_a_name_where_an_id_stands_is_not_there(trove: Trove, site: DatabaseSite) -> None:
    make(trove, site)
    for path in ("/instances/shop", "/instances/shop/backups", "/instances/shop/users", "/backups/monday"):
        trove.missing("GET", path)
    trove.missing("GET", f"/instances/{NOBODY}")
    trove.missing("GET", f"/instances/{NOBODY.replace('-', '')}")
    trove.missing("GET", "/instances/")


def test_instances_come_in_pages(trove: Trove, site: DatabaseSite) -> None:
    keys = {make(trove, site, name=f"db{index}") for index in range(5)}
    seen: list[str] = []
    path = "/instances?limit=2&include_clustered=False"
    while path:
        answer = trove.get(path)
        seen += [item["id"] for item in answer["instances"]]
        following = [link["href"] for link in answer.get("links", [])]
        path = following[0].partition(trove.base)[2] if following else ""
    assert len(trove.get("/instances")["instances"]) == 5
    assert len(seen) == 5
    assert set(seen) == keys
    assert "limit" in trove.bad("GET", "/instances?limit=many")
    assert "limit" in trove.bad("GET", "/instances?limit=0")


REFUSED = [
    ({"name": None}, "name"),
    ({"name": ""}, "name"),
    ({"name": " x"}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"name": 7}, "name"),
    ({"flavorRef": None}, "flavorRef"),
    ({"flavorRef": "no-such-flavor"}, "flavorRef"),
    ({"volume": None}, "volume"),
    ({"volume": {}}, "size"),
    ({"volume": {"size": 0}}, "volume.size"),
    ({"volume": {"size": -1}}, "volume.size"),
    ({"volume": {"size": "big"}}, "volume.size"),
    ({"volume": {"size": 10**20}}, "volume"),
    ({"volume": {"size": True}}, "size"),
    ({"volume": {"size": 1, "type": "ssd"}}, "volume.type"),
    ({"surprise": 1}, "surprise"),
    ({"datastore": {"type": "mysql"}}, "datastore.type"),
    ({"datastore": {"type": "postgresql", "version": "9"}}, "datastore.version"),
    ({"datastore": "postgresql"}, "datastore"),
    ({"replica_of": NOBODY}, "replica_of"),
    ({"replica_count": 2}, "replica_count"),
    ({"configuration": 7}, "configuration"),
    ({"modules": [{"id": NOBODY}]}, "modules"),
    ({"locality": "affinity"}, "locality"),
    ({"region_name": "elsewhere"}, "region_name"),
    ({"availability_zone": "mars"}, "availability_zone"),
    ({"nics": [{"net-id": NOBODY}]}, "nics"),
    ({"nics": [{}, {}]}, "nics"),
    ({"nics": [{"port-id": NOBODY}]}, "port-id"),
    ({"nics": [{"subnet_id": NOBODY}]}, "subnet_id"),
    ({"access": {"allowed_cidrs": ["not a network"]}}, "allowed_cidrs"),
    ({"access": {"allowed_cidrs": ["::/0"]}}, "allowed_cidrs"),
    ({"access": {"allowed_cidrs": ["10.0.0.0/8"] * 65}}, "allowed_cidrs"),
    ({"access": {"is_public": "perhaps"}}, "is_public"),
    ({"databases": [{"name": ""}]}, "databases[0].name"),
    ({"databases": [{"name": "postgres"}]}, "databases[0].name"),
    ({"databases": [{"name": "a"}, {"name": "a"}]}, "databases[1].name"),
    ({"databases": [{"name": "a", "collate": "x; DROP"}]}, "databases[0].collate"),
    ({"databases": [{"name": "ä" * 32}]}, "databases[0].name"),
    ({"databases": [{"name": 'a"b'}]}, "databases[0].name"),
    ({"users": [{"name": "u"}]}, "password"),
    ({"users": [{"name": "u", "password": ""}]}, "users[0].password"),
    ({"users": [{"name": "root", "password": "x"}]}, "users[0].name"),
    ({"users": [{"name": "pg_x", "password": "x"}]}, "users[0].name"),
    ({"users": [{"name": "u", "password": "x", "host": "10.0.0.1"}]}, "users[0].host"),
    ({"users": [{"name": "u", "password": "x" * 1025}]}, "users[0].password"),
    ({"name": "a\u0000b"}, "NUL"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "word"), REFUSED)
def test_a_bad_create_is_refused_by_field_and_makes_nothing(
    trove: Trove, site: DatabaseSite, changes: dict[str, Any], word: str
) -> None:
    assert word in trove.bad("POST", "/instances", json=site.body(**changes))
    assert trove.get("/instances")["instances"] == []


def test_bodies_that_are_no_requests(trove: Trove) -> None:
    for text in ("", "{", "[]", '"x"', "null", "{}", '{"instance": []}', '{"instance": {"name": {}}}'):
        trove.bad("POST", "/instances", content=text)
    trove.refused("POST", "/instances", 413, "overLimit", content=b" " * (2 << 20))
    trove.refused("DELETE", "/instances", 405, "badMethod")


def test_a_create_beyond_the_quota_is_refused(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    path = f"/mgmt/quotas/{trove.project}"
    made = operator.ask("PUT", path, json={"quotas": {"instances": 1, "volumes": 3}}).json()["quotas"]
    assert (made["instances"], made["volumes"]) == (1, 3)
    message = trove.refused("POST", "/instances", 413, "overLimit", json=site.body(volume={"size": 4}))
    assert "volumes" in message
    make(trove, site, volume={"size": 2})
    assert "instances" in trove.refused("POST", "/instances", 413, "overLimit", json=site.body())
    shown = {item["resource"]: item for item in operator.get(path)["quotas"]}
    assert (shown["volumes"]["in_use"], shown["volumes"]["limit"]) == (2, 3)
    absolute = trove.get("/limits")["limits"][0]
    assert (absolute["verb"], absolute["max_instances"]) == ("ABSOLUTE", 1)
    trove.refused("PUT", path, 403, "forbidden", json={"quotas": {"instances": 9}})
    assert "cows" in operator.bad("PUT", path, json={"quotas": {"cows": 1}})
    assert "instances" in operator.bad("PUT", path, json={"quotas": {"instances": -2}})
    trove.refused("GET", f"/mgmt/quotas/{operator.project}", 403, "forbidden")


def test_name_and_access_change(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site, access={"is_public": True})
    one = f"/instances/{key}"
    assert trove.get(one)["instance"]["access"]["is_public"] is True
    for method in ("PUT", "PATCH"):
        answer = trove.ask(method, one, json={"instance": {"name": f"by-{method}"}})
        assert (answer.status_code, answer.content) == (202, b"")
        assert trove.get(one)["instance"]["name"] == f"by-{method}"
    access = {"is_public": False, "allowed_cidrs": ["10.1.2.3/8", "10.0.0.0/8"]}
    assert trove.ask("PUT", one, json={"instance": {"access": access}}).status_code == 202
    shown = trove.get(one)["instance"]
    assert shown["access"] == {"is_public": False, "allowed_cidrs": ["10.0.0.0/8"]}
    assert [address["type"] for address in shown["addresses"]] == ["private"]
    assert trove.ask("PUT", one, json={"instance": {}}).status_code == 202
    assert "datastore_version" in trove.bad("PATCH", one, json={"instance": {"datastore_version": "17"}})
    assert "no version" in trove.bad("PATCH", one, json={"instance": {"datastore_version": "18"}})
    assert NOBODY in trove.missing("PUT", one, json={"instance": {"configuration": NOBODY}})
    assert "replica" in trove.bad("PUT", one, json={"instance": {"replica_of": None}})
    assert "colour" in trove.bad("PUT", one, json={"instance": {"colour": "red"}})


def test_restart_and_resize_come_about(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    action = f"/instances/{key}/action"
    trove.post(action, {"restart": {}})
    assert trove.get(f"/instances/{key}")["instance"]["status"] == "REBOOT"
    assert trove.get(f"/instances/{key}")["instance"]["unstuck"]["pending"] == "restart"
    message = trove.refused("POST", action, 409, "conflict", json={"resize": {"flavorRef": "4"}})
    assert "restart" in message
    site.settle(5)
    assert trove.get(f"/instances/{key}")["instance"]["status"] == "ACTIVE"
    trove.post(action, {"resize": {"flavorRef": "4"}})
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["flavor"]["id"]) == ("RESIZE", "4")
    site.settle(6)
    assert trove.get(f"/instances/{key}")["instance"]["status"] == "ACTIVE"
    trove.post(action, {"resize": {"volume": {"size": 2}}})
    site.settle(6)
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["volume"]["size"]) == ("ACTIVE", 2)
    assert "volume.size" in trove.bad("POST", action, json={"resize": {"volume": {"size": 1}}})
    assert "flavorRef" in trove.bad("POST", action, json={"resize": {"flavorRef": "none"}})
    assert "resize" in trove.bad("POST", action, json={"resize": {}})
    assert "not offered" in trove.bad("POST", action, json={"promote_to_replica_source": {}})
    assert "not offered" in trove.bad("POST", action, json={"eject_replica_source": {}})
    assert "no such action" in trove.bad("POST", action, json={"dance": {}})
    assert "extra" in trove.bad("POST", action, json={"restart": {"extra": 1}})
    trove.bad("POST", action, json={"restart": {}, "resize": {}})


def test_what_operators_do(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    action = f"/mgmt/instances/{key}/action"
    operator.post(action, {"reboot": {}})
    site.settle(5)
    operator.post(action, {"rebuild": {"image_id": site.image}})
    assert operator.get(f"/mgmt/instances/{key}")["instance"]["task_description"] == "rebuild"
    site.settle(6)
    assert trove.get(f"/instances/{key}")["instance"]["operating_status"] == "HEALTHY"
    operator.post(action, {"reset-task-status": {}})
    assert "image_id" in operator.bad("POST", action, json={"rebuild": {"image_id": NOBODY}})
    assert "not offered" in operator.bad("POST", action, json={"stop": {}})
    assert "not offered" in operator.bad("POST", action, json={"migrate": {}})
    trove.refused("POST", action, 403, "forbidden", json={"reboot": {}})


def test_protected_from_deletion(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    action = f"/instances/{key}/action"
    trove.post(action, {"protect": {}})
    assert trove.get(f"/instances/{key}")["instance"]["unstuck"]["protected"] is True
    assert "protected" in trove.refused("DELETE", f"/instances/{key}", 409, "conflict")
    force = {"reset_status": {"force_delete": True}}
    assert "protected" in trove.refused("POST", action, 409, "conflict", json=force)
    assert trove.ask("PUT", f"/instances/{key}", json={"instance": {"protected": False}}).status_code == 202
    assert trove.ask("DELETE", f"/instances/{key}").status_code == 202
    trove.missing("GET", f"/instances/{key}")


def test_out_of_the_trash_with_all_that_it_had(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    trove.ask("DELETE", f"/instances/{key}")
    site.settle(4)
    [kept] = trove.get("/instances?deleted=true")["instances"]
    assert (kept["id"], kept["unstuck"]["deleted"]) == (key, True)
    assert kept["unstuck"]["trash_until"]
    trove.post(f"/instances/{key}/action", {"undelete": {}})
    site.settle(6)
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY"), shown["unstuck"]
    assert trove.get("/instances?deleted=true")["instances"] == []
    trove.refused("POST", f"/instances/{key}/action", 409, "conflict", json={"undelete": {}})


def test_a_project_may_go_while_its_last_instances_are_in_the_trash(
    trove: Trove, operator: Trove, site: DatabaseSite
) -> None:
    """Its owner has given them up, and can do nothing to be rid of them sooner."""
    key = ready(trove, site)
    project = f"/identity/v3/projects/{trove.project}"
    refused = operator.cloud.ask("DELETE", project)
    assert (refused.status_code, "1 database instance" in refused.text) == (409, True)
    trove.ask("DELETE", f"/instances/{key}")
    site.settle(4)
    assert operator.cloud.ask("DELETE", project).status_code == 204
    assert operator.get(f"/mgmt/instances/{key}")["instance"]["deleted"] is True
    operator.bad("POST", f"/instances/{key}/action", json={"undelete": {}})
    operator.post(f"/instances/{key}/action", {"reset_status": {"force_delete": True}})
    site.settle(6)
    operator.missing("GET", f"/mgmt/instances/{key}")


def test_a_mark_forces_a_look_and_its_variant_deletes_for_good(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    trove.post(f"/instances/{key}/action", {"reset_status": {}})
    site.settle(3)
    assert trove.get(f"/instances/{key}")["instance"]["status"] == "ACTIVE"
    trove.post(f"/instances/{key}/action", {"reset_status": {"force_delete": True}})
    site.settle(6)
    trove.missing("GET", f"/instances/{key}")
    assert trove.get("/instances?deleted=true")["instances"] == []


def test_a_silent_agent_is_said_to_be_silent(trove: Trove, site: DatabaseSite) -> None:
    key = ready(trove, site)
    site.host.silent |= set(site.host.guests)
    site.settle(2)
    shown = trove.get(f"/instances/{key}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("ACTIVE", "ERROR")
    assert "silent" in shown["unstuck"]["reason"]
    assert shown["unstuck"]["agent_alive"] is False
    explained = trove.cloud.get(f"/unstuck/v1/explain/instance/{key}").json()
    assert (explained["status"], explained["name"]) == ("ACTIVE", "shop")
    assert explained["reason"] == shown["unstuck"]["reason"]


def test_what_is_not_offered_says_so(trove: Trove, site: DatabaseSite) -> None:
    key = make(trove, site)
    for kind in ("modules", "clusters"):
        assert trove.get(f"/{kind}") == {kind: []}
        trove.missing("GET", f"/{kind}/{NOBODY}")
        assert "not offered" in trove.bad("POST", f"/{kind}", json={})
    for path in ("modules", "ssl"):
        assert "not offered" in trove.bad("GET", f"/instances/{key}/{path}")
    trove.missing("GET", f"/clusters/{NOBODY}/root")


def test_without_a_token_nothing_is_shown(cloud: Cloud, trove: Trove) -> None:
    answer = cloud.get(f"{trove.base}/instances")
    assert (answer.status_code, list(answer.json())) == (401, ["unauthorized"])
    assert cloud.get("/database/").json()["versions"][0]["id"] == "v1.0"
    assert cloud.get("/database/v1.0").json()["version"]["status"] == "CURRENT"


def test_the_catalog_names_the_database_service_of_the_own_project(trove: Trove) -> None:
    catalog = trove.cloud.get("/identity/v3/auth/catalog").json()["catalog"]
    [entry] = [item for item in catalog if item["type"] == "database"]
    assert entry["endpoints"][0]["url"] == f"http://cloud:81{trove.base}"
