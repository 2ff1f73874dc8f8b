"""Instances and backups explain themselves to whom they belong; and how long deleted ones are kept."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.blobs import keyring
from unstuck.control.plane import superuser, trash_seconds
from unstuck.core.instance.data import TRASH
from unstuck.runtime.state import StateError
from unstuck.store.backups import NewBackup, Places, create_backup
from unstuck.store.engine import Store
from unstuck.store.scrub_work import mark_damaged


@pytest.fixture
def site(cloud: Cloud, store: Store, tmp_path: Path) -> DatabaseSite:
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery.json")
    return DatabaseSite(store)


def test_an_instance_explains_itself_from_its_build_to_the_trash(
    trove: Trove, demo: Cloud, site: DatabaseSite
) -> None:
    key = trove.post("/instances", site.body(), 200)["instance"]["id"]
    path = f"/unstuck/v1/explain/instance/{key}"
    told = demo.get(path).json()
    assert (told["kind"], told["id"], told["status"]) == ("instance", key, "BUILD")
    assert told["reason"]
    assert told["by_seconds"] is not None
    site.settle(4)
    told = demo.get(path).json()
    assert (told["status"], told["reason"]) == ("ACTIVE", "the database answers, as it should")
    assert told["restorable"] == []
    [daily] = told["schedules"]
    assert (daily["name"], daily["kind"]) == ("daily", "backup")
    assert daily["next_run"].endswith("Z")
    assert told["damaged_backups"] == []
    trove.ask("DELETE", f"/instances/{key}")
    told = demo.get(path).json()
    assert "in the trash" in told["reason"]
    assert TRASH - 60 < told["by_seconds"] <= TRASH


def test_a_backup_explains_itself(trove: Trove, demo: Cloud, site: DatabaseSite, tmp_path: Path) -> None:
    key = trove.post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    backup = str(uuid.uuid4())
    new = NewBackup(id=backup, nonce="nonce", name="monday", instance_id=key)
    keys, places = keyring.load(tmp_path / "keys"), Places(("here",), "here")
    site.store.transact(create_backup, new, trove.project, keyring=keys, places=places)
    told = demo.get(f"/unstuck/v1/explain/backup/{backup}").json()
    assert (told["kind"], told["id"], told["name"], told["status"]) == ("backup", backup, "monday", "NEW")
    assert told["holder"]
    assert 0 < told["by_seconds"] <= 300
    site.store.transact(mark_damaged, backup, "piece 3 is missing")
    [found] = demo.get(f"/unstuck/v1/explain/instance/{key}").json()["damaged_backups"]
    assert found == {"id": backup, "name": "monday", "reason": "piece 3 is missing"}


def test_what_is_another_s_explains_nothing(
    trove: Trove, demo: Cloud, admin: Cloud, site: DatabaseSite
) -> None:
    key = Trove(admin, "admin").post("/instances", site.body(), 200)["instance"]["id"]
    assert admin.get(f"/unstuck/v1/explain/instance/{key}").status_code == 200
    assert demo.get(f"/unstuck/v1/explain/instance/{key}").status_code == 404
    for kind in ("instance", "backup"):
        assert demo.get(f"/unstuck/v1/explain/{kind}/{uuid.uuid4()}").status_code == 404


@pytest.mark.parametrize(("given", "seconds"), [(None, TRASH), ("0", 0.0), ("3600", 3600.0), ("1.5", 1.5)])
def test_the_trash_s_time_is_a_setting(given: str | None, seconds: float) -> None:
    assert trash_seconds(given) == seconds


@pytest.mark.parametrize("given", ["", "week", "-1", "nan", "inf"])
def test_what_is_no_number_of_seconds_is_refused(given: str) -> None:
    with pytest.raises(StateError, match="UNSTUCK_TRASH_SECONDS"):
        trash_seconds(given)


@pytest.mark.parametrize(("given", "is_one"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_whether_root_may_be_a_superuser_is_a_setting(given: str | None, is_one: bool) -> None:
    assert superuser(given) is is_one


@pytest.mark.parametrize("given", ["yes", "true", "2", " 1"])
def test_what_is_neither_yes_nor_no_is_refused(given: str) -> None:
    with pytest.raises(StateError, match="UNSTUCK_DATABASE_SUPERUSER"):
        superuser(given)
