"""Datastores, their versions, and flavors, in Trove's form."""

from __future__ import annotations

import uuid

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.store.datastores import POSTGRESQL
from unstuck.store.engine import Store


@pytest.fixture
def site(cloud: Cloud, store: Store) -> DatabaseSite:
    return DatabaseSite(store)


def test_a_datastore_is_found_by_id_and_by_name(trove: Trove, site: DatabaseSite) -> None:
    [listed] = trove.get("/datastores")["datastores"]
    assert (listed["id"], listed["name"], listed["default_version"]) == (
        POSTGRESQL,
        "postgresql",
        site.version,
    )
    [version] = listed["versions"]
    assert (version["id"], version["name"], version["version"]) == (site.version, "17", "17")
    for key in (POSTGRESQL, "postgresql"):
        assert trove.get(f"/datastores/{key}")["datastore"] == listed
        assert trove.get(f"/datastores/{key}/versions")["versions"] == [version]
        for name in (site.version, "17"):
            assert trove.get(f"/datastores/{key}/versions/{name}")["version"] == version
    assert trove.get(f"/datastores/versions/{site.version}")["version"] == version
    for path in (
        "/datastores/mysql", "/datastores/mysql/versions", "/datastores/postgresql/versions/9",
        f"/datastores/versions/{uuid.uuid4()}", "/datastores/versions/17",
        "/datastores/mysql/versions/17/flavors",
    ):  # fmt: skip
        trove.missing("GET", path)
    assert "image" not in version


def test_flavors_are_the_compute_apis(trove: Trove, site: DatabaseSite) -> None:
    flavors = {item["name"]: item for item in trove.get("/flavors")["flavors"]}
    small = flavors["m1.small"]
    assert (small["id"], small["str_id"], small["ram"], small["vcpus"]) == (4, "4", 2048, 1)
    assert trove.get("/flavors/4")["flavor"] == small
    trove.missing("GET", "/flavors/m1.small")
    path = f"/datastores/postgresql/versions/{site.version}"
    assert len(trove.get(f"{path}/flavors")["flavors"]) == len(flavors)
    assert [item["name"] for item in trove.get(f"{path}/volume-types")["volume_types"]] == ["default"]


def test_an_operator_adds_changes_and_removes_versions(
    trove: Trove, operator: Trove, site: DatabaseSite
) -> None:
    path = "/mgmt/datastore-versions"
    new = {
        "name": "18", "datastore_name": "postgresql", "datastore_manager": "postgresql", "image": site.image,
        "image_tags": [], "packages": [], "active": False, "default": False,
    }  # fmt: skip
    made = operator.ask("POST", path, json={"version": new})
    # Without a body: the stock client takes any for an error.
    assert (made.status_code, made.content) == (202, b"")
    one = made.headers["location"].partition(operator.base)[2]
    shown = operator.get(one)["version"]
    assert (shown["name"], shown["active"], shown["default"]) == ("18", False, False)
    assert len(trove.get("/datastores/postgresql")["datastore"]["versions"]) == 1
    assert len(operator.get(path)["versions"]) == 2
    assert operator.ask("PATCH", one, json={"active": True, "default": True}).status_code == 202
    assert trove.get("/datastores/postgresql")["datastore"]["default_version"] == shown["id"]
    operator.refused("POST", path, 409, "conflict", json={"version": new})
    assert operator.ask("DELETE", one).status_code == 202
    operator.missing("GET", one)


def test_bad_versions_are_refused_by_field(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    path = "/mgmt/datastore-versions"
    new = {
        "name": "18",
        "datastore_name": "postgresql",
        "datastore_manager": "postgresql",
        "image": site.image,
    }
    for changes, word in (
        ({"datastore_manager": "oracle"}, "datastore_manager"),
        ({"image": str(uuid.uuid4())}, "version.image"),
        ({"image": "not an id"}, "version.image"),
        ({"name": ""}, "version.name"),
        ({"image_tags": ["a"]}, "image_tags"),
        ({"packages": ["a"]}, "packages"),
        ({"repl_strategy": "x"}, "repl_strategy"),
        ({"colour": "red"}, "colour"),
        ({"active": "yes"}, "active"),
    ):
        assert word in operator.bad("POST", path, json={"version": {**new, **changes}})
    one = f"{path}/{site.version}"
    assert "default" in operator.bad("PATCH", one, json={"default": False})
    assert "datastore_manager" in operator.bad("PATCH", one, json={"datastore_manager": "mysql"})
    operator.missing("PATCH", f"{path}/17", json={})
    trove.refused("GET", path, 403, "forbidden")
    trove.refused("POST", path, 403, "forbidden", json={"version": new})
    trove.refused("DELETE", "/datastores/postgresql", 403, "forbidden")
    operator.refused("DELETE", "/datastores/postgresql", 409, "conflict")


def test_a_version_that_instances_have_stays(trove: Trove, operator: Trove, site: DatabaseSite) -> None:
    trove.post("/instances", site.body(), 200)
    operator.refused("DELETE", f"/mgmt/datastore-versions/{site.version}", 409, "conflict")
