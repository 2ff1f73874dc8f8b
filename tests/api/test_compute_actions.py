"""Pause, lock and the operator's mark through the API: who may, when, and what is shown."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from api_cloud import Cloud
from tests.compute_site import Site, bootable

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


def test_suspend_and_resume(demo: Cloud, site: Site, server: str) -> None:
    assert act(demo, server, "resume").status_code == 409
    assert act(demo, server, "suspend").status_code == 202
    assert state(demo, server) == ("ACTIVE", "suspending", 1)
    assert act(demo, server, "suspend").status_code == 409
    site.settle()
    assert state(demo, server) == ("SUSPENDED", None, 4)
    assert len(demo.get(f"{SERVERS}?status=SUSPENDED").json()["servers"]) == 1
    for refused in ("suspend", "pause", "unpause", "os-start", "os-stop"):
        assert act(demo, server, refused).status_code == 409, refused
    assert act(demo, server, "resume").status_code == 202
    assert state(demo, server) == ("SUSPENDED", "resuming", 4)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    act(demo, server, "suspend")
    site.settle()
    assert act(demo, server, "reboot", {"type": "HARD"}).status_code == 202
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


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
    for name in ("pause", "unpause", "suspend", "resume", "lock", "unlock"):
        assert act(demo, theirs, name).status_code == 404, name


def rebuild(cloud: Cloud, server_id: str, version: str = "2.96", **more: Any) -> httpx2.Response:
    return act(cloud, server_id, "rebuild", more, version)


def test_a_rebuild(demo: Cloud, site: Site, server: str) -> None:
    other = site.store.transact(bootable)
    before = show(demo, server)
    answer = rebuild(
        demo, server, imageRef=other, name="again", metadata={"a": "b"}, description="d", hostname="h2",
        user_data="aGVsbG8=", adminPass="secret", accessIPv4="1.2.3.4",
    )  # fmt: skip
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"].endswith(server)
    shown = answer.json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("REBUILD", "rebuilding")
    assert (shown["image"]["id"], shown["name"], shown["metadata"]) == (other, "again", {"a": "b"})
    assert (shown["adminPass"], shown["user_data"], shown["key_name"]) == ("secret", "aGVsbG8=", None)
    assert (shown["description"], shown["accessIPv4"]) == ("d", "1.2.3.4")
    assert shown["OS-EXT-SRV-ATTR:hostname"] == "h2"
    assert rebuild(demo, server, imageRef=other).status_code == 409
    listed = demo.get(f"{SERVERS}?status=REBUILD").json()["servers"]
    assert [item["id"] for item in listed] == [server]
    [want] = site.host.wants().values()
    assert want.spec.images[0].id == other
    assert (want.spec.metadata, want.spec.user_data) == ({"a": "b"}, "aGVsbG8=")
    site.settle()
    after = show(demo, server)
    assert (after["status"], after["addresses"]) == ("ACTIVE", before["addresses"])
    assert (after["image"]["id"], after["name"]) == (other, "again")


def test_a_stopped_server_is_rebuilt_and_stays_stopped(demo: Cloud, site: Site, server: str) -> None:
    act(demo, server, "os-stop")
    site.settle()
    assert rebuild(demo, server, imageRef=site.image).status_code == 202
    assert show(demo, server)["status"] == "REBUILD"
    site.settle()
    assert show(demo, server)["status"] == "SHUTOFF"
    act(demo, server, "os-start")
    site.settle()
    act(demo, server, "pause")
    site.settle()
    assert rebuild(demo, server, imageRef=site.image).status_code == 409
    assert demo.ask("DELETE", f"{SERVERS}/{server}").status_code == 204


REBUILD_KEYS = {"2.1": set(), "2.53": set(), "2.54": {"key_name"}, "2.57": {"key_name", "user_data"}}


@pytest.mark.parametrize("version", [*REBUILD_KEYS, "2.74", "2.75", "2.96"])
def test_the_keys_of_a_rebuilt_server(demo: Cloud, site: Site, server: str, version: str) -> None:
    shown = rebuild(demo, server, version, imageRef=site.image).json()["server"]
    headers = {"openstack-api-version": f"compute {version}"}
    changed = demo.ask("PUT", f"{SERVERS}/{server}", json={"server": {"name": "b"}}, headers=headers)
    number = int(version[2:])
    extra = REBUILD_KEYS.get(version, {"key_name", "user_data"}) | {"adminPass"}
    expected = set(changed.json()["server"]) | extra
    assert set(shown) == expected
    assert ("config_drive" in shown) == (number >= 75)


BAD_REBUILDS = [
    ({}, "2.96", "imageRef"),
    ({"imageRef": "x"}, "2.96", "imageRef"),
    ({"imageRef": "11111111-1111-4111-8111-111111111111"}, "2.96", "imageRef"),
    ({"name": ""}, "2.96", "name"),
    ({"metadata": {"": "x"}}, "2.96", "metadata"),
    ({"description": "x"}, "2.18", "description"),
    ({"key_name": "x"}, "2.53", "key_name"),
    ({"key_name": "nobody's"}, "2.54", "key_name"),
    ({"user_data": "aGVsbG8="}, "2.56", "user_data"),
    ({"user_data": "%"}, "2.57", "user_data"),
    ({"trusted_image_certificates": ["x"]}, "2.63", "trusted_image_certificates"),
    ({"trusted_image_certificates": None}, "2.62", "trusted_image_certificates"),
    ({"hostname": "x"}, "2.89", "hostname"),
    ({"hostname": "-"}, "2.90", "hostname"),
    ({"personality": []}, "2.57", "personality"),
    ({"personality": [{"path": "/x", "contents": ""}]}, "2.56", "personality"),
    ({"preserve_ephemeral": True}, "2.96", "preserve_ephemeral"),
    ({"preserve_ephemeral": "maybe"}, "2.96", "preserve_ephemeral"),
    ({"accessIPv4": "x"}, "2.96", "accessIPv4"),
    ({"OS-DCF:diskConfig": "x"}, "2.96", "diskConfig"),
    ({"flavorRef": "1"}, "2.96", "flavorRef"),
]


@pytest.mark.parametrize(("body", "version", "field"), BAD_REBUILDS)
def test_bad_rebuilds_name_the_field_and_change_nothing(
    demo: Cloud, site: Site, server: str, body: dict[str, Any], version: str, field: str
) -> None:
    before = show(demo, server)
    body = body if field == "imageRef" else {"imageRef": site.image, **body}
    answer = rebuild(demo, server, version, **body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["badRequest"]["message"]
    assert show(demo, server) == before


def test_an_image_that_is_too_large_is_refused(demo: Cloud, site: Site, server: str) -> None:
    large = site.store.transact(bootable, min_ram=1 << 20)
    assert "memory is too small" in rebuild(demo, server, imageRef=large).text
