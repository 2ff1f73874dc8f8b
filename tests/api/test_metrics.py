"""``GET /metrics``: what it tells, whom it answers, and that it holds no more than a route per request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import sqlalchemy as sa
from api_cloud import Cloud, app_over
from prometheus_client.parser import text_string_to_metric_families
from tests.compute_site import Site

from unstuck.api.app import SERVICES
from unstuck.api.context import Settings
from unstuck.store import images
from unstuck.store.engine import Store, StoreUnavailable
from unstuck.store.schema.compute import servers

BASE = "/compute/v2.1"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def scrape(cloud: Cloud) -> dict[tuple[str, ...], float]:
    """Every sample by name and label values."""
    answer = cloud.get("/metrics", headers={"x-auth-token": ""})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def age(store: Store, seconds: float) -> None:
    store.transact(lambda tx: tx.execute(sa.update(servers).values(seen_at=servers.c.seen_at - seconds)))


def test_a_quiet_cloud_has_nothing_unsettled(cloud: Cloud) -> None:
    found = scrape(cloud)
    for kind in (
        "server_building", "server_changing", "server_deleting", "instance", "operation", "image_upload",
        "ask", "verification", "schedule_run",
    ):  # fmt: skip
        assert found["unstuck_unsettled", kind] == 0
        assert found["unstuck_overdue", kind] == 0
        assert found["unstuck_oldest_unsettled_seconds", kind] == 0
    assert found["unstuck_store_up",] == 1
    assert found["unstuck_hosts", "up"] == 0


def test_what_is_on_its_way_is_told_by_kind_and_age(demo: Cloud, site: Site) -> None:
    made = demo.ask("POST", f"{BASE}/servers", json=site.body()).json()["server"]["id"]
    found = scrape(demo)
    assert found["unstuck_unsettled", "server_building"] == 1
    assert found["unstuck_unsettled", "operation"] == 1
    assert 0 <= found["unstuck_oldest_unsettled_seconds", "server_building"] < 60
    site.settle()
    found = scrape(demo)
    assert found["unstuck_unsettled", "server_building"] == 0
    assert found["unstuck_unsettled", "operation"] == 0
    assert found["unstuck_hosts", "up"] == 1
    demo.ask("DELETE", f"{BASE}/servers/{made}")
    found = scrape(demo)
    assert found["unstuck_unsettled", "server_deleting"] == 1
    site.settle()
    assert scrape(demo)["unstuck_unsettled", "server_deleting"] == 0


def test_an_upload_is_on_its_way_until_it_ends(demo: Cloud) -> None:
    body = {"name": "x", "disk_format": "raw", "container_format": "bare"}
    image_id = demo.ask("POST", "/image/v2/images", json=body).json()["id"]
    demo.store.transact(images.claim_upload, image_id, project_id=None, admin=True, nonce="n", seconds=60.0)
    assert scrape(demo)["unstuck_unsettled", "image_upload"] == 1
    demo.store.transact(images.release_upload, image_id, nonce="n")
    assert scrape(demo)["unstuck_unsettled", "image_upload"] == 0


def test_servers_at_rest_are_counted_beside_the_scrape(demo: Cloud, site: Site) -> None:
    for _ in range(3):
        made = demo.ask("POST", f"{BASE}/servers", json=site.body()).json()["server"]["id"]
    site.settle()
    demo.ask("POST", f"{BASE}/servers/{made}/action", json={"os-stop": None})
    site.settle()
    found = scrape(demo)  # starts the count
    end = time.monotonic() + 20
    while ("unstuck_backups_damaged",) not in found and time.monotonic() < end:
        found = scrape(demo)
    assert found["unstuck_backups_damaged",] == 0
    assert found["unstuck_archives", "open"] == 0
    assert found["unstuck_archive_lag_seconds",] == 0
    assert [found["unstuck_servers_at_rest", state] for state in ("on", "off", "failed")] == [2, 1, 0]
    assert found["unstuck_servers_at_rest_age_seconds",] >= 0


def test_requests_are_counted_by_route_and_never_by_what_a_client_sends(demo: Cloud) -> None:
    for number in range(3):
        assert demo.get(f"{BASE}/flavors/nonsense-{number}").status_code == 404
    demo.get("/no/such/path")
    demo.ask("BREW", f"{BASE}/flavors")
    found = scrape(demo)
    name = "unstuck_http_request_seconds_count"
    assert found[name, "GET", f"{BASE}/flavors/{{id}}", "4xx"] == 3
    assert found[name, "", "none", "4xx"] == 2
    assert not [key for key in found if "nonsense" in str(key) or "BREW" in str(key)]


def get(store: Store, settings: Settings, peer: str, **headers: str) -> httpx2.Response:
    """A scrape from some address."""
    app = app_over(store, settings, SERVICES)

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app, client=(peer, 4000))
        async with httpx2.AsyncClient(transport=transport, base_url="http://cloud:81") as client:
            return await client.get("/metrics", headers=headers)

    return asyncio.run(send())


def test_only_the_machine_itself_or_who_has_the_token_is_answered(store: Store, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, metrics_token="much-secret")
    right = {"authorization": "Bearer much-secret"}
    for peer in ("127.0.0.1", "::1", "127.0.0.9"):
        assert get(store, settings, peer).status_code == 200
    for peer in ("10.0.0.1", "2001:db8::1", "nonsense"):
        refused = get(store, settings, peer)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert get(store, settings, peer, **right).status_code == 200
        for wrong in ("Bearer x", "Basic much-secret", "much-secret", "Bearer ", ""):
            assert get(store, settings, peer, authorization=wrong).status_code == 401
    forwarded = {"x-forwarded-for": "10.0.0.1"}
    assert get(store, settings, "127.0.0.1", **forwarded).status_code == 401
    behind = msgspec.structs.replace(settings, public_url="https://cloud.example")
    assert get(store, behind, "127.0.0.1").status_code == 401
    assert get(store, behind, "127.0.0.1", **right).status_code == 200
    nobody = msgspec.structs.replace(settings, metrics_token=None)
    assert get(store, nobody, "10.0.0.1", authorization="Bearer ").status_code == 401


def test_a_store_that_does_not_answer_is_told_and_not_an_error(
    store: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "run_read", away)
    answer = get(store, Settings(state_dir=tmp_path), "127.0.0.1")
    assert answer.status_code == 200
    assert "unstuck_store_up 0.0" in answer.text
    assert "unstuck_unsettled" not in answer.text
