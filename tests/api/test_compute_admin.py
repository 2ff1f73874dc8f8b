"""Hosts, limits, quotas, usage and our own calls."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.api.app import SERVICES
from unstuck.store import clock, generation
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import hosts

BASE = "/compute/v2.1"
SERVERS = f"{BASE}/servers"


@pytest.fixture
def services() -> list[str]:
    return [*SERVICES, "unstuck.api.agents"]


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def server(who: Cloud, site: Site, **more: Any) -> str:
    answer = who.ask("POST", SERVERS, json=site.body(**more))
    assert answer.status_code == 202, answer.text
    made: str = answer.json()["server"]["id"]
    return made


def silence(site: Site, seconds: float) -> None:
    """Let the host's last word be older than it is."""

    def age(tx: Tx) -> None:
        tx.execute(sa.update(hosts).values(seen=hosts.c.seen - seconds))

    site.store.transact(age)


BRIEF = {"id", "hypervisor_hostname", "state", "status"}
NEW = BRIEF | {"hypervisor_type", "hypervisor_version", "host_ip", "service", "uptime"}
OLD = NEW - {"uptime"} | {
    "vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used",
    "free_disk_gb", "disk_available_least", "running_vms", "current_workload", "cpu_info",
}  # fmt: skip


def test_hypervisors(admin: Cloud, demo: Cloud, site: Site) -> None:
    made = server(demo, site, flavorRef="3")
    site.settle()
    path = f"{BASE}/os-hypervisors"
    assert demo.get(path).status_code == 403
    [brief] = admin.get(path).json()["hypervisors"]
    assert set(brief) == BRIEF
    assert isinstance(brief["id"], int)
    [old] = admin.get(f"{path}/detail").json()["hypervisors"]
    assert set(old) == OLD
    assert (old["vcpus"], old["vcpus_used"], old["memory_mb_used"], old["running_vms"]) == (64, 1, 512, 1)
    [new] = admin.get(f"{path}/detail", headers=at("2.88")).json()["hypervisors"]
    assert set(new) == NEW
    assert (new["id"], new["state"], new["status"]) == (site.host.id, "up", "enabled")
    for key in (site.host.id, "host-1"):
        one = admin.get(f"{path}/{key}?with_servers=true", headers=at("2.88")).json()["hypervisor"]
        assert one["servers"] == [{"uuid": made, "name": "web"}]
    assert set(admin.get(f"{path}/{brief['id']}").json()["hypervisor"]) == OLD
    assert admin.get(f"{path}/nonsense", headers=at("2.88")).status_code == 404
    assert admin.get(f"{path}?hypervisor_hostname_pattern=x", headers=at("2.53")).status_code == 404
    assert admin.get(f"{path}?limit=1&marker=x", headers=at("2.33")).status_code == 400
    stats = admin.get(f"{path}/statistics").json()["hypervisor_statistics"]
    assert (stats["count"], stats["running_vms"]) == (1, 1)
    assert admin.get(f"{path}/statistics", headers=at("2.88")).status_code == 404
    up = admin.get(f"{path}/{brief['id']}/uptime").json()["hypervisor"]
    assert set(up) == BRIEF | {"uptime"}
    [old] = admin.get(f"{path}/host-1/servers").json()["hypervisors"]
    assert old["servers"][0]["uuid"] == made
    assert len(admin.get(f"{path}/host/search").json()["hypervisors"]) == 1


