"""Image v2: create, find, change."""

from __future__ import annotations

import uuid

import pytest
from api_cloud import BASE_SERVICES, Cloud
from image_setup import IMAGES, PATCH, make, names, patch, put, show


@pytest.fixture
def services() -> list[str]:
    return BASE_SERVICES


class TestDescription:
    def test_an_image_starts_queued_with_all_its_properties(self, demo: Cloud) -> None:
        image = make(
            demo, name="x", hw_disk_bus="virtio", kernel_id="k", **{"owner_specified.openstack.md5": ""}
        )
        assert image["status"] == "queued"
        assert image["visibility"] == "shared"
        assert image["hw_disk_bus"] == "virtio"
        assert image["owner_specified.openstack.md5"] == ""
        assert image["size"] is None
        assert show(demo, image) == image

    def test_a_client_may_choose_the_id_once_and_for_ever(self, demo: Cloud) -> None:
        chosen = str(uuid.uuid4())
        assert make(demo, id=chosen)["id"] == chosen
        assert demo.ask("POST", IMAGES, json={"id": chosen}).status_code == 409
        demo.ask("DELETE", f"{IMAGES}/{chosen}")
        assert demo.ask("POST", IMAGES, json={"id": chosen}).status_code == 409

    BAD = [
        ({"name": "x" * 256}, 400),
        ({"name": 1}, 400),
        ({"id": "x"}, 400),
        ({"id": 5}, 400),
        ({"disk_format": "iso"}, 400),
        ({"disk_format": "floppy"}, 400),
        ({"container_format": "ova"}, 400),
        ({"visibility": "secret"}, 400),
        ({"visibility": "public"}, 403),
        ({"min_disk": -1}, 400),
        ({"min_ram": 1 << 31}, 400),
        ({"min_ram": "1"}, 400),
        ({"protected": "yes"}, 400),
        ({"tags": ["x" * 256]}, 400),
        ({"tags": "x"}, 400),
        ({"tags": [f"{n}" for n in range(129)]}, 413),
        ({"colour": 1}, 400),
        ({"colour": None}, 400),
        ({"x" * 256: "y"}, 400),
        ({"x": "y" * 65_536}, 400),
        ({f"p{n}": "x" for n in range(129)}, 413),
        ({"status": "active"}, 403),
        ({"size": 1}, 403),
        ({"checksum": "x"}, 403),
        ({"locations": []}, 403),
        ({"owner": "somebody"}, 403),
    ]

    def test_bad_images_are_refused(self, demo: Cloud) -> None:
        for body, status_code in self.BAD:
            answer = demo.ask("POST", IMAGES, json=body)
            assert answer.status_code == status_code, (body, answer.text)
            assert answer.json()["code"].startswith(str(status_code))
        assert names(demo) == []

    def test_malformed_bodies_are_refused(self, demo: Cloud) -> None:
        for body in (b"", b"{", b"[]", b'"x"', b'{"name": "\\u0000"}'):
            assert demo.ask("POST", IMAGES, content=body).status_code == 400, body

    def test_readers_cannot_make_images(self, cloud: Cloud, demo: Cloud) -> None:
        assert cloud.ask("POST", IMAGES, json={}).status_code == 401


class TestWhoSeesWhat:
    def test_other_projects_images_do_not_exist(self, admin: Cloud, demo: Cloud) -> None:
        image = make(admin)
        other = f"{IMAGES}/{image['id']}"
        assert demo.get(other).status_code == 404
        assert demo.get(other + "/file").status_code == 404
        assert demo.ask("DELETE", other).status_code == 404
        assert patch(demo, image, {"op": "add", "path": "/x", "value": "y"}).status_code == 404
        assert put(demo, image).status_code == 404
        assert names(demo) == []

    def test_public_images_can_be_used_but_not_changed(self, admin: Cloud, demo: Cloud) -> None:
        image = make(admin, visibility="public")
        assert names(demo) == ["i"]
        assert show(demo, image)["visibility"] == "public"
        assert demo.ask("DELETE", f"{IMAGES}/{image['id']}").status_code == 403
        assert patch(demo, image, {"op": "add", "path": "/x", "value": "y"}).status_code == 403

    def test_community_images_are_listed_only_on_demand(self, admin: Cloud, demo: Cloud) -> None:
        image = make(admin, visibility="community")
        assert names(demo) == []
        assert names(demo, "?visibility=community") == ["i"]
        assert show(demo, image)["name"] == "i"

    def test_unknown_ids_are_404(self, demo: Cloud) -> None:
        for method in ("GET", "PATCH", "DELETE"):
            for name in ("x", "x%2Fy", "0" * 300):
                answer = demo.ask(method, f"{IMAGES}/{name}", content=b"[]", headers=PATCH)
                assert answer.status_code == 404, (method, name)


