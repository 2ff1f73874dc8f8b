"""Schedules, retention and verification on the real thing: kills at ticks, and a backup that was spoiled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.real.container_stage import why_not
from tests.real.fault_cloud import FaultCloud
from tests.real.test_database_cloud import HERE, ask, cloud, create, healthy, image
from unstuck.cli import boxes
from unstuck.cli.dbcalls import Databases

__all__ = ["cloud", "image"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers"),
    pytest.mark.timeout(900),
]


def shop(cloud: FaultCloud, api: Databases) -> str:
    instance = create(api, HERE)
    shown = healthy(cloud, api, instance)
    address = next(item["address"] for item in shown["addresses"])
    ask(address, "create table orders as select n as id from generate_series(1, 5000) n")
    return instance


def schedule(api: Databases, key: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/backup_schedules/{key}")["backup_schedule"]
    return found


def backups_by(api: Databases, key: str) -> list[dict[str, Any]]:
    return [item for item in api.all("backups") if item["unstuck"]["made_by"] == f"schedule:{key}"]


def test_a_schedule_of_every_minute_makes_each_backup_once_while_the_control_plane_is_killed(
    cloud: FaultCloud,
) -> None:
    api = Databases(cloud.cloud)
    instance = shop(cloud, api)
    wanted = {"instance_id": instance, "cron": "* * * * *", "name": "minutely"}
    key = api.ask("POST", "/backup_schedules", json={"backup_schedule": wanted})["backup_schedule"]["id"]
    began = time.time()
    while time.time() < began + 200:
        # Just before, at and just after the full minute.
        time.sleep(max(60 - time.time() % 60 - 0.5, 0.1))
        cloud.kill("control")
        time.sleep(0.8)
        cloud.start("control")
        time.sleep(5)
    api = Databases(cloud.cloud)  # each start has logged in anew
    cloud.until("several were made", lambda: schedule(api, key)["counts"]["made"] >= 3, seconds=120.0)
    change = {"backup_schedule": {"paused": True}}
    api.ask("PATCH", f"/backup_schedules/{key}", json=change)
    cloud.until(
        "all have ended",
        lambda: all(item["status"] in ("COMPLETED", "FAILED") for item in backups_by(api, key)),
        seconds=240.0,
    )
    found, shown = backups_by(api, key), schedule(api, key)
    assert len(found) == shown["counts"]["made"]
    runs = [item["planned"] for item in shown["history"] if item["outcome"] == "made"]
    assert len(set(runs)) == len(runs) == len(found)
    assert len(found) <= (time.time() - began) / 60 + 1
    assert [item["status"] for item in found] == ["COMPLETED"] * len(found)

    tried = api.ask("PUT", f"/instances/{instance}/retention", json={"retention": {"count": 1}},
                    params={"dry_run": "true"})["retention"]  # fmt: skip
    going = {item["id"] for item in tried["backups"] if not item["keep"]}
    assert len(going) == len(found) - 1
    api.ask("PUT", f"/instances/{instance}/retention", json={"retention": {"count": 1}})
    # After the kills the clock counts as in doubt for a minute.
    cloud.until("one is left", lambda: len(backups_by(api, key)) == 1, seconds=240.0)
    removed = api.get(f"/instances/{instance}/retention")["retention"]["removed"]
    assert {item["id"] for item in removed} == going


def test_a_good_backup_is_found_sound_and_a_spoiled_one_damaged_and_nothing_is_left(
    cloud: FaultCloud,
) -> None:
    api = Databases(cloud.cloud)
    instance = shop(cloud, api)
    (running,) = boxes.running(cloud.state)
    made = api.ask("POST", "/backups", json={"backup": {"name": "b", "instance": instance}})["backup"]["id"]
    cloud.until(
        "it is complete",
        lambda: api.get(f"/backups/{made}")["backup"]["status"] == "COMPLETED",
        seconds=120.0,
    )
    good = verified(cloud, api, made, "select count(*) = 5000 from orders")
    assert (good["result"], good["reason"]) == ("sound", "")
    assert "5000 rows" in good["detail"]
    assert 0 < good["seconds"] < 300
    print(f"restored for verification in {good['seconds']} s")
    untrue = verified(cloud, api, made, "select count(*) = 4999 from orders")
    assert untrue["result"] == "damaged"
    assert verified(cloud, api, made)["result"] == "sound"
    assert api.get(f"/backups/{made}")["backup"]["unstuck"]["damaged"] is None

    spoil(cloud.state.root / "backups", made)
    bad = verified(cloud, api, made)
    assert bad["result"] == "damaged", bad
    assert "piece" in bad["reason"]
    shown = api.get(f"/backups/{made}")["backup"]
    assert shown["unstuck"]["damaged"]
    assert shown["unstuck"]["reason"].startswith("it is damaged")
    cloud.until("nothing else runs", lambda: boxes.running(cloud.state) == [running], seconds=60.0)


def status(api: Databases, backup: str) -> str:
    return str(api.get(f"/backups/{backup}")["backup"]["status"])


def verified(cloud: FaultCloud, api: Databases, backup: str, query: str = "") -> dict[str, Any]:
    """What a verification found, once the instance that it made has gone."""
    api.ask("POST", f"/backups/{backup}/action", json={"verify": {"query": query}})
    path = f"/backups/{backup}/verifications"
    cloud.until(
        "it is verified, and nothing is left of that",
        lambda: api.get(path)["verifications"][0]["removed"], seconds=300.0,
    )  # fmt: skip
    found: dict[str, Any] = api.get(f"/backups/{backup}")["backup"]["unstuck"]["verified"]
    return found


def spoil(folder: Path, backup: str) -> None:
    """Flip one bit in the middle of its largest object."""
    objects = [path for path in folder.rglob("*") if path.is_file() and backup in str(path)]
    target = max(objects, key=lambda path: path.stat().st_size)
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.chmod(0o600)
    target.write_bytes(data)
