"""Small corners of the compute API that older clients still look into."""

from __future__ import annotations

import pytest
from api_cloud import Cloud
from tests.compute_site import Site

BASE = "/compute/v2.1"
SERVERS = f"{BASE}/servers"
NETWORK = "/networking/v2.0"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def create(who: Cloud, site: Site, version: str = "2.1", **more: object) -> str:
    answer = who.ask("POST", SERVERS, json=site.body(**more), headers=at(version))
    assert answer.status_code == 202, answer.text
    made: str = answer.json()["server"]["id"]
    return made


def test_hosts_as_they_were_before_2_43(admin: Cloud, demo: Cloud, site: Site) -> None:
    create(demo, site, flavorRef="3")
    site.settle()
    path = f"{BASE}/os-hosts"
    [row] = admin.get(path).json()["hosts"]
    assert row == {"host_name": "host-1", "service": "compute", "zone": "nova"}
    assert admin.get(f"{path}?zone=nova").json()["hosts"] == [row]
    assert admin.get(f"{path}?zone=other").json()["hosts"] == []
    total, used = (item["resource"] for item in admin.get(f"{path}/host-1").json()["host"])
    assert (total["project"], total["cpu"]) == ("(total)", 64)
    assert used == {"host": "host-1", "project": "(used_now)", "cpu": 1, "memory_mb": 512, "disk_gb": 1}
    assert admin.get(f"{path}/nobody").status_code == 404
    assert demo.get(path).status_code == demo.get(f"{path}/host-1").status_code == 403
    assert admin.get(path, headers=at("2.43")).status_code == 404


def test_migrations_and_passwords_are_empty(admin: Cloud, demo: Cloud, site: Site) -> None:
    assert admin.get(f"{BASE}/os-migrations").json() == {"migrations": []}
    assert demo.get(f"{BASE}/os-migrations").status_code == 403
    path = f"{SERVERS}/{create(demo, site)}/os-server-password"
    assert demo.get(path).json() == {"password": ""}
    assert demo.ask("DELETE", path).status_code == 204
    assert demo.get(f"{SERVERS}/nobody/os-server-password").status_code == 404


def test_an_update_that_names_nothing_changes_nothing(demo: Cloud, site: Site) -> None:
    path = f"{SERVERS}/{create(demo, site)}"
    before = demo.get(path).json()["server"]
    answer = demo.ask("PUT", path, json={"server": {}})
    assert answer.status_code == 200
    assert demo.get(path).json()["server"] == before
    assert demo.ask("PUT", path, json={}).status_code == 400


def test_host_names_may_be_qualified_from_2_94_on(demo: Cloud, site: Site) -> None:
    assert create(demo, site, "2.94", networks="none", hostname="a.example.org")
    assert create(demo, site, "2.90", networks="none", hostname="a" * 63)
    for version, name in (
        ("2.90", "a.example.org"), ("2.90", "a" * 64), ("2.94", "a" * 64), ("2.94", "a..b"),
        ("2.94", "a." * 127 + "bc"), ("2.94", "-a"), ("2.94", ""),
    ):  # fmt: skip
        body = site.body(networks="none", hostname=name)
        answer = demo.ask("POST", SERVERS, json=body, headers=at(version))
        assert answer.status_code == 400, name
        assert "hostname" in answer.json()["badRequest"]["message"]


def test_an_administrator_resets_a_default_group_that_nothing_uses(
    admin: Cloud, demo: Cloud, site: Site
) -> None:
    [group] = demo.get(f"{NETWORK}/security-groups").json()["security_groups"]
    path = f"{NETWORK}/security-groups/{group['id']}"
    answer = demo.ask("DELETE", path)
    assert answer.status_code == 409
    assert answer.json()["NeutronError"]["type"] == "SecurityGroupCannotRemoveDefault"
    assert admin.ask("DELETE", path).status_code == 204
    assert demo.get(path).json()["security_group"] == group
    create(demo, site)
    answer = admin.ask("DELETE", path)
    assert answer.status_code == 409
    assert answer.json()["NeutronError"]["type"] == "SecurityGroupInUse"
    assert admin.ask("DELETE", f"{NETWORK}/security-groups/nonsense").status_code == 404
    theirs = admin.get(f"{NETWORK}/security-groups").json()["security_groups"][0]["id"]
    assert demo.ask("DELETE", f"{NETWORK}/security-groups/{theirs}").status_code == 404


def test_reserved_properties_of_images_are_refused(demo: Cloud) -> None:
    body = {"name": "i", "os_glance_x": "1"}
    answer = demo.ask("POST", "/image/v2/images", json=body)
    assert answer.status_code == 403
    assert "os_glance_x" in answer.json()["message"]