def test_services_and_zones(admin: Cloud, demo: Cloud, site: Site) -> None:
    path = f"{BASE}/os-services"
    [service] = admin.get(path, headers=at("2.69")).json()["services"]
    keys = {"id", "binary", "host", "zone", "status", "state", "updated_at", "disabled_reason"}
    assert set(service) == keys | {"forced_down"}
    assert set(admin.get(path).json()["services"][0]) == keys
    body = {"status": "disabled", "disabled_reason": "work"}
    made = admin.ask("PUT", f"{path}/{service['id']}", json=body, headers=at("2.53")).json()["service"]
    assert (made["status"], made["disabled_reason"]) == ("disabled", "work")
    waiting = server(demo, site)
    site.settle()
    shown = demo.get(f"{SERVERS}/{waiting}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("BUILD", "scheduling")
    [zone] = demo.get(f"{BASE}/os-availability-zone").json()["availabilityZoneInfo"]
    assert zone == {"zoneName": "nova", "zoneState": {"available": False}, "hosts": None}
    body = {"host": "host-1", "binary": "nova-compute"}
    made = admin.ask("PUT", f"{path}/enable", json=body).json()["service"]
    assert made == {**body, "status": "enabled"}
    assert admin.ask("PUT", f"{path}/enable", json={**body, "host": "x"}).status_code == 404
    for bad in ({"status": "x"}, {"status": "enabled", "disabled_reason": "x"}, {"forced_down": "maybe"}):
        assert admin.ask("PUT", f"{path}/{service['id']}", json=bad, headers=at("2.53")).status_code == 400
    assert admin.ask("PUT", f"{path}/x", json={"status": "enabled"}, headers=at("2.53")).status_code == 404
    assert demo.get(f"{BASE}/os-availability-zone/detail").status_code == 403
    [zone] = admin.get(f"{BASE}/os-availability-zone/detail").json()["availabilityZoneInfo"]
    assert zone["hosts"]["host-1"]["nova-compute"]["available"] is True
    silence(site, 100)
    [service] = admin.get(path).json()["services"]
    assert service["state"] == "down"
    assert admin.get(f"{path}?host=other").json() == {"services": []}
    assert admin.get(f"{path}?binary=nova-scheduler").json() == {"services": []}


def test_limits_and_quotas(admin: Cloud, demo: Cloud, site: Site) -> None:
    server(demo, site, flavorRef="5")
    absolute = demo.get(f"{BASE}/limits?reserved=False").json()["limits"]["absolute"]
    assert absolute["totalInstancesUsed"] == 1
    assert absolute["totalCoresUsed"] == 2
    assert absolute["totalRAMUsed"] == 4096
    assert "maxImageMeta" in absolute
    new = demo.get(f"{BASE}/limits", headers=at("2.57")).json()["limits"]["absolute"]
    assert not {"maxImageMeta", "maxPersonality", "maxSecurityGroups"} & set(new)
    project = site.project("demo")
    shown = demo.get(f"{BASE}/os-quota-sets/{project}", headers=at("2.57")).json()["quota_set"]
    assert set(shown) == {
        "id", "instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups",
        "server_group_members",
    }  # fmt: skip
    assert "fixed_ips" in demo.get(f"{BASE}/os-quota-sets/{project}/defaults").json()["quota_set"]
    detail = admin.get(f"{BASE}/os-quota-sets/{project}/detail").json()["quota_set"]
    assert detail["cores"] == {"limit": 200, "in_use": 2, "reserved": 0}
    assert demo.get(f"{BASE}/os-quota-sets/other").status_code == 403


def test_usage(admin: Cloud, demo: Cloud, site: Site) -> None:
    server(demo, site)
    project = site.project("demo")
    path = f"{BASE}/os-simple-tenant-usage"
    query = "?start=2020-01-01T00:00:00&end=2090-01-01T00:00:00"
    shown = demo.get(f"{path}/{project}{query}").json()["tenant_usage"]
    assert shown["tenant_id"] == project
    assert shown["server_usages"][0]["memory_mb"] == 64
    assert demo.get(path).status_code == 403
    [listed] = admin.get(f"{path}{query}").json()["tenant_usages"]
    assert "server_usages" not in listed
    assert "server_usages" in admin.get(f"{path}{query}&detailed=1").json()["tenant_usages"][0]
    assert admin.get(f"{path}/nobody").json() == {"tenant_usage": {}}
    assert admin.get(f"{path}?start=x").status_code == 400


def test_what_is_simply_empty(admin: Cloud, demo: Cloud) -> None:
    assert admin.get(f"{BASE}/os-aggregates").json() == {"aggregates": []}
    assert demo.get(f"{BASE}/os-server-groups").json() == {"server_groups": []}
    assert demo.get(f"{BASE}/extensions").json()["extensions"]
    assert demo.get(f"{BASE}/extensions/os-keypairs").status_code == 200
    assert demo.get(f"{BASE}/extensions/x").status_code == 404
    assert demo.ask("HEAD", f"{BASE}/flavors").status_code == 200


def test_explanations(admin: Cloud, demo: Cloud, site: Site) -> None:
    def told(who: Cloud, server_id: str) -> dict[str, Any]:
        answer = who.get(f"/unstuck/v1/explain/server/{server_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    server_id = server(demo, site)
    waiting = told(demo, server_id)
    assert set(waiting) == {
        "kind", "id", "name", "status", "task", "host_status", "reason", "since_seconds", "since", "holder",
        "next", "by_seconds", "conditions",
    }  # fmt: skip
    assert "waits for a host" in waiting["reason"]
    assert 290 < waiting["by_seconds"] <= 300
    site.settle()
    assert told(demo, server_id)["reason"] == "the guest runs, as it should"
    assert told(demo, server_id)["holder"] == "host agent on host-1, incarnation 1"
    silence(site, 100)
    quiet = told(demo, server_id)
    assert "host-1 has been silent for 10" in quiet["reason"]
    assert "runs on" in quiet["reason"]
    assert [item["code"] for item in quiet["conditions"]] == ["host-away"]
    shown = demo.get(f"{SERVERS}/{server_id}", headers=at("2.16")).json()["server"]
    assert (shown["status"], shown["host_status"]) == ("ACTIVE", "DOWN")
    demo.ask("DELETE", f"{SERVERS}/{server_id}")
    tomb = told(demo, server_id)
    assert tomb["status"] == "DELETED"
    assert "deleted while its host host-1 was silent" in tomb["reason"]
    assert admin.get("/unstuck/v1/status").json()["tombstones"] == 1
    theirs = server(admin, site)
    assert demo.get(f"/unstuck/v1/explain/server/{theirs}").status_code == 404
    assert demo.get(f"/unstuck/v1/explain/planet/{theirs}").status_code == 404


def test_an_explanation_names_the_host_that_has_not_said_what_it_holds(demo: Cloud, site: Site) -> None:
    """The create is taken at once; what is waited for, and for how long, is shown."""
    site.store.transact(generation.tick, lease_seconds=30.0)
    unheard = sa.update(hosts).values(told_session="the last one")
    site.store.transact(lambda tx: tx.execute(unheard))
    server_id = server(demo, site)
    site.settle()
    shown = demo.get(f"/unstuck/v1/explain/server/{server_id}").json()
    assert shown["status"] == "BUILD"
    assert [condition["code"] for condition in shown["conditions"]] == ["host-unheard"]
    assert "host-1 has not said yet what it holds" in shown["reason"]
    assert 0 < shown["by_seconds"] <= 60


def test_status_and_inventory(admin: Cloud, demo: Cloud, site: Site) -> None:
    assert demo.get("/unstuck/v1/status").status_code == 403
    assert demo.get("/unstuck/v1/inventory").status_code == 403
    running, waiting = server(demo, site), None
    site.settle()
    site.host.beat(unknown=("stray",))
    waiting = server(demo, site)
    admin.store.transact(clock.tick, lease_seconds=30.0)
    shown = admin.get("/unstuck/v1/status").json()
    assert 0 <= shown["clock_age"] < 60
    assert shown["unsettled"]["server"]["count"] == 1
    assert shown["unsettled"]["server"]["oldest_id"] == waiting
    assert shown["unsettled"]["operation"]["count"] == 1
    assert shown["hosts"][0]["up"] is True
    [host] = admin.get("/unstuck/v1/inventory").json()["hosts"]
    assert host["unknown"] == ["stray"]
    [placed] = host["placements"]
    assert (placed["server_id"], placed["state"], placed["power"]) == (running, "live", "on")
    assert placed["nonce"]
    assert placed["disk_id"]
    assert placed["ports"][0]["mac"].startswith("52:54")


def test_quotas_count_cores_and_memory(admin: Cloud, demo: Cloud, site: Site) -> None:
    huge = {"name": "huge", "ram": 300 * 1024, "vcpus": 4, "disk": 0, "id": "huge"}
    assert admin.ask("POST", f"{BASE}/flavors", json={"flavor": huge}).status_code == 200
    server(demo, site, flavorRef="huge")
    answer = demo.ask("POST", SERVERS, json=site.body(flavorRef="huge"))
    assert answer.status_code == 403
    assert "Quota exceeded for ram" in answer.json()["forbidden"]["message"]
    many = {"name": "many", "ram": 64, "vcpus": 199, "disk": 0, "id": "many"}
    assert admin.ask("POST", f"{BASE}/flavors", json={"flavor": many}).status_code == 200
    answer = demo.ask("POST", SERVERS, json=site.body(flavorRef="many"))
    assert "Quota exceeded for cores" in answer.json()["forbidden"]["message"]


def test_a_host_is_declared_lost_struck_off_and_let_in_again(demo: Cloud, admin: Cloud, site: Site) -> None:
    path = f"{BASE}/os-services"
    kept = server(demo, site)
    site.settle()
    [service] = admin.get(path, headers=at("2.53")).json()["services"]
    one = f"{path}/{service['id']}"
    assert demo.ask("DELETE", one, headers=at("2.53")).status_code == 403
    refused = admin.ask("DELETE", one, headers=at("2.53"))
    assert refused.status_code == 409
    assert "--down" in refused.json()["conflictingRequest"]["message"]
    made = admin.ask("PUT", one, json={"forced_down": True}, headers=at("2.53")).json()["service"]
    assert (made["forced_down"], made["state"]) == (True, "down")
    body = {"host": service["host"], "binary": "nova-compute", "forced_down": False}
    assert admin.ask("PUT", f"{path}/force-down", json=body, headers=at("2.11")).json() == {"service": body}
    assert admin.ask("PUT", f"{path}/force-down", json=body, headers=at("2.10")).status_code == 404
    body |= {"forced_down": True}
    assert admin.ask("PUT", f"{path}/force-down", json=body, headers=at("2.52")).status_code == 200
    assert demo.get(f"{SERVERS}/{kept}").json()["server"]["status"] == "ACTIVE"
    assert admin.ask("DELETE", one, headers=at("2.53")).status_code == 204
    assert admin.ask("DELETE", one, headers=at("2.53")).status_code == 404
    assert admin.get(path, headers=at("2.53")).json()["services"] == []
    shown = demo.get(f"{SERVERS}/{kept}").json()["server"]
    assert shown["status"] == "ERROR"
    assert "struck off by an operator" in shown["fault"]["message"]
    assert demo.ask("POST", "/unstuck/v1/join-tokens").status_code == 403
    token = admin.ask("POST", "/unstuck/v1/join-tokens").json()["join_token"]["token"]
    ask = {
        "token": token, "host_id": site.host.id, "hostname": site.host.name, "machine_id": site.host.name,
        "secret_hash": "0" * 64,
    }  # fmt: skip
    join = "/agents/v1/join"
    for field, bad in (("host_id", "x"), ("hostname", "a b"), ("secret_hash", "x"), ("machine_id", "")):
        assert admin.ask("POST", join, json={**ask, field: bad}).status_code == 400
    assert admin.ask("POST", join, json={**ask, "token": "x"}).status_code == 403
    assert admin.ask("POST", join, json=ask).status_code == 200
    assert demo.get(f"{SERVERS}/{kept}").json()["server"]["status"] == "ACTIVE"
