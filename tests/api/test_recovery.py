"""The store was set back: who may see and settle what is in dispute, and what users are told meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.store import generation

BASE = "/unstuck/v1/recovery"
SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def test_administrators_only(demo: Cloud, site: Site) -> None:
    assert demo.get(BASE).status_code == 403
    assert demo.ask("POST", f"{BASE}/accept", json={"id": "x"}).status_code == 403
    assert demo.ask("POST", f"{BASE}/allow-destruction").status_code == 403


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "id"),
        ({"id": 1}, "id"),
        ({"id": "x", "extra": 1}, "extra"),
        ({"id": "x", "give_up": "y"}, "give_up"),
    ],
)
def test_bad_acceptances_name_what_is_wrong(admin: Cloud, site: Site, body: Any, named: str) -> None:
    answer = admin.ask("POST", f"{BASE}/accept", json=body)
    assert answer.status_code == 400
    assert named in answer.text


def test_a_store_that_was_not_set_back_has_nothing_to_accept(admin: Cloud, site: Site) -> None:
    assert admin.get(BASE).json()["recovery"] is None
    assert admin.ask("POST", f"{BASE}/accept", json={"id": "x"}).status_code == 404
    assert admin.ask("POST", f"{BASE}/allow-destruction").status_code == 204


def test_users_are_told_to_try_again_until_every_host_has_spoken(
    admin: Cloud, demo: Cloud, site: Site
) -> None:
    admin.store.transact(generation.rise, "a test")
    answer = demo.ask("POST", SERVERS, json=site.body())
    assert answer.status_code == 503
    assert "has not said yet which addresses are in use" in answer.text
    assert demo.get(SERVERS).json()["servers"] == [], "nothing was changed"
    shown = admin.get(BASE).json()["recovery"]
    assert shown["waiting_for"] == ["host-1"]
    assert shown["why"] == "a test"
    refused = admin.ask("POST", f"{BASE}/accept", json={"id": shown["id"]})
    assert refused.status_code == 409
    assert "disable the host" in refused.text
