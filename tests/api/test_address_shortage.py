"""The network has no address left: a clear refusal, nothing leaks, and the next one that fits gets one."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.store import networks
from unstuck.store.networks import ensure_default_network

SERVERS = "/compute/v2.1/servers"
FIVE = "10.9.0.0/29"


@pytest.fixture
def site(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Site:
    def small(store: Any) -> str:
        made: str = store.transact(ensure_default_network, project_id="p", cidr=FIVE)
        return made

    monkeypatch.setattr("tests.compute_site.network", small)
    return Site(cloud.store)


def create(demo: Cloud, site: Site, **more: Any) -> Any:
    body = site.body(networks="auto", **more)
    return demo.ask("POST", SERVERS, json=body, headers={"x-openstack-nova-api-version": "2.96"})


def addresses(demo: Cloud) -> list[str]:
    ports = demo.get("/networking/v2.0/ports").json()["ports"]
    return sorted(port["fixed_ips"][0]["ip_address"] for port in ports)


def test_a_server_that_finds_no_address_is_refused_and_leaks_nothing(demo: Cloud, site: Site) -> None:
    made = [create(demo, site).json()["server"]["id"] for _ in range(5)]
    full = addresses(demo)
    assert full == [f"10.9.0.{number}" for number in range(2, 7)]
    for more in ({}, {"min_count": 2, "max_count": 2}):
        refused = create(demo, site, **more)
        assert refused.status_code == 400
        assert "No more IP addresses available" in refused.json()["badRequest"]["message"]
    assert addresses(demo) == full
    assert len(demo.get(SERVERS).json()["servers"]) == 5
    site.settle()
    assert demo.ask("DELETE", f"{SERVERS}/{made[2]}").status_code == 204
    refused = create(demo, site)
    assert refused.status_code == 400, "it is free only once its host was seen without it"
    site.settle()
    assert addresses(demo) == [address for address in full if address != full[2]]
    assert create(demo, site).status_code == 202
    assert addresses(demo) == full


def test_some_of_several_servers_are_not_made_half(demo: Cloud, site: Site) -> None:
    refused = create(demo, site, min_count=1, max_count=9)
    assert refused.status_code == 400
    assert addresses(demo) == []
    assert demo.get(SERVERS).json()["servers"] == []


@pytest.mark.parametrize(
    ("cidr", "first", "last"),
    [
        ("10.9.0.0/29", "10.9.0.2", "10.9.0.6"),
        ("10.9.0.0/28", "10.9.0.2", "10.9.0.14"),
        ("10.9.0.0/24", "10.9.0.10", "10.9.0.254"),
    ],
)
def test_a_small_network_begins_right_behind_its_gateway(cidr: str, first: str, last: str) -> None:
    net = ipaddress.IPv4Network(cidr)
    assert (str(networks.first_of(net)), str(net[-2])) == (first, last)