class TestLists:
    @pytest.fixture
    def three(self, demo: Cloud) -> Cloud:
        put(demo, make(demo, name="a", tags=["t"], hw_x="1"), b"x" * 2000)
        put(demo, make(demo, name="b,c", container_format="ami", disk_format="ami"), b"x" * 1000)
        make(demo, name="d", os_hidden=True)
        return demo

    FILTERS = [
        ("", ["b,c", "a"]),
        ("?name=a", ["a"]),
        ("?name=A", []),
        ('?name=in:a,"b,c"', ["b,c", "a"]),
        ("?os_hidden=True", ["d"]),
        ("?tag=t", ["a"]),
        ("?tag=t&tag=u", []),
        ("?status=active", ["b,c", "a"]),
        ("?status=queued", []),
        ("?disk_format=ami", ["b,c"]),
        ("?container_format=in:bare,ami&name=a", ["a"]),
        ("?size_min=1500", ["a"]),
        ("?size_max=1500", ["b,c"]),
        ("?hw_x=1", ["a"]),
        ("?hw_x=2", []),
        ("?visibility=public", []),
        ("?visibility=shared", ["b,c", "a"]),
        ("?owner=x", []),
        ("?member_status=all", ["b,c", "a"]),
        ("?sort=name:asc", ["a", "b,c"]),
        ("?limit=0", []),
        ("?sort_key=size&sort_dir=asc", ["b,c", "a"]),
        ("?sort_key=name&sort_dir=desc", ["b,c", "a"]),
        ("?created_at=gt:2001-01-01T00:00:00Z", ["b,c", "a"]),
        ("?created_at=lt:2001-01-01T00:00:00Z", []),
        ("?protected=False&name=a", ["a"]),
        ("?protected=true", []),
        ("?id=in:x", []),
    ]

    def test_filters(self, three: Cloud) -> None:
        for query, expected in self.FILTERS:
            assert names(three, query) == expected, query

    BAD = [
        "?limit=-1",
        "?limit=x",
        "?marker=x",
        "?sort_key=x",
        "?sort_dir=x",
        "?sort=name:up",
        "?size_min=x",
        "?size_min=-1",
        "?os_hidden=perhaps",
        '?name=in:"a',
        "?name=in:",
        "?created_at=now",
        "?protected=x",
        "?sort=name&sort_key=name",
        "?name=%00",
    ]

    def test_bad_queries_are_refused(self, demo: Cloud) -> None:
        for query in self.BAD:
            assert demo.get(IMAGES + query).status_code == 400, query

    def test_images_are_found_by_a_list_of_ids(self, demo: Cloud) -> None:
        ids = [make(demo, name=name)["id"] for name in "abc"]
        assert names(demo, f"?id=in:{ids[0]},{ids[2]}&sort=name:asc") == ["a", "c"]

    def test_pages_follow_one_another_to_the_end(self, demo: Cloud) -> None:
        for name in "abc":
            make(demo, name=name)
        path, seen = "/v2/images?limit=1&sort=name:asc&visibility=shared", []
        while path:
            page = demo.get("/image" + path).json()
            seen += [image["name"] for image in page["images"]]
            path = page.get("next", "")
        assert seen == ["a", "b", "c"]
        last = demo.get(IMAGES + "?name=a").json()["images"][0]["id"]
        assert names(demo, f"?sort=name:desc&marker={last}") == []


