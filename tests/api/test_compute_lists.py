"""Lists of servers: filters, sorting, pages, deleted ones; and what is asked of the store for it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_site import Site

from unstuck.core.server.names import hostname_of, name_filter
from unstuck.store import quotas

SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def create(who: Cloud, site: Site, name: str, version: str = "2.96", **more: Any) -> str:
    body = site.body(**{"name": name, "networks": "auto", **more})
    answer = who.ask("POST", SERVERS, json=body, headers=at(version))
    assert answer.status_code == 202, answer.text
    server: str = answer.json()["server"]["id"]
    return server


def found(who: Cloud, query: str, version: str = "2.96") -> list[str]:
    answer = who.get(f"{SERVERS}?{query}", headers=at(version))
    assert answer.status_code == 200, answer.text
    return sorted(item["name"] for item in answer.json()["servers"])


def status_of(who: Cloud, query: str, version: str = "2.96") -> int:
    return who.get(f"{SERVERS}?{query}", headers=at(version)).status_code


def test_filters(demo: Cloud, site: Site) -> None:
    web = create(demo, site, "web-1", tags=["x", "y"])
    create(demo, site, "web-2", tags=["x"])
    site.settle()
    create(demo, site, "db", flavorRef="2")
    assert found(demo, "") == ["db", "web-1", "web-2"]
    assert found(demo, "name=web") == ["web-1", "web-2"]
    assert found(demo, "name=%5Eweb-1%24") == ["web-1"]
    assert found(demo, "name=w.*2") == ["web-2"]
    assert found(demo, "name=(a%2B)%2Bb") == []
    assert found(demo, "status=ACTIVE") == ["web-1", "web-2"]
    assert found(demo, "status=BUILD") == ["db"]
    assert found(demo, "status=SHUTOFF") == []
    assert found(demo, "status=BUILD&status=active") == ["db", "web-1", "web-2"]
    assert found(demo, "flavor=2") == ["db"]
    assert found(demo, f"image={site.image}") == ["db", "web-1", "web-2"]
    assert found(demo, "tags=x") == ["web-1", "web-2"]
    assert found(demo, "tags=x,y") == ["web-1"]
    assert found(demo, "tags-any=y,z") == ["web-1"]
    assert found(demo, "not-tags=x,y") == ["db", "web-2"]
    assert found(demo, "not-tags-any=x") == ["db"]
    assert found(demo, "power_state=1") == ["web-1", "web-2"]
    assert found(demo, "vm_state=active") == ["web-1", "web-2"]
    assert found(demo, "hostname=db") == ["db"]
    assert found(demo, "locked=true") == []
    assert found(demo, "ip6=fe") == []
    shown = demo.get(f"{SERVERS}/{web}").json()["server"]
    address = shown["addresses"]["private"][0]["addr"]
    assert found(demo, f"ip=%5E{address.replace('.', '%5C.')}%24") == ["web-1"]


def test_old_microversions_do_not_know_later_filters(demo: Cloud, site: Site) -> None:
    create(demo, site, "a")
    assert found(demo, "tags=x", "2.25") == ["a"]
    assert found(demo, "vm_state=x", "2.82") == ["a"]
    assert found(demo, "unheard_of=x", "2.74") == ["a"]
    assert status_of(demo, "unheard_of=x", "2.75") == 400
    assert found(demo, "status=nonsense", "2.37") == []
    assert status_of(demo, "status=nonsense", "2.38") == 400


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1", "limit=x", "marker=nonsense", "sort_key=nonsense", "sort_dir=up", "changes-since=x",
        "changes-since=2030-01-01T00:00:00Z&changes-before=2020-01-01T00:00:00Z", "power_state=x",
        "config_drive=x", "all_tenants=maybe",
    ],
)  # fmt: skip
def test_malformed_queries(admin: Cloud, site: Site, query: str) -> None:
    for path in ("", "/detail"):
        answer = admin.get(f"{SERVERS}{path}?{query}", headers=at("2.96"))
        assert answer.status_code == 400, query
        assert answer.json()["badRequest"]["message"]


def test_pages_and_sorting(demo: Cloud, site: Site) -> None:
    for name in ("b", "d", "a", "c"):
        create(demo, site, name)
    page = demo.get(f"{SERVERS}?limit=3&sort_key=display_name&sort_dir=asc").json()
    assert [item["name"] for item in page["servers"]] == ["a", "b", "c"]
    [link] = page["servers_links"]
    assert link["rel"] == "next"
    page = demo.get(link["href"].partition("http://cloud:81")[2]).json()
    assert [item["name"] for item in page["servers"]] == ["d"]
    assert "servers_links" not in page
    last = page["servers"][-1]["id"]
    assert demo.get(f"{SERVERS}?marker={last}&sort_key=display_name&sort_dir=asc").json() == {"servers": []}
    default = [item["name"] for item in demo.get(SERVERS).json()["servers"]]
    assert default == ["c", "a", "d", "b"]
    first = demo.get(f"{SERVERS}?limit=1").json()["servers"][0]["id"]
    rest = [item["name"] for item in demo.get(f"{SERVERS}?marker={first}").json()["servers"]]
    assert rest == ["a", "d", "b"]
    assert demo.get(f"{SERVERS}?limit=0").json() == {"servers": []}
    two = demo.get(f"{SERVERS}?status=BUILD&limit=2").json()
    assert [item["name"] for item in two["servers"]] == ["c", "a"]
    assert two["servers_links"]


def test_deleted_ones(admin: Cloud, demo: Cloud, site: Site) -> None:
    gone = create(admin, site, "gone")
    create(admin, site, "here")
    assert admin.ask("DELETE", f"{SERVERS}/{gone}").status_code == 204
    assert found(admin, "") == ["here"]
    assert found(admin, "deleted=False") == ["here"]
    assert found(admin, "deleted=True") == ["gone"]
    assert found(admin, "status=deleted") == ["gone"]
    assert found(admin, "changes-since=2020-01-01T00:00:00Z") == ["gone", "here"]
    assert found(admin, "changes-since=2090-01-01T00:00:00Z") == []
    assert found(admin, "changes-before=2090-01-01T00:00:00Z") == ["gone", "here"]
    [shown] = admin.get(f"{SERVERS}/detail?deleted=True").json()["servers"]
    assert (shown["status"], shown["OS-EXT-STS:vm_state"]) == ("DELETED", "deleted")
    assert shown["OS-SRV-USG:terminated_at"]
    mine = create(demo, site, "mine")
    demo.ask("DELETE", f"{SERVERS}/{mine}")
    assert found(demo, "deleted=True") == []
    assert status_of(demo, "status=deleted") == 403


def test_a_thousand_servers_take_two_statements(admin: Cloud, site: Site) -> None:
    site.store.transact(quotas.set_default_limits, {"instances": -1, "cores": -1, "ram": -1})
    for _ in range(10):
        answer = admin.ask("POST", SERVERS, json=site.body(min_count=100, networks=None))
        assert answer.status_code == 202, answer.text
    statements: list[str] = []
    sa.event.listen(
        site.store.engine, "before_cursor_execute",
        lambda conn, cursor, statement, *rest: statements.append(statement),
    )  # fmt: skip
    admin.get(f"{SERVERS}/detail")
    statements.clear()
    answer = admin.get(f"{SERVERS}/detail")
    assert len(answer.json()["servers"]) == 1000
    assert len([text for text in statements if "servers" in text or "ports" in text]) <= 3


def test_name_filters_are_safe_and_mean_what_people_expect() -> None:
    for pattern, name, wanted in (
        ("web", "my-web-1", True), ("^web", "my-web", False), ("web$", "my-web", True),
        ("^a.*z$", "abcz", True), ("^a.*z$", "abcx", False), ("a.c", "abc", True), ("a[bc]d", "acd", True),
        ("a+b", "a+b", True), ("a+b", "aab", False), ("(x+x+)+y", "x" * 40, False), ("a\\.b", "a.b", True),
        ("a\\.b", "axb", False), ("^$", "", True), ("[", "[", True), (".*", "anything", True),
    ):  # fmt: skip
        assert name_filter(pattern)(name) is wanted, (pattern, name)


def test_host_names() -> None:
    assert hostname_of("My Web_1", "id") == "my-web-1"
    assert hostname_of("a.b", "id") == "a.b"
    assert hostname_of("a.b", "id", dots=False) == "a-b"
    assert hostname_of("日本", "id") == "server-id"
    assert hostname_of("x" * 100, "id") == "x" * 63
