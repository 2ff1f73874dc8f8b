"""Pause, lock and the operator's mark through the API: who may, when, and what is shown."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from api_cloud import Cloud
from tests.compute_site import Site

SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


@pytest.fixture
def server(demo: Cloud, site: Site) -> str:
    """A server of the member's, and it runs."""
    made = demo.ask("POST", SERVERS, json=site.body())
    site.settle()
    return str(made.json()["server"]["id"])


def act(cloud: Cloud, server_id: str, name: str, body: Any = None, version: str = "2.96") -> httpx2.Response:
    headers = {"openstack-api-version": f"compute {version}"}
    return cloud.ask("POST", f"{SERVERS}/{server_id}/action", json={name: body}, headers=headers)


def show(cloud: Cloud, server_id: str, version: str = "2.96") -> dict[str, Any]:
    headers = {"openstack-api-version": f"compute {version}"}
    shown = cloud.get(f"{SERVERS}/{server_id}", headers=headers)
    assert shown.status_code == 200, shown.text
    found: dict[str, Any] = shown.json()["server"]
    return found


def state(cloud: Cloud, server_id: str) -> tuple[str, str | None, int]:
    shown = show(cloud, server_id)
    return shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-STS:power_state"]


def test_pause_and_unpause(demo: Cloud, site: Site, server: str) -> None:
    assert act(demo, server, "unpause").status_code == 409
    assert act(demo, server, "pause").status_code == 202
    assert state(demo, server) == ("ACTIVE", "pausing", 1)
    assert act(demo, server, "pause").status_code == 409
    site.settle()
    assert state(demo, server) == ("PAUSED", None, 3)
    for refused in ("pause", "os-start", "os-stop"):
        assert act(demo, server, refused).status_code == 409, refused
    assert act(demo, server, "reboot", {"type": "SOFT"}).status_code == 409
    assert act(demo, server, "unpause").status_code == 202
    assert state(demo, server) == ("PAUSED", "unpausing", 3)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    actions = demo.get(f"{SERVERS}/{server}/os-instance-actions").json()["instanceActions"]
    assert [row["action"] for row in actions] == ["unpause", "pause", "create"]


def test_a_locked_server(demo: Cloud, admin: Cloud, site: Site, server: str) -> None:
    assert act(demo, server, "lock", {"locked_reason": "audit"}).status_code == 202
    shown = show(demo, server)
    assert (shown["locked"], shown["locked_reason"]) == (True, "audit")
    for name, body in (
        ("os-stop", None), ("reboot", {"type": "HARD"}), ("pause", None), ("forceDelete", None),
    ):  # fmt: skip
        answer = act(demo, server, name, body)
        assert answer.status_code == 409, name
        assert "has to be unlocked first" in answer.json()["conflictingRequest"]["message"]
    assert demo.ask("DELETE", f"{SERVERS}/{server}").status_code == 409
    meta = demo.ask("POST", f"{SERVERS}/{server}/metadata", json={"metadata": {"a": "b"}})
    assert meta.status_code == 409
    assert demo.ask("PUT", f"{SERVERS}/{server}", json={"server": {"name": "b"}}).status_code == 200
    version = {"openstack-api-version": "compute 2.96"}
    for query, count in (("locked=true", 1), ("locked=false", 0)):
        listed = demo.get(f"{SERVERS}?{query}", headers=version).json()["servers"]
        assert len(listed) == count, query
    assert act(admin, server, "pause").status_code == 202, "an administrator passes by"
    assert act(demo, server, "unlock").status_code == 202
    assert (show(demo, server)["locked"], show(demo, server)["locked_reason"]) == (False, None)
    assert demo.ask("DELETE", f"{SERVERS}/{server}").status_code == 204


def test_an_administrators_lock_is_lifted_by_administrators(demo: Cloud, admin: Cloud, server: str) -> None:
    assert act(admin, server, "lock").status_code == 202
    assert act(demo, server, "unlock").status_code == 403
    assert show(demo, server)["locked"] is True
    assert act(admin, server, "unlock").status_code == 202
    assert show(demo, server)["locked"] is False


BAD_LOCKS = [
    ({"locked_reason": ""}, "2.73", "locked_reason"),
    ({"locked_reason": "x" * 256}, "2.73", "locked_reason"),
    ({"locked_reason": 5}, "2.73", "locked_reason"),
    ({"locked_reason": "x"}, "2.72", "locked_reason"),
    ({"why": "x"}, "2.73", "why"),
    ("x", "2.73", "lock"),
]


@pytest.mark.parametrize(("body", "version", "field"), BAD_LOCKS)
def test_bad_locks_name_the_field(demo: Cloud, server: str, body: Any, version: str, field: str) -> None:
    answer = act(demo, server, "lock", body, version)
    assert answer.status_code == 400
    assert field in answer.text or body == "x"
    assert show(demo, server)["locked"] is False


def test_the_operators_mark(demo: Cloud, admin: Cloud, site: Site, server: str) -> None:
    assert act(demo, server, "os-resetState", {"state": "error"}).status_code == 403
    for bad in (None, {}, {"state": "paused"}, {"state": None}):
        assert act(admin, server, "os-resetState", bad).status_code == 400, bad
    assert act(admin, server, "os-resetState", {"state": "error"}).status_code == 202
    shown = show(demo, server)
    assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ERROR", 1)
    assert "an operator marked the server as failed" in shown["fault"]["message"]
    assert act(admin, server, "os-resetState", {"state": "active"}).status_code == 202
    assert show(demo, server)["status"] == "ACTIVE"
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    missing = "11111111-1111-4111-8111-111111111111"
    assert act(admin, missing, "os-resetState", {"state": "active"}).status_code == 404


def test_others_cannot_touch(admin: Cloud, demo: Cloud, site: Site) -> None:
    theirs = admin.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    site.settle()
    for name in ("pause", "unpause", "lock", "unlock"):
        assert act(demo, theirs, name).status_code == 404, name
