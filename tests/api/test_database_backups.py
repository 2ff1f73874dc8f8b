"""Backups through the database API: the row is the work, and says how it goes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_agent import Agent
from tests.database_site import DatabaseSite

from unstuck.blobs import keyring
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores
from unstuck.core.backup.control import AskStore
from unstuck.core.backup.data import Absent, Gave, Phase
from unstuck.store import backup_work
from unstuck.store.engine import Store

NOBODY = "9d0b9f57-3c3c-4d2f-8d38-0d5a3c1f2b11"


@pytest.fixture
def site(cloud: Cloud, store: Store, tmp_path: Path) -> DatabaseSite:
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery.json")
    stores = Stores(tmp_path / "objects", tmp_path / "backup-stores.json")
    cloud.app.app.extra["backups"] = BackupSite(stores, keyring.load(tmp_path / "keys"))
    made = DatabaseSite(store)
    made.host.wake = cloud.app.app.notifier.wake
    return made


@pytest.fixture
def instance(trove: Trove, site: DatabaseSite) -> str:
    key = trove.post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    return str(key)


def start(trove: Trove, instance: str, **more: Any) -> dict[str, Any]:
    body = {"name": "monday", "instance": instance, "incremental": 0, **more}
    made: dict[str, Any] = trove.post("/backups", {"backup": body})["backup"]
    return made


def test_a_backup_says_how_it_goes_until_it_is_complete(
    trove: Trove, site: DatabaseSite, cloud: Cloud, instance: str
) -> None:
    made = start(trove, instance, description="before the release")
    assert (made["status"], made["size"], made["parent_id"]) == ("NEW", None, None)
    assert made["datastore"] == {"type": "postgresql", "version": "17", "version_id": site.version}
    told = made["unstuck"]
    assert (told["attempt"], told["phase"], told["claimed"]) == (1, "waiting", False)
    assert 0 < told["by_seconds"] <= told["deadlines"]["claim"]
    one = f"/backups/{made['id']}"
    agent = Agent(site, cloud.app.app.extra["backups"].keyring, instance)
    agent.take()
    agent.renew(Phase.COPYING, 5 << 20, idle=2.0)
    shown = trove.get(one)["backup"]
    assert shown["status"] == "BUILDING"
    assert (shown["unstuck"]["phase"], shown["unstuck"]["bytes"]) == ("copying", 5 << 20)
    assert 0 <= shown["unstuck"]["idle_seconds"] < 2.0  # since it was taken, which is no progress of its own
    status = trove.get(f"/instances/{instance}")["instance"]
    assert (status["status"], status["operating_status"]) == ("BACKUP", "HEALTHY")
    assert status["unstuck"]["backup"] == made["id"]
    explained = trove.cloud.get(f"/unstuck/v1/explain/backup/{made['id']}").json()
    assert (explained["status"], explained["phase"], explained["name"]) == ("BUILDING", "copying", "monday")
    agent.complete(3 << 30)
    shown = trove.get(one)["backup"]
    assert (shown["status"], shown["size"], shown["unstuck"]["phase"]) == ("COMPLETED", 3.0, None)
    assert shown["locationRef"] == f"local/backups/{made['id']}/0001"
    assert trove.get(f"/instances/{instance}")["instance"]["status"] == "ACTIVE"
    small = site.body(restorePoint={"backupRef": made["id"]}, volume={"size": 2})
    message = trove.refused("POST", "/instances", 403, "forbidden", json=small)
    assert "volume.size" in message
    assert len(trove.get("/instances")["instances"]) == 1
    enough = site.body(name="again", restorePoint={"backupRef": made["id"]}, volume={"size": 4})
    restored = trove.post("/instances", enough, 200)["instance"]
    assert restored["unstuck"]["restores"] == made["id"]
    assert trove.ask("DELETE", one).status_code == 202
    trove.missing("GET", one)


def test_only_what_is_complete_is_restored(trove: Trove, site: DatabaseSite, instance: str) -> None:
    made = start(trove, instance)
    body = site.body(restorePoint={"backupRef": made["id"]})
    trove.refused("POST", "/instances", 409, "conflict", json=body)
    trove.missing("POST", "/instances", json=site.body(restorePoint={"backupRef": NOBODY}))
    trove.missing("POST", "/instances", json=site.body(restorePoint={"backupRef": "monday"}))
    assert len(trove.get("/instances")["instances"]) == 1


def test_there_is_one_at_a_time_and_its_instance_stays_usable(
    trove: Trove, site: DatabaseSite, instance: str
) -> None:
    made = start(trove, instance)
    message = trove.refused(
        "POST", "/backups", 409, "conflict", json={"backup": {"name": "b", "instance": instance}}
    )
    assert made["id"] in message
    shown = trove.get(f"/instances/{instance}")["instance"]
    assert (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY")
    trove.post(f"/instances/{instance}/action", {"restart": {}})


def test_cancelled_and_tried_again(trove: Trove, site: DatabaseSite, cloud: Cloud, instance: str) -> None:
    made = start(trove, instance)
    action = f"/backups/{made['id']}/action"
    Agent(site, cloud.app.app.extra["backups"].keyring, instance).take()
    trove.refused("POST", action, 409, "conflict", json={"retry": {}})
    told = trove.post(action, {"cancel": {}})["backup"]["unstuck"]
    assert told["cancelled"] is True
    agent = Agent(site, cloud.app.app.extra["backups"].keyring, instance)
    assert agent.renew(Phase.COPYING, 1) is not None
    agent.end(Gave("it was told to stop"))
    while True:  # a controller asks the blob store first, which has nothing of it
        work = site.store.transact(backup_work.begin_step, made["id"], "c", uuid.uuid4().hex, 30.0).work
        if work is None or not isinstance(work.plan, AskStore):
            break
        site.store.transact(backup_work.store_said, made["id"], "c", Absent(1))
    shown = trove.get(f"/backups/{made['id']}")["backup"]
    assert shown["status"] == "FAILED"
    assert "cancel" in shown["unstuck"]["reason"]
    trove.refused("POST", action, 409, "conflict", json={"cancel": {}})
    again = trove.post(action, {"retry": {}})["backup"]
    assert (again["status"], again["name"]) == ("NEW", "monday")
    assert again["unstuck"]["retry_of"] == made["id"]
    assert again["id"] != made["id"]
    assert "no such action" in trove.bad("POST", action, json={"dance": {}})
    trove.missing("POST", f"/backups/{NOBODY}/action", json={"cancel": {}})


def test_lists_are_filtered_and_in_pages(
    trove: Trove, operator: Trove, site: DatabaseSite, instance: str
) -> None:
    made = []
    for index in range(3):
        made.append(start(trove, instance, name=f"b{index}")["id"])
        trove.ask("POST", f"/backups/{made[-1]}/action", json={"cancel": {}})
    newest = made[::-1]
    assert [item["id"] for item in trove.get("/backups")["backups"]] == newest
    first = trove.get("/backups?limit=2")
    assert [item["id"] for item in first["backups"]] == newest[:2]
    rest = trove.get(first["links"][0]["href"].partition(trove.base)[2])
    assert [item["id"] for item in rest["backups"]] == newest[2:]
    assert "links" not in rest
    assert len(trove.get(f"/instances/{instance}/backups")["backups"]) == 3
    assert len(trove.get(f"/backups?instance_id={instance}&datastore=postgresql")["backups"]) == 3
    assert trove.get(f"/backups?instance_id={NOBODY}")["backups"] == []
    trove.missing("GET", "/backups?datastore=mysql")
    trove.bad("GET", f"/backups?marker={NOBODY}")
    trove.refused("GET", "/backups?all_projects=True", 403, "forbidden")
    assert len(operator.get("/backups?all_projects=True")["backups"]) == 3
    assert len(operator.get(f"/backups?project_id={trove.project}")["backups"]) == 3
    assert operator.get("/backups")["backups"] == []


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({"name": ""}, 400, "backup.name"),
        ({"name": None}, 400, "name"),
        ({"instance": None}, 400, "instance"),
        ({"instance": "shop"}, 404, "shop"),
        ({"instance": NOBODY}, 404, NOBODY),
        ({"incremental": 7}, 400, "incremental"),
        ({"incremental": "x"}, 400, "incremental"),
        ({"parent_id": NOBODY}, 404, NOBODY),
        ({"parent_id": "monday"}, 404, "monday"),
        ({"storage_driver": "cinder"}, 400, "storage_driver"),
        ({"swift_container": "elsewhere"}, 400, "swift_container"),
        ({"restore_from": {"remote_location": "http://x"}}, 400, "restore_from"),
        ({"description": "x" * 3000}, 400, "description"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_bad_backups_are_refused_by_field(
    trove: Trove, instance: str, changes: dict[str, Any], status: int, word: str
) -> None:
    body = {"name": "b", "instance": instance, **changes}
    body = {key: value for key, value in body.items() if value is not None}
    kind = {400: "badRequest", 404: "itemNotFound"}[status]
    assert word in trove.refused("POST", "/backups", status, kind, json={"backup": body})
    assert trove.get("/backups")["backups"] == []


def test_another_projects_backup_is_not_there(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    theirs = operator.post("/instances", site.body(), 200)["instance"]["id"]
    made = start(operator, theirs)
    for method, path in (("GET", ""), ("DELETE", "")):
        trove.missing(method, f"/backups/{made['id']}{path}")
    trove.missing("POST", f"/backups/{made['id']}/action", json={"cancel": {}})
    trove.missing("POST", "/instances", json=site.body(restorePoint={"backupRef": made["id"]}))
    trove.missing("POST", "/backups", json={"backup": {"name": "b", "instance": theirs}})
    for kind, key in (("instance", theirs), ("backup", made["id"])):
        assert trove.cloud.get(f"/unstuck/v1/explain/{kind}/{key}").status_code == 404
        assert operator.cloud.get(f"/unstuck/v1/explain/{kind}/{key}").json()["id"] == key
    assert operator.get(f"/backups/{made['id']}")["backup"]["status"] == "NEW"


def test_where_backups_go(trove: Trove, operator: Trove, instance: str) -> None:
    made = trove.post("/backup_strategies", {"backup_strategy": {"swift_container": "local"}})
    strategy = {
        "project_id": trove.project,
        "instance_id": None,
        "backend": "swift",
        "swift_container": "local",
    }
    assert made == {"backup_strategy": strategy}
    own = {"swift_container": "local", "instance_id": instance}
    trove.post("/backup_strategies", {"backup_strategy": own})
    assert len(trove.get("/backup_strategies")["backup_strategies"]) == 2
    assert len(trove.get(f"/backup_strategies?instance_id={instance}")["backup_strategies"]) == 1
    assert start(trove, instance)["unstuck"]["location"] == "local"
    assert trove.ask("DELETE", f"/backup_strategies?instance_id={instance}").status_code == 202
    assert trove.ask("DELETE", "/backup_strategies").status_code == 202
    trove.missing("DELETE", "/backup_strategies")
    for body, word in (
        ({"swift_container": "elsewhere"}, "elsewhere"),
        ({}, "swift_container"),
        ({"swift_container": "local", "colour": 1}, "colour"),
    ):
        assert word in trove.bad("POST", "/backup_strategies", json={"backup_strategy": body})
    trove.missing(
        "POST",
        "/backup_strategies",
        json={"backup_strategy": {"swift_container": "local", "instance_id": NOBODY}},
    )
    trove.refused("GET", f"/backup_strategies?project_id={operator.project}", 403, "forbidden")
