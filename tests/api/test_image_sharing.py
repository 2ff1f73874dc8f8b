"""Shared images and their members; images that are deactivated; patches in the old form."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud
from image_setup import IMAGES, RAW, make, names, put, show

from unstuck.store import identity, roles
from unstuck.store.identity import Project

BOTH = {"content-type": "application/openstack-images-v2.0-json-patch"}


def project(cloud: Cloud, name: str) -> str:
    return {item.name: item.id for item in cloud.store.read(identity.list_projects)}[name]


@pytest.fixture
def other(cloud: Cloud, demo: Cloud) -> Cloud:
    """A member of another project."""
    store = cloud.store
    known = {role.name: role.id for role in store.read(roles.list_roles)}
    users = {user.name: user.id for user in store.read(identity.list_users)}
    store.transact(identity.create_project, Project(id="other", name="other"))
    store.transact(roles.grant, users["demo"], "other", known["member"])
    return cloud.login("demo", "demo-secret", "other")


def members(image: dict[str, Any], member: str = "") -> str:
    return f"{IMAGES}/{image['id']}/members" + (f"/{member}" if member else "")


def share(cloud: Cloud, image: dict[str, Any], member: str = "other") -> Any:
    return cloud.ask("POST", members(image), json={"member": member})


def test_a_shared_image_is_seen_by_its_member_and_listed_once_it_accepts(demo: Cloud, other: Cloud) -> None:
    image = make(demo)
    put(demo, image)
    assert other.get(f"{IMAGES}/{image['id']}").status_code == 404
    made = share(demo, image)
    assert made.status_code == 200
    assert set(made.json()) == {"member_id", "image_id", "status", "created_at", "updated_at", "schema"}
    assert (made.json()["status"], made.json()["member_id"]) == ("pending", "other")
    assert other.get(f"{IMAGES}/{image['id']}").status_code == 200
    assert other.get(f"{IMAGES}/{image['id']}/file").content == RAW
    assert names(other) == []
    assert names(other, "?visibility=shared&member_status=pending") == ["i"]
    assert names(other, "?member_status=all") == ["i"]
    assert (
        other.ask("PUT", members(image, "other"), json={"status": "accepted"}).json()["status"] == "accepted"
    )
    assert names(other) == names(other, "?visibility=shared") == ["i"]
    assert names(other, "?member_status=rejected") == []
    assert other.ask("DELETE", f"{IMAGES}/{image['id']}").status_code == 403
    assert demo.ask("DELETE", members(image, "other")).status_code == 204
    assert other.get(f"{IMAGES}/{image['id']}").status_code == 404
    assert names(other) == []


def test_who_sees_and_changes_members(demo: Cloud, other: Cloud, admin: Cloud) -> None:
    image = make(demo)
    share(demo, image)
    share(demo, image, "third")
    assert [item["member_id"] for item in demo.get(members(image)).json()["members"]] == ["other", "third"]
    assert [item["member_id"] for item in other.get(members(image)).json()["members"]] == ["other"]
    assert other.get(members(image, "other")).status_code == 200
    assert other.get(members(image, "third")).status_code == 404
    assert demo.get(members(image, "nobody")).status_code == 404
    assert share(demo, image).status_code == 409
    assert share(other, image, "fourth").status_code == 403
    assert other.ask("DELETE", members(image, "third")).status_code == 403
    accept = {"status": "accepted"}
    assert demo.ask("PUT", members(image, "other"), json=accept).status_code == 403, "not the owner's to say"
    assert other.ask("PUT", members(image, "third"), json=accept).status_code == 404
    assert admin.ask("PUT", members(image, "third"), json=accept).status_code == 200
    assert demo.ask("DELETE", members(image, "nobody")).status_code == 404
    demo.ask("DELETE", f"{IMAGES}/{image['id']}")
    assert admin.get(members(image)).status_code == 404


def test_only_shared_images_have_members(demo: Cloud, other: Cloud, admin: Cloud) -> None:
    for visibility in ("private", "community"):
        assert share(demo, make(demo, visibility=visibility)).status_code == 403
    public = make(admin, visibility="public")
    assert share(admin, public).status_code == 403
    assert admin.get(members(public)).status_code == 403
    image = make(demo)
    share(demo, image)
    change = [{"op": "replace", "path": "/visibility", "value": "private"}]
    kind = {"content-type": "application/openstack-images-v2.1-json-patch"}
    assert demo.ask("PATCH", f"{IMAGES}/{image['id']}", json=change, headers=kind).status_code == 200
    assert other.get(f"{IMAGES}/{image['id']}").status_code == 404, "private is private"


def test_bad_members_change_nothing(demo: Cloud, other: Cloud) -> None:
    image = make(demo)
    for body in ({}, {"member": ""}, {"member": 5}, {"member": "x" * 65}, {"member": "x", "more": 1}, []):
        assert demo.ask("POST", members(image), json=body).status_code == 400
    assert demo.get(members(image)).json()["members"] == []
    share(demo, image)
    for body in ({}, {"status": "x"}, {"status": None}, {"status": "accepted", "more": 1}):
        assert other.ask("PUT", members(image, "other"), json=body).status_code == 400
    assert demo.get(members(image, "other")).json()["status"] == "pending"
    assert other.get(f"{IMAGES}?member_status=x").status_code == 400
    assert share(demo, {"id": "nonsense"}).status_code == 404


def test_a_deactivated_image_is_read_by_nobody_until_it_is_reactivated(demo: Cloud, other: Cloud) -> None:
    image = make(demo)
    path = f"{IMAGES}/{image['id']}"
    assert demo.ask("POST", f"{path}/actions/deactivate").status_code == 403, "it has no data yet"
    assert demo.ask("POST", f"{path}/actions/reactivate").status_code == 403
    put(demo, image)
    assert other.ask("POST", f"{path}/actions/deactivate").status_code == 404
    for _ in range(2):
        assert demo.ask("POST", f"{path}/actions/deactivate").status_code == 204
    assert show(demo, image)["status"] == "deactivated"
    assert demo.get(f"{path}/file").status_code == 403
    assert names(demo, "?status=active") == []
    answer = demo.ask(
        "POST", "/compute/v2.1/servers",
        json={"server": {"name": "x", "imageRef": image["id"], "flavorRef": "1"}},
    )  # fmt: skip
    assert answer.status_code == 400
    for _ in range(2):
        assert demo.ask("POST", f"{path}/actions/reactivate").status_code == 204
    assert demo.get(f"{path}/file").content == RAW
    demo.ask("POST", f"{path}/actions/deactivate")
    assert demo.ask("DELETE", path).status_code == 204


def test_patches_in_the_old_form(demo: Cloud) -> None:
    image = make(demo, color="red")
    path = f"{IMAGES}/{image['id']}"
    steps = [{"replace": "/name", "value": "new"}, {"add": "/size_x", "value": "1"}, {"remove": "/color"}]
    changed = demo.ask("PATCH", path, json=steps, headers=BOTH)
    assert changed.status_code == 200, changed.text
    shown = show(demo, image)
    assert (shown["name"], shown["size_x"], "color" in shown) == ("new", "1", False)
    for bad in (
        [{"replace": "/name"}], [{"op": "replace", "path": "/name", "value": "x"}],
        [{"replace": 5, "value": "x"}], [{"add": "/a", "replace": "/b", "value": "x"}],
        [{"add": "/a", "value": "x", "more": 1}], {}, [5],
    ):  # fmt: skip
        assert demo.ask("PATCH", path, json=bad, headers=BOTH).status_code == 400, bad
    assert show(demo, image) == shown


def test_schemas_of_members(demo: Cloud) -> None:
    assert demo.get("/image/v2/schemas/member").json()["name"] == "member"
    assert demo.get("/image/v2/schemas/members").json()["name"] == "members"
