"""``/backup_schedules``: shapes, refusals, and what a new instance begins with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from api_cloud import Cloud
from database_setup import Trove
from test_database_backups import NOBODY, instance, site

__all__ = ["instance", "site"]
WORDS = {
    "id", "name", "project_id", "instance_id", "cron", "timezone", "missed", "full_every", "paused",
    "kind", "query", "database",
    "created", "updated", "next_run", "following_run", "last_run", "reason", "counts", "history",
}  # fmt: skip


def make(trove: Trove, instance: str, **more: Any) -> dict[str, Any]:
    body = {"instance_id": instance, "cron": "15 3 * * 1", **more}
    made: dict[str, Any] = trove.post("/backup_schedules", {"backup_schedule": body})["backup_schedule"]
    return made


def change(trove: Trove, key: str, **changes: Any) -> dict[str, Any]:
    answer = trove.ask("PATCH", f"/backup_schedules/{key}", json={"backup_schedule": changes})
    assert answer.status_code == 202, answer.text
    shown: dict[str, Any] = answer.json()["backup_schedule"]
    return shown


def test_a_schedule_is_made_shown_changed_and_deleted(trove: Trove, instance: str) -> None:
    made = make(trove, instance, name="weekly", timezone="Europe/Berlin")
    assert set(made) == WORDS
    assert (made["name"], made["missed"], made["paused"]) == ("weekly", "once", False)
    assert made["next_run"] < made["following_run"]
    assert made["last_run"] is None
    assert trove.get(f"/backup_schedules/{made['id']}")["backup_schedule"] == made
    paused = change(trove, made["id"], paused=True, missed="skip")
    assert (paused["paused"], paused["next_run"], paused["missed"]) == (True, None, "skip")
    assert paused["reason"] == "it is paused"
    assert change(trove, made["id"], paused=False, cron="0 0 * * *")["next_run"] is not None
    assert trove.ask("DELETE", f"/backup_schedules/{made['id']}").status_code == 202
    trove.missing("GET", f"/backup_schedules/{made['id']}")


def test_a_new_instance_has_a_daily_schedule_unless_the_operator_says_otherwise(
    trove: Trove, instance: str, cloud: Cloud, site: Any
) -> None:
    [found] = trove.get("/backup_schedules")["backup_schedules"]
    assert (found["instance_id"], found["name"], found["timezone"]) == (instance, "daily", "UTC")
    app = cloud.app.app
    settings = msgspec.structs.replace(app.settings, database_schedules=False)
    cloud.app.app = msgspec.structs.replace(app, settings=settings)
    trove.post("/instances", site.body(), 200)
    assert len(trove.get("/backup_schedules")["backup_schedules"]) == 1


def test_a_list_has_pages_and_can_be_of_one_instance(
    trove: Trove, instance: str, operator: Trove, site: Any
) -> None:
    other = trove.post("/instances", site.body(), 200)["instance"]["id"]
    made = make(trove, instance)
    assert len(trove.get("/backup_schedules")["backup_schedules"]) == 3
    mine = trove.get(f"/backup_schedules?instance_id={instance}")["backup_schedules"]
    assert {item["instance_id"] for item in mine} == {instance}
    assert made["id"] in {item["id"] for item in mine}
    first = trove.get("/backup_schedules?limit=2")
    rest = trove.get(f"/backup_schedules?limit=2&marker={first['backup_schedules'][-1]['id']}")
    assert len(first["backup_schedules"]) == 2
    assert first["links"][0]["rel"] == "next"
    assert len(rest["backup_schedules"]) == 1
    everybodys = operator.get("/backup_schedules?all_projects=1")["backup_schedules"]
    assert {item["instance_id"] for item in everybodys} == {instance, other}
    assert operator.get("/backup_schedules")["backup_schedules"] == []
    trove.refused("GET", "/backup_schedules?all_projects=1", 403, "forbidden")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cron", "0 0 * *"), ("cron", 5), ("cron", "0 0 31 2 *"), ("timezone", "Mars/Base"),
        ("missed", "all"),
        ("kind", "all"), ("query", "select 1"), ("name", ""), ("name", "x" * 300),
        ("paused", "yes"), ("no_such_field", 1), ("cron", "*" * 5000),
        ("timezone", "../passwd"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_field(trove: Trove, instance: str, field: str, value: Any) -> None:
    body = {"instance_id": instance, "cron": "15 3 * * 1", field: value}
    assert field in trove.bad("POST", "/backup_schedules", json={"backup_schedule": body})
    made = make(trove, instance)
    path = f"/backup_schedules/{made['id']}"
    assert field in trove.bad("PATCH", path, json={"backup_schedule": {field: value}})
    assert trove.get(path)["backup_schedule"] == made


def test_what_is_not_there_or_not_ones_own_is_not_found(trove: Trove, instance: str, operator: Trove) -> None:
    body = {"backup_schedule": {"instance_id": NOBODY, "cron": "0 0 * * *"}}
    assert NOBODY in trove.missing("POST", "/backup_schedules", json=body)
    for method in ("GET", "DELETE"):
        trove.missing(method, f"/backup_schedules/{NOBODY}")
    trove.missing("GET", "/backup_schedules/nothing")
    trove.bad("PATCH", f"/backup_schedules/{make(trove, instance)['id']}", json={"backup_schedule": {}})
    trove.bad("GET", f"/backup_schedules?marker={NOBODY}")
