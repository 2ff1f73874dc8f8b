"""Quota sets and the default class through the API."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import KEY, Site

BASE = "/compute/v2.1"
CLASS = f"{BASE}/os-quota-class-sets/default"
FILES = {"injected_files", "injected_file_content_bytes", "injected_file_path_bytes"}
NETWORK = {"fixed_ips", "floating_ips", "security_groups", "security_group_rules"}
GROUPS = {"server_groups", "server_group_members"}
ALWAYS = {"instances", "cores", "ram", "metadata_items", "key_pairs"}


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def path(site: Site, project: str = "demo") -> str:
    return f"{BASE}/os-quota-sets/{site.project(project)}"


def put(who: Cloud, url: str, version: str = "2.1", **limits: Any) -> Any:
    return who.ask("PUT", url, json={"quota_set": limits}, headers=at(version))


def test_each_microversion_has_its_resources(admin: Cloud, site: Site) -> None:
    for version, wanted in (
        ("2.1", ALWAYS | GROUPS | FILES | NETWORK), ("2.36", ALWAYS | GROUPS | FILES),
        ("2.57", ALWAYS | GROUPS),
    ):  # fmt: skip
        for tail in ("", "/defaults", "/detail"):
            shown = admin.get(path(site) + tail, headers=at(version)).json()["quota_set"]
            assert set(shown) == wanted | {"id"}, (version, tail)
        assert set(put(admin, path(site), version, cores=7).json()["quota_set"]) == wanted
    for version, wanted in (
        ("2.1", ALWAYS | FILES | NETWORK), ("2.50", ALWAYS | GROUPS | FILES), ("2.57", ALWAYS | GROUPS),
    ):  # fmt: skip
        shown = admin.get(CLASS, headers=at(version)).json()["quota_class_set"]
        assert set(shown) == wanted | {"id"}, version


def test_a_changed_quota_holds_from_the_next_request_on(admin: Cloud, demo: Cloud, site: Site) -> None:
    assert put(admin, path(site), cores=1, instances="1", ram=64).status_code == 200
    assert demo.get(path(site)).json()["quota_set"]["cores"] == 1
    assert demo.get(f"{path(site)}/defaults").json()["quota_set"]["cores"] == 200
    absolute = demo.get(f"{BASE}/limits").json()["limits"]["absolute"]
    assert (absolute["maxTotalCores"], absolute["maxTotalInstances"]) == (1, 1)
    assert demo.ask("POST", f"{BASE}/servers", json=site.body()).status_code == 202
    answer = demo.ask("POST", f"{BASE}/servers", json=site.body())
    assert answer.status_code == 403
    assert "Quota exceeded for instances, cores, ram" in answer.json()["forbidden"]["message"]
    answer = put(admin, path(site), cores=0)
    assert answer.status_code == 400
    assert "cores" in answer.json()["badRequest"]["message"]
    assert put(admin, path(site), cores=0, force=True).json()["quota_set"]["cores"] == 0
    assert admin.ask("DELETE", path(site)).status_code == 202
    assert admin.ask("DELETE", path(site)).status_code == 202
    assert demo.get(path(site)).json()["quota_set"]["cores"] == 200
    assert demo.ask("POST", f"{BASE}/servers", json=site.body()).status_code == 202


def test_the_default_class_holds_for_every_other_project(admin: Cloud, demo: Cloud, site: Site) -> None:
    put(admin, path(site, "admin"), instances=5)
    made = admin.ask("PUT", CLASS, json={"quota_class_set": {"instances": 0}}).json()["quota_class_set"]
    assert made["instances"] == 0
    assert "id" not in made
    assert demo.ask("POST", f"{BASE}/servers", json=site.body()).status_code == 403
    assert admin.ask("POST", f"{BASE}/servers", json=site.body()).status_code == 202
    ports = demo.get(f"/networking/v2.0/quotas/{site.project('demo')}").json()["quota"]["port"]
    assert ports == 0


def test_quotas_of_metadata_and_key_pairs(admin: Cloud, demo: Cloud, site: Site) -> None:
    put(admin, path(site), metadata_items=1, key_pairs=1)
    key = {"keypair": {"name": "a", "public_key": KEY}}
    assert demo.ask("POST", f"{BASE}/os-keypairs", json=key).status_code == 200
    key = {"keypair": {"name": "b", "public_key": KEY}}
    assert demo.ask("POST", f"{BASE}/os-keypairs", json=key).status_code == 403
    body = site.body(metadata={"a": "1", "b": "2"})
    assert demo.ask("POST", f"{BASE}/servers", json=body).status_code == 403
    made = demo.ask("POST", f"{BASE}/servers", json=site.body(metadata={"a": "1"})).json()["server"]["id"]
    url = f"{BASE}/servers/{made}/metadata"
    assert demo.ask("POST", url, json={"metadata": {"b": "2"}}).status_code == 403
    assert demo.get(url).json() == {"metadata": {"a": "1"}}


def test_bad_quotas_change_nothing(admin: Cloud, demo: Cloud, site: Site) -> None:
    before = admin.get(path(site)).json()
    for limits, named in (
        ({"planets": 1}, "planets"), ({"cores": -2}, "cores"), ({"cores": "x"}, "cores"),
        ({"cores": 1.5}, "cores"), ({"cores": True}, "cores"), ({"cores": None}, "cores"),
        ({"cores": 2**31}, "cores"), ({"cores": 1, "force": "perhaps"}, "force"), ({"cores": [1]}, "cores"),
    ):  # fmt: skip
        answer = put(admin, path(site), **limits)
        assert answer.status_code == 400, limits
        assert named in answer.json()["badRequest"]["message"]
    assert put(admin, path(site), "2.36", floating_ips=1).status_code == 400
    assert put(admin, path(site), "2.57", injected_files=1).status_code == 400
    assert put(admin, f"{BASE}/os-quota-sets/nobody", cores=1).status_code == 400
    assert put(admin, f"{path(site)}?user_id=u", cores=1).status_code == 400
    for body in ({}, {"quota_set": 1}, {"quota_set": {}, "more": 1}, []):
        assert admin.ask("PUT", path(site), json=body).status_code == 400
    assert put(demo, path(site), cores=1).status_code == 403
    assert demo.ask("DELETE", path(site)).status_code == 403
    assert demo.get(path(site, "admin")).status_code == 403
    assert demo.get(CLASS).status_code == 403
    assert admin.get(f"{BASE}/os-quota-class-sets/gold").status_code == 404
    assert admin.ask("PUT", CLASS, json={"quota_class_set": {"server_groups": 1}}).status_code == 400
    assert admin.get(path(site)).json() == before
