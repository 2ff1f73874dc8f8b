"""``unstuck db`` and the stock psql on the real thing: create, write, back up, restore, compare."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import quote, urlsplit

import pytest

from tests.real.container_stage import why_not
from tests.real.fault_cloud import FaultCloud
from tests.real.test_database_cloud import cloud, image
from unstuck.cli.dbcalls import Databases

__all__ = ["cloud", "image"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers"),
    pytest.mark.timeout(600),
]
HERE = "10.77.0.1/32"


class Command:
    """The command as a process of its own, as the member that the cloud begins with."""

    def __init__(self, cloud: FaultCloud) -> None:
        self.environment = {
            **os.environ, "UNSTUCK_STATE": str(cloud.state.root), "OS_CLOUD": "unstuck"
        }  # fmt: skip

    def __call__(self, *words: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "unstuck.cli.main", "db", *words],
            env={**self.environment, **more}, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def sql(self, name: str, password: str, query: str, user: str = "app") -> str:
        return self("psql", name, "--user", user, "--", "-X", "-A", "-t", "-c", query, PGPASSWORD=password)


def test_from_create_to_restore_with_all_rows(cloud: FaultCloud) -> None:
    db, api = Command(cloud), Databases(cloud.cloud)
    address = db("create", "shop", "--allow", HERE)
    password = urlsplit(address).password or ""
    db.sql("shop", password, "create table t as select n, md5(n::text) from generate_series(1, 20000) n")
    query = "select count(*), md5(string_agg(md5, '' order by n)) from t"
    rows = db.sql("shop", password, query)
    assert rows.startswith("20000|")

    instance = api.instance("shop")["id"]
    user = {"name": "anna", "password": "another", "databases": [{"name": "app"}]}
    api.ask("POST", f"/instances/{instance}/users", json={"users": [user]})
    assert db.sql("shop", "another", "select session_user", user="anna") == "anna"
    root = api.ask("POST", f"/instances/{instance}/root", json={})["user"]
    assert api.get(f"/instances/{instance}/root") == {"rootEnabled": True}
    assert (
        db.sql("shop", root["password"], "select rolsuper from pg_roles where rolname = 'root'", "root")
        == "f"
    )
    fresh = {"user": {"password": "changed"}}
    api.ask("PUT", f"/instances/{instance}/users/{quote('anna')}", json=fresh)
    assert db.sql("shop", "changed", "select 1", user="anna") == "1"
    api.ask("DELETE", f"/instances/{instance}/users/anna")

    backup = db("backup", "shop", "--call", "monday")
    assert api.backup("monday")["id"] == backup
    assert api.backup("monday")["status"] == "COMPLETED"
    db("restore", "monday", "again")
    again = api.instance("again")["id"]
    let_in = {"instance": {"access": {"allowed_cidrs": [HERE]}}}
    api.ask("PUT", f"/instances/{again}", json=let_in)
    cloud.until("the restored one can be reached", lambda: reaches(db, password))
    assert db.sql("again", password, query) == rows
    for name in ("again", "shop"):
        db("delete", name)


def reaches(db: Command, password: str) -> bool:
    try:
        return db.sql("again", password, "select 1") == "1"
    except (AssertionError, subprocess.TimeoutExpired):
        return False


def test_restarted_and_resized_it_has_its_rows(cloud: FaultCloud) -> None:
    """A container that had ended by itself kept its volume mounted, and a larger volume never came about."""
    db, api = Command(cloud), Databases(cloud.cloud)
    password = urlsplit(db("create", "shop", "--allow", HERE)).password or ""
    db.sql("shop", password, "create table t as select 42 as n")
    instance = api.instance("shop")["id"]
    for action in ({"restart": {}}, {"resize": {"flavorRef": "4"}}, {"resize": {"volume": {"size": 2}}}):
        api.ask("POST", f"/instances/{instance}/action", json=action)
        cloud.until(f"{action} has come about", lambda: usable(api, instance))
        assert db.sql("shop", password, "select n from t") == "42"
    shown = api.get(f"/instances/{instance}")["instance"]
    assert (shown["flavor"]["id"], shown["volume"]["size"]) == ("4", 2)
    db("delete", "shop")


def usable(api: Databases, instance: str) -> bool:
    shown = api.get(f"/instances/{instance}")["instance"]
    return (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY")
