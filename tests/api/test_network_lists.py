"""The network API: lists, shows, and the honest refusal of everything else."""

from __future__ import annotations

import pytest
from api_cloud import Cloud
from tests.compute_site import Site

BASE = "/networking/v2.0"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def server(who: Cloud, site: Site) -> str:
    made: str = who.ask("POST", "/compute/v2.1/servers", json=site.body()).json()["server"]["id"]
    return made


def test_networks_and_subnets(demo: Cloud, admin: Cloud, site: Site) -> None:
    [network] = demo.get(f"{BASE}/networks").json()["networks"]
    assert (network["name"], network["shared"], network["router:external"]) == ("private", True, False)
    assert network["project_id"] == network["tenant_id"]
    assert "provider:network_type" not in network
    assert "provider:network_type" in admin.get(f"{BASE}/networks").json()["networks"][0]
    [subnet] = demo.get(f"{BASE}/subnets?network_id={network['id']}").json()["subnets"]
    assert network["subnets"] == [subnet["id"]]
    assert (subnet["cidr"], subnet["ip_version"], subnet["gateway_ip"]) == ("10.7.0.0/16", 4, "10.7.0.1")
    assert demo.get(f"{BASE}/networks/{network['id']}").json()["network"]["id"] == network["id"]
    missing = demo.get(f"{BASE}/networks/private")
    assert missing.status_code == 404
    assert missing.json()["NeutronError"]["type"] == "NetworkNotFound"
    for query, count in (
        ("name=private", 1), ("name=x", 0), ("name=x&name=private", 1), ("router:external=True", 0),
        ("shared=true", 1), (f"id={network['id']}", 1), ("tenant_id=x", 0), ("unheard_of=x", 1),
        ("limit=0", 0), ("sort_key=name&sort_dir=desc", 1), (f"marker={network['id']}", 0),
    ):  # fmt: skip
        assert len(demo.get(f"{BASE}/networks?{query}").json()["networks"]) == count, query
    for query in ("limit=x", "marker=x", "shared=maybe", "sort_key=x&sort_dir=asc", "sort_dir=asc"):
        answer = demo.get(f"{BASE}/networks?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["NeutronError"]["message"]
    [chosen] = demo.get(f"{BASE}/networks?fields=id&fields=name").json()["networks"]
    assert chosen == {"id": network["id"], "name": "private"}


def test_ports(demo: Cloud, admin: Cloud, site: Site) -> None:
    mine, theirs = server(demo, site), server(admin, site)
    [port] = demo.get(f"{BASE}/ports").json()["ports"]
    assert (port["device_id"], port["device_owner"], port["status"]) == (mine, "compute:nova", "DOWN")
    site.settle()
    [port] = demo.get(f"{BASE}/ports?device_id={mine}").json()["ports"]
    assert port["status"] == "ACTIVE"
    assert "binding:host_id" not in port
    assert demo.get(f"{BASE}/ports?device_id={theirs}").json() == {"ports": []}
    [other] = admin.get(f"{BASE}/ports?device_id={theirs}").json()["ports"]
    assert other["binding:host_id"] == "host-1"
    assert demo.get(f"{BASE}/ports/{other['id']}").status_code == 404
    assert demo.get(f"{BASE}/ports/{port['id']}").json()["port"]["id"] == port["id"]
    address = port["fixed_ips"][0]["ip_address"]
    assert len(admin.get(f"{BASE}/ports?fixed_ips=ip_address%3D{address}").json()["ports"]) == 1
    assert admin.get(f"{BASE}/ports?fixed_ips=nonsense").status_code == 400
    page = admin.get(f"{BASE}/ports?limit=1").json()
    assert page["ports_links"][0]["rel"] == "next"
    rest = admin.get(page["ports_links"][0]["href"].partition("http://cloud:81")[2]).json()
    assert {page["ports"][0]["device_id"], rest["ports"][0]["device_id"]} == {mine, theirs}
    assert "ports_links" not in rest


def test_security_groups(demo: Cloud, admin: Cloud, site: Site) -> None:
    [group] = demo.get(f"{BASE}/security-groups?name=default").json()["security_groups"]
    assert group["project_id"] == site.project("demo")
    assert [rule["direction"] for rule in group["security_group_rules"]] == ["egress", "ingress"]
    assert demo.get(f"{BASE}/security-groups/{group['id']}").status_code == 200
    rules = demo.get(f"{BASE}/security-group-rules").json()["security_group_rules"]
    assert rules == group["security_group_rules"]
    project = site.project("demo")
    [same] = admin.get(f"{BASE}/security-groups?project_id={project}").json()["security_groups"]
    assert same == group


def test_the_rest(demo: Cloud, admin: Cloud, site: Site) -> None:
    for name in ("routers", "floatingips"):
        assert demo.get(f"{BASE}/{name}").json() == {name: []}
    aliases = {item["alias"] for item in demo.get(f"{BASE}/extensions").json()["extensions"]}
    assert "security-group" in aliases
    assert demo.get(f"{BASE}/extensions/security-group").status_code == 200
    assert demo.get(f"{BASE}/extensions/Availability%20Zone").status_code == 404
    project = site.project("demo")
    assert demo.get(f"{BASE}/quotas/{project}").json()["quota"]["network"] == 0
    assert demo.get(f"{BASE}/quotas/{project}/default").status_code == 200
    assert demo.get(f"{BASE}/quotas/{project}/details").json()["quota"]["port"]["used"] == 0
    assert demo.get(f"{BASE}/quotas/other").status_code == 403
    for method, path in (("POST", "networks"), ("PUT", "ports/x"), ("DELETE", "subnets/x")):
        answer = admin.ask(method, f"{BASE}/{path}", json={})
        assert answer.status_code == 403
        assert answer.json()["NeutronError"]["type"] == "PolicyNotAuthorized"
        assert "read only" in answer.json()["NeutronError"]["message"]
