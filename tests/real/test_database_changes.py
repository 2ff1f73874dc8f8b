"""Changes of a running database, its agent, host and control plane killed all the while: they come about, or
say why not, and no acknowledged row is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.database_cloud import Instance, login
from tests.real.fault_cloud import Role
from unstuck.cli.cloud import connect
from unstuck.cli.dbcalls import Databases

pytestmark = [
    pytest.mark.root, pytest.mark.slow, pytest.mark.xdist_group("database"), pytest.mark.timeout(900),
]  # fmt: skip
ROLES: tuple[Role, ...] = ("control", "host", "control")
NEVER = {"max_locks_per_transaction": 100000, "max_connections": 10000}
"""PostgreSQL's own check takes it; no machine has the memory."""


def group(shop: Instance, **values: Any) -> str:
    body = {"configuration": {"name": "fast", "values": values}}
    made: dict[str, Any] = shop.api.ask("POST", "/configurations", json=body)["configuration"]
    return str(made["id"])


def attach(shop: Instance, key: str | None) -> None:
    shop.api.ask("PUT", f"/instances/{shop.id}", json={"instance": {"configuration": key}})


def configured(shop: Instance) -> dict[str, Any]:
    found: dict[str, Any] = shop.shown()["unstuck"]["configuration"] or {}
    return found


def until(shop: Instance, what: str, condition: Any, seconds: float = 120.0) -> None:
    shop.cloud.until(what, condition, lambda: str(shop.shown()), seconds)


def restart(shop: Instance) -> None:
    shop.api.ask("POST", f"/instances/{shop.id}/action", json={"restart": {}})


def setting(shop: Instance, name: str) -> str:
    with login(shop.address, "shop") as connection:
        row = connection.execute(f"SHOW {name}").fetchone()
    assert row is not None
    return str(row[0])


def killed_all_the_while(shop: Instance, times: int = 3) -> None:
    for _ in range(times):
        shop.agent()
        shop.kill_agent()


def test_an_agent_killed_while_parameters_are_applied_and_while_bad_ones_are_tried(shop: Instance) -> None:
    key = group(shop, work_mem="9MB", max_connections=60)
    shop.kill_agent()
    attach(shop, key)
    killed_all_the_while(shop)
    until(shop, "they are applied", lambda: configured(shop).get("restart_required") == ["max_connections"])
    assert setting(shop, "work_mem") == "9MB"
    restart(shop)
    killed_all_the_while(shop)
    until(shop, "all are applied", lambda: len(configured(shop).get("applied", ())) == 2)
    shop.until_healthy()
    assert setting(shop, "max_connections") == "60"
    shop.api.ask("PATCH", f"/configurations/{key}", json={"configuration": {"values": NEVER}})
    until(shop, "they wait", lambda: len(configured(shop).get("restart_required", ())) == 2)
    restart(shop)
    killed_all_the_while(shop)
    until(shop, "they are put aside", lambda: configured(shop).get("refused"), 240.0)
    shop.until_healthy()
    assert "did not stay up" in configured(shop)["refused"]
    attach(shop, None)
    until(shop, "nothing is refused", lambda: not configured(shop).get("refused"))
    restart(shop)
    until(shop, "nothing waits", lambda: shop.shown()["status"] == "ACTIVE")
    shop.api.ask("DELETE", f"/configurations/{key}")
    shop.free()


def test_an_upgrade_comes_about_although_everybody_is_killed(shop: Instance) -> None:
    found = shop.shown()["datastore"]
    with connect(shop.cloud.state) as admin:
        operator = Databases(admin)
        versions = operator.get("/mgmt/datastore-versions")["versions"]
        [store] = [item for item in versions if item["name"] == found["version"]]
        name = f"{store['version']}.again"
        new = {
            "name": name, "version": name, "datastore_name": store["datastore_name"],
            "datastore_manager": store["datastore_manager"], "image": store["image"], "active": True,
        }  # fmt: skip
        operator.ask("POST", "/mgmt/datastore-versions", json={"version": new})
    for version in (name, found["version"]):
        shop.api.ask("PATCH", f"/instances/{shop.id}", json={"instance": {"datastore_version": version}})
        for role in ROLES:
            shop.cloud.kill_anyhow(role)
            shop.cloud.start(role)
            shop.cloud.wait_ready()
        until(shop, "it is over", lambda: shop.shown()["unstuck"]["pending"] is None, 300.0)
        shop.until_healthy()
        shop.find_server()
        assert shop.shown()["datastore"]["version"] == version
    shop.free()
