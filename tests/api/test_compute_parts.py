"""Flavors, key pairs, and what hangs from servers."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import KEY, Site

from unstuck.core.server.data import Gone, Step, Thing, Trouble

BASE = "/compute/v2.1"
SERVERS = f"{BASE}/servers"


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


NEW = {"name": "big", "ram": 1024, "vcpus": 2, "disk": 1}


def test_flavors(admin: Cloud, demo: Cloud, site: Site) -> None:
    listed = demo.get(f"{BASE}/flavors").json()["flavors"]
    assert [item["name"] for item in listed] == ["t.nano", "t.micro", "m1.tiny", "m1.small", "m1.medium"]
    assert set(listed[0]) == {"id", "name", "links"}
    answer = admin.ask("POST", f"{BASE}/flavors", json={"flavor": {**NEW, "id": None}})
    assert answer.status_code == 200
    made = answer.json()["flavor"]
    assert len(made["id"]) == 36
    assert (made["swap"], made["rxtx_factor"], made["OS-FLV-EXT-DATA:ephemeral"]) == ("", 1.0, 0)
    keys = {
        "id", "name", "ram", "disk", "vcpus", "swap", "OS-FLV-EXT-DATA:ephemeral", "rxtx_factor",
        "OS-FLV-DISABLED:disabled", "os-flavor-access:is_public", "links",
    }  # fmt: skip
    for version, more in (
        ("2.1", set()),
        ("2.55", {"description"}),
        ("2.61", {"description", "extra_specs"}),
    ):
        shown = demo.get(f"{BASE}/flavors/{made['id']}", headers=at(version)).json()["flavor"]
        assert set(shown) == keys | more
    assert admin.ask("POST", f"{BASE}/flavors", json={"flavor": NEW}).status_code == 409
    changed = admin.ask(
        "PUT", f"{BASE}/flavors/{made['id']}", json={"flavor": {"description": "d"}}, headers=at("2.55")
    )
    assert changed.json()["flavor"]["description"] == "d"
    found = demo.get(f"{BASE}/flavors?minRam=1024&limit=1&sort_key=memory_mb").json()
    assert [item["name"] for item in found["flavors"]] == ["big"]
    assert found["flavors_links"]
    assert demo.ask("POST", f"{BASE}/flavors", json={"flavor": NEW}).status_code == 403
    assert admin.ask("DELETE", f"{BASE}/flavors/{made['id']}").status_code == 202
    assert admin.ask("DELETE", f"{BASE}/flavors/{made['id']}").status_code == 404
    assert demo.get(f"{BASE}/flavors/{made['id']}").status_code == 404
    for query in ("limit=-1", "marker=nonsense", "minRam=x", "sort_key=x"):
        assert demo.get(f"{BASE}/flavors?{query}").status_code == 400


@pytest.mark.parametrize(
    ("change", "field"),
    [({"name": ""}, "name"), ({"ram": 0}, "ram"), ({"vcpus": "x"}, "vcpus"), ({"disk": -1}, "disk"),
     ({"swap": -1}, "swap"), ({"rxtx_factor": 0}, "rxtx_factor"), ({"id": "a/b"}, "id"),
     ({"os-flavor-access:is_public": "x"}, "is_public"), ({"description": "x"}, "description"),
     ({"color": "x"}, "color")],
)  # fmt: skip
def test_bad_flavors(admin: Cloud, change: Any, field: str) -> None:
    answer = admin.ask("POST", f"{BASE}/flavors", json={"flavor": {**NEW, **change}})
    assert answer.status_code == 400
    assert field in answer.json()["badRequest"]["message"]


def test_extra_specs_and_access(admin: Cloud, demo: Cloud, site: Site) -> None:
    specs = f"{BASE}/flavors/1/os-extra_specs"
    assert admin.ask("POST", specs, json={"extra_specs": {"a:b": "1"}}).json() == {
        "extra_specs": {"a:b": "1"}
    }
    assert admin.ask("PUT", f"{specs}/c", json={"c": "2"}).json() == {"c": "2"}
    assert admin.ask("PUT", f"{specs}/c", json={"d": "2"}).status_code == 400
    assert admin.ask("POST", specs, json={"extra_specs": {"?": "1"}}).status_code == 400
    assert demo.get(specs).json() == {"extra_specs": {"a:b": "1", "c": "2"}}
    assert demo.get(f"{specs}/c").json() == {"c": "2"}
    assert admin.ask("DELETE", f"{specs}/c").status_code == 200
    assert admin.ask("DELETE", f"{specs}/c").status_code == 404
    assert demo.get(f"{specs}/c").status_code == 404

    private = {**NEW, "id": "private", "os-flavor-access:is_public": False}
    assert admin.ask("POST", f"{BASE}/flavors", json={"flavor": private}).status_code == 200
    assert demo.get(f"{BASE}/flavors/private").status_code == 404
    project = {"tenant": site.project("demo")}
    added = admin.ask("POST", f"{BASE}/flavors/private/action", json={"addTenantAccess": project})
    entry = {"flavor_id": "private", "tenant_id": project["tenant"]}
    assert (added.status_code, added.json()) == (200, {"flavor_access": [entry]})
    assert demo.get(f"{BASE}/flavors/private").status_code == 200
    again = admin.ask("POST", f"{BASE}/flavors/private/action", json={"addTenantAccess": project})
    assert again.status_code == 409
    assert admin.get(f"{BASE}/flavors/private/os-flavor-access").json() == {"flavor_access": [entry]}
    assert admin.get(f"{BASE}/flavors/1/os-flavor-access").status_code == 404
    names = [item["name"] for item in admin.get(f"{BASE}/flavors?is_public=False").json()["flavors"]]
    assert names == ["big"]
    assert len(admin.get(f"{BASE}/flavors/detail?is_public=None").json()["flavors"]) == 6
    for status in (200, 404):
        gone = admin.ask("POST", f"{BASE}/flavors/private/action", json={"removeTenantAccess": project})
        assert gone.status_code == status
    assert demo.get(f"{BASE}/flavors/private").status_code == 404


def test_keypairs(admin: Cloud, demo: Cloud) -> None:
    pairs = f"{BASE}/os-keypairs"

    def add(who: Cloud, version: str, **key: Any) -> Any:
        return who.ask("POST", pairs, json={"keypair": key}, headers=at(version))

    made = add(demo, "2.1", name="a", public_key=KEY)
    assert made.status_code == 200
    assert set(made.json()["keypair"]) == {"name", "public_key", "fingerprint", "user_id"}
    assert len(made.json()["keypair"]["fingerprint"]) == 47
    made = add(demo, "2.2", name="b", public_key=KEY, type="ssh")
    assert made.status_code == 201
    assert set(made.json()["keypair"]) == {"name", "public_key", "fingerprint", "user_id", "type"}
    assert add(demo, "2.2", name="b", public_key=KEY).status_code == 409
    made = add(demo, "2.2", name="c")
    assert made.json()["keypair"]["private_key"].startswith("-----BEGIN OPENSSH PRIVATE KEY")
    for version, key, field in (
        ("2.1", {"name": "x", "public_key": "nonsense"}, "public_key"),
        ("2.1", {"name": "x", "public_key": "ssh-rsa AAAA"}, "public_key"),
        ("2.1", {"name": "x", "public_key": KEY, "type": "ssh"}, "type"),
        ("2.2", {"name": "x", "public_key": KEY, "type": "x509"}, "x509"),
        ("2.2", {"name": "x/y", "public_key": KEY}, "name"),
        ("2.2", {"name": "", "public_key": KEY}, "name"),
        ("2.92", {"name": "x"}, "public_key"),
    ):  # fmt: skip
        answer = add(demo, version, **key)
        assert answer.status_code == 400, key
        assert field in answer.json()["badRequest"]["message"]
    listed = demo.get(pairs, headers=at("2.35")).json()["keypairs"]
    assert [item["keypair"]["name"] for item in listed] == ["a", "b", "c"]
    page = demo.get(f"{pairs}?limit=1&marker=a", headers=at("2.35")).json()
    assert [item["keypair"]["name"] for item in page["keypairs"]] == ["b"]
    assert page["keypairs_links"]
    assert demo.get(f"{pairs}?marker=x", headers=at("2.35")).status_code == 400
    shown = demo.get(f"{pairs}/a", headers=at("2.2")).json()["keypair"]
    assert shown["type"] == "ssh"
    assert demo.get(f"{pairs}?user_id=somebody", headers=at("2.10")).status_code == 403
    owner = shown["user_id"]
    assert admin.get(f"{pairs}/a").status_code == 404
    assert admin.get(f"{pairs}/a?user_id={owner}", headers=at("2.10")).status_code == 200
    assert demo.ask("DELETE", f"{pairs}/a").status_code == 202
    assert demo.ask("DELETE", f"{pairs}/b", headers=at("2.2")).status_code == 204
    assert demo.ask("DELETE", f"{pairs}/b", headers=at("2.2")).status_code == 404


def test_metadata(demo: Cloud, site: Site) -> None:
    path = f"{SERVERS}/{server(demo, site, metadata={'a': '1'})}/metadata"
    assert demo.get(path).json() == {"metadata": {"a": "1"}}
    merged = demo.ask("POST", path, json={"metadata": {"b": "2"}})
    assert (merged.status_code, merged.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
    assert demo.ask("PUT", path, json={"metadata": {"c": "3"}}).json() == {"metadata": {"c": "3"}}
    assert demo.ask("PUT", f"{path}/c", json={"meta": {"c": "4"}}).json() == {"meta": {"c": "4"}}
    assert demo.get(f"{path}/c").json() == {"meta": {"c": "4"}}
    assert demo.ask("PUT", f"{path}/c", json={"meta": {"d": "4"}}).status_code == 400
    assert demo.ask("DELETE", f"{path}/c").status_code == 204
    assert demo.ask("DELETE", f"{path}/c").status_code == 404
    assert demo.get(f"{path}/c").status_code == 404
    for bad in ({"metadata": {"": "x"}}, {"metadata": {"x": None}}, {"meta": {}}, {"metadata": []}):
        assert demo.ask("POST", path, json=bad).status_code == 400, bad
    many = {"metadata": {f"k{n}": "v" for n in range(129)}}
    assert demo.ask("POST", path, json=many).status_code == 403


def test_tags(demo: Cloud, site: Site) -> None:
    path = f"{SERVERS}/{server(demo, site)}/tags"
    new = {"headers": at("2.26")}
    assert demo.get(path).status_code == 404  # there are none before 2.26
    assert demo.get(path, **new).json() == {"tags": []}
    assert demo.ask("PUT", path, json={"tags": ["a", "b"]}, **new).json() == {"tags": ["a", "b"]}
    made = demo.ask("PUT", f"{path}/c", **new)
    assert (made.status_code, made.headers["location"].endswith("/tags/c")) == (201, True)
    assert demo.ask("PUT", f"{path}/c", **new).status_code == 204
    assert demo.get(f"{path}/c", **new).status_code == 204
    assert demo.ask("DELETE", f"{path}/c", **new).status_code == 204
    assert demo.ask("DELETE", f"{path}/c", **new).status_code == 404
    assert demo.get(f"{path}/c", **new).status_code == 404
    assert demo.ask("PUT", path, json={"tags": ["x" * 61]}, **new).status_code == 400
    assert demo.ask("DELETE", path, **new).status_code == 204
    assert demo.get(path, **new).json() == {"tags": []}


def test_addresses_and_groups(demo: Cloud, site: Site) -> None:
    path = f"{SERVERS}/{server(demo, site)}"
    shown = demo.get(f"{path}/ips").json()["addresses"]
    assert list(shown) == ["private"]
    assert set(shown["private"][0]) == {"version", "addr"}
    assert demo.get(f"{path}/ips/private").json() == shown
    assert demo.get(f"{path}/ips/other").status_code == 404
    [group] = demo.get(f"{path}/os-security-groups").json()["security_groups"]
    assert group["name"] == "default"


COMMON = {"action", "instance_uuid", "message", "project_id", "request_id", "start_time", "user_id"}


def test_instance_actions(demo: Cloud, admin: Cloud, site: Site) -> None:
    server_id = server(demo, site)
    site.settle()
    demo.ask("POST", f"{SERVERS}/{server_id}/action", json={"os-stop": None})
    path = f"{SERVERS}/{server_id}/os-instance-actions"
    listed = demo.get(path).json()["instanceActions"]
    assert [item["action"] for item in listed] == ["stop", "create"]
    assert set(listed[0]) == COMMON
    for version, more, events in (
        ("2.1", set(), None), ("2.51", set(), {"traceback"}), ("2.58", {"updated_at"}, {"traceback"}),
        ("2.62", {"updated_at"}, {"traceback", "hostId"}),
        ("2.84", {"updated_at"}, {"traceback", "hostId", "details"}),
    ):  # fmt: skip
        assert set(demo.get(path, headers=at(version)).json()["instanceActions"][0]) == COMMON | more
        one = demo.get(f"{path}/{listed[1]['request_id']}", headers=at(version)).json()["instanceAction"]
        if events is None:
            assert set(one) == COMMON | more
            continue
        assert set(one) == COMMON | more | {"events"}
        [event] = one["events"]
        assert set(event) == {"event", "start_time", "finish_time", "result"} | events
        assert (event["event"], event["result"]) == ("compute_create", "Success")
    one = admin.get(f"{path}/{listed[0]['request_id']}", headers=at("2.84")).json()["instanceAction"]
    assert one["events"][0]["host"] == "host-1"
    assert one["events"][0]["result"] is None  # it is under way
    assert demo.get(f"{path}/req-nonsense").status_code == 404
    assert demo.get(f"{path}?limit=x", headers=at("2.58")).status_code == 400
    assert demo.get(f"{path}?marker=x", headers=at("2.58")).status_code == 400
    assert demo.get(f"{path}?changes-since=x", headers=at("2.58")).status_code == 400
    page = demo.get(f"{path}?limit=1", headers=at("2.58")).json()
    assert len(page["instanceActions"]) == 1
    assert page["links"][0]["rel"] == "next"

    demo.ask("DELETE", f"{SERVERS}/{server_id}")
    site.settle()
    assert demo.get(path, headers=at("2.20")).status_code == 404
    listed = demo.get(path, headers=at("2.21")).json()["instanceActions"]
    assert [item["action"] for item in listed] == ["delete", "stop", "create"]
    assert listed[1]["message"] == "the server was deleted"


def test_a_fault_says_what_helps(demo: Cloud, site: Site) -> None:
    server_id = server(demo, site)
    site.settle()
    [want] = site.host.wants().values()
    trouble = Trouble("disk-missing", "the root disk is gone", "bring it back", final=True)
    site.host.report(want, guest=Gone(), disk=Thing.ABSENT, step=Step.WAITING, trouble=trouble)
    shown = demo.get(f"{SERVERS}/{server_id}").json()["server"]
    assert shown["status"] == "ERROR"
    assert shown["fault"]["message"] == "the root disk is gone. What helps: bring it back."
    assert set(shown["fault"]) == {"code", "created", "message"}
    assert "progress" not in shown