class TestPatch:
    def test_fields_and_properties_change_together(self, demo: Cloud) -> None:
        image = make(demo, old="1", kept="2")
        answer = patch(
            demo,
            image,
            {"op": "replace", "path": "/name", "value": "new"},
            {"op": "remove", "path": "/old"},
            {"op": "add", "path": "/a~1b", "value": "c"},
            {"op": "replace", "path": "/tags", "value": ["t", "t"]},
            {"op": "replace", "path": "/os_hidden", "value": True},
            {"op": "add", "path": "/min_ram", "value": 5},
        )
        assert answer.status_code == 200, answer.text
        changed = answer.json()
        assert (changed["name"], changed["a/b"], changed["kept"]) == ("new", "c", "2")
        assert (changed["tags"], changed["os_hidden"], changed["min_ram"]) == (["t"], True, 5)
        assert "old" not in changed
        assert show(demo, image) == changed

    BAD = [
        ({"op": "move", "path": "/x", "from": "/y"}, 400),
        ({"op": "add", "path": "x", "value": "y"}, 400),
        ({"op": "add", "path": "/x/y", "value": "y"}, 400),
        ({"op": "add", "path": "/x"}, 400),
        ({"op": "add", "path": "/x", "value": 1}, 400),
        ({"op": "add", "path": "/", "value": "1"}, 400),
        ({"op": "replace", "path": "/x", "value": "y"}, 409),
        ({"op": "remove", "path": "/x"}, 409),
        ({"op": "remove", "path": "/name"}, 403),
        ({"op": "add", "path": "/status", "value": "x"}, 403),
        ({"op": "replace", "path": "/id", "value": "x"}, 403),
        ({"path": "/x"}, 400),
        ("x", 400),
        ({"op": "replace", "path": "/visibility", "value": "public"}, 403),
        ({"op": "replace", "path": "/name", "value": 5}, 400),
        ({"op": "replace", "path": "/disk_format", "value": "iso"}, 400),
        ({"op": "replace", "path": "/owner", "value": "x"}, 403),
    ]

    def test_bad_patches_change_nothing(self, demo: Cloud) -> None:
        image = make(demo)
        for operation, status_code in self.BAD:
            answer = patch(demo, image, {"op": "add", "path": "/before", "value": "y"}, operation)
            assert answer.status_code == status_code, (operation, answer.text)
        assert show(demo, image) == image

    def test_other_content_types_are_refused(self, demo: Cloud) -> None:
        assert demo.ask("PATCH", f"{IMAGES}/{make(demo)['id']}", json=[]).status_code == 415

    def test_the_format_is_fixed_once_there_is_data(self, demo: Cloud) -> None:
        image = make(demo)
        change = {"op": "replace", "path": "/disk_format", "value": "ami"}
        assert patch(demo, image, change).status_code == 200
        assert put(demo, image).status_code == 204
        change["value"] = "raw"
        assert patch(demo, image, change).status_code == 403

    def test_a_public_image_stays_changeable_for_its_owner(self, admin: Cloud, demo: Cloud) -> None:
        image = make(demo)
        assert (
            patch(admin, image, {"op": "replace", "path": "/visibility", "value": "public"}).status_code
            == 200
        )
        assert patch(demo, image, {"op": "add", "path": "/x", "value": "y"}).status_code == 200

    def test_single_tags_can_be_patched(self, demo: Cloud) -> None:
        image = make(demo, tags=["b", "a"])
        answer = patch(
            demo,
            image,
            {"op": "add", "path": "/tags/-", "value": "c"},
            {"op": "remove", "path": "/tags/0"},
            {"op": "replace", "path": "/tags/0", "value": "d"},
        )
        assert answer.json()["tags"] == ["c", "d"]
        for path, value, status_code in (("9", "x", 409), ("x", "x", 400), ("0/1", "x", 400), ("0", 5, 400)):
            operation = {"op": "replace", "path": f"/tags/{path}", "value": value}
            assert patch(demo, image, operation).status_code == status_code

    def test_tags(self, demo: Cloud) -> None:
        path = f"{IMAGES}/{make(demo)['id']}"
        assert demo.ask("PUT", path + "/tags/a%20b").status_code == 204
        assert demo.ask("PUT", path + "/tags/a%20b").status_code == 204
        assert demo.get(path).json()["tags"] == ["a b"]
        assert demo.ask("PUT", f"{path}/tags/{'x' * 256}").status_code == 400
        assert demo.ask("DELETE", path + "/tags/a%20b").status_code == 204
        assert demo.ask("DELETE", path + "/tags/a%20b").status_code == 404


def test_schemas_and_import_info_are_served(demo: Cloud) -> None:
    assert demo.get("/image/v2/schemas/image").json()["name"] == "image"
    assert demo.get("/image/v2/schemas/images").json()["name"] == "images"
    assert demo.get("/image/v2/info/import").json()["import-methods"]["value"] == []
    image = make(demo)
    assert demo.get(f"{IMAGES}/{image['id']}/members").json()["members"] == []
