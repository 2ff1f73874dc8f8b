"""Image v2: create, find, change, upload, download, delete; and what an upload must not leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_cloud import BASE_SERVICES, Cloud, app_over

from unstuck.api.context import Settings
from unstuck.blobs import images as files
from unstuck.blobs.inspect import inspect_image
from unstuck.control.images import sweep_images
from unstuck.core.errors import Invalid
from unstuck.core.image import Image, status
from unstuck.store import images as rows
from unstuck.store.engine import Store, StoreUnavailable

IMAGES = "/image/v2/images"
PATCH = {"content-type": "application/openstack-images-v2.1-json-patch"}
OCTETS = {"content-type": "application/octet-stream"}
RAW = b"a small disk " * 1000
K64 = 1 << 16


@pytest.fixture
def services() -> list[str]:
    return BASE_SERVICES


def make(cloud: Cloud, **fields: Any) -> dict[str, Any]:
    body = {"name": "i", "disk_format": "raw", "container_format": "bare", **fields}
    answer = cloud.ask("POST", IMAGES, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def put(cloud: Cloud, image: dict[str, Any], data: Any = RAW) -> Any:
    return cloud.ask("PUT", f"{IMAGES}/{image['id']}/file", content=data, headers=OCTETS)


def patch(cloud: Cloud, image: dict[str, Any], *operations: Any) -> Any:
    return cloud.ask("PATCH", f"{IMAGES}/{image['id']}", json=list(operations), headers=PATCH)


def show(cloud: Cloud, image: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = cloud.get(f"{IMAGES}/{image['id']}").json()
    return shown


def names(cloud: Cloud, query: str = "") -> list[str]:
    answer = cloud.get(IMAGES + query)
    assert answer.status_code == 200, answer.text
    return [image["name"] for image in answer.json()["images"]]


def on_disk(settings: Settings) -> list[str]:
    place = files.folder(settings.state_dir)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def qcow2(**changes: int) -> bytes:
    """A small valid qcow2: header, refcounts, L1 and L2 tables and one data cluster of 64 KiB each."""
    field = {
        "version": 3,
        "backing": 0,
        "bits": 16,
        "virtual": 1 << 20,
        "crypt": 0,
        "l1_size": 1,
        "l1": 3 * K64,
        "refcounts": K64,
        "refcount_clusters": 1,
        "features": 0,
        "l2": 4 * K64,
        "data": 5 * K64,
        **changes,
    }
    header = struct.pack(
        ">4sIQIIQIIQQIIQQQQII",
        b"QFI\xfb",
        field["version"],
        field["backing"],
        0,
        field["bits"],
        field["virtual"],
        field["crypt"],
        field["l1_size"],
        field["l1"],
        field["refcounts"],
        field["refcount_clusters"],
        0,
        0,
        field["features"],
        0,
        0,
        4,
        104,
    )
    disk = bytearray(6 * K64)
    disk[: len(header)] = header
    struct.pack_into(">Q", disk, K64, 2 * K64)
    for index in range(6):
        struct.pack_into(">H", disk, 2 * K64 + 2 * index, 1)
    struct.pack_into(">Q", disk, 3 * K64, (1 << 63) | field["l2"])
    struct.pack_into(">Q", disk, 4 * K64, (1 << 63) | field["data"])
    return bytes(disk)


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


class TestUpload:
    def test_what_was_uploaded_can_be_verified_and_downloaded(self, demo: Cloud, settings: Settings) -> None:
        image = make(demo)
        assert put(demo, image).status_code == 204
        shown = show(demo, image)
        assert shown["status"] == "active"
        assert shown["size"] == shown["virtual_size"] == len(RAW)
        assert shown["checksum"] == hashlib.md5(RAW).hexdigest()
        assert shown["os_hash_algo"] == "sha512"
        assert shown["os_hash_value"] == hashlib.sha512(RAW).hexdigest()
        answer = demo.get(f"{IMAGES}/{image['id']}/file")
        assert answer.content == RAW
        assert answer.headers["content-length"] == str(len(RAW))
        assert answer.headers["content-md5"] == shown["checksum"]
        boot = demo.store.read(rows.image_for_boot, image["id"], shown["owner"])
        assert (boot.status, boot.size, boot.sha512) == ("active", len(RAW), shown["os_hash_value"])
        assert files.open_path(settings.state_dir, boot.data_name).read_bytes() == RAW
        assert on_disk(settings) == [boot.data_name]

    def test_an_upload_may_come_in_chunks(self, demo: Cloud) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"y" * 70_001

        image = make(demo)
        assert put(demo, image, chunks()).status_code == 204
        assert show(demo, image)["size"] == 40 * 70_001
        assert demo.get(f"{IMAGES}/{image['id']}/file").content == b"y" * 40 * 70_001

    @pytest.mark.parametrize(
        ("text", "code", "part"),
        [
            ("bytes=0-4", 206, RAW[:5]),
            ("bytes=10-", 206, RAW[10:]),
            ("bytes=-3", 206, RAW[-3:]),
            ("bytes=5-999999", 206, RAW[5:]),
            ("bytes=999999-", 416, None),
            ("bytes=x", 200, RAW),
            ("bytes=0-1,3-4", 200, RAW),
        ],
    )
    def test_ranges(self, demo: Cloud, text: str, code: int, part: bytes | None) -> None:
        image = make(demo)
        put(demo, image)
        answer = demo.get(f"{IMAGES}/{image['id']}/file", headers={"range": text})
        assert answer.status_code == code
        if part is not None:
            assert answer.content == part

    def test_there_is_nothing_to_download_before(self, demo: Cloud) -> None:
        answer = demo.get(f"{IMAGES}/{make(demo)['id']}/file")
        assert (answer.status_code, answer.content) == (204, b"")

    def test_data_is_never_replaced(self, demo: Cloud) -> None:
        image = make(demo)
        put(demo, image)
        assert put(demo, image, b"other").status_code == 409
        assert demo.get(f"{IMAGES}/{image['id']}/file").content == RAW

    @pytest.mark.parametrize(
        ("disk_format", "data", "says"),
        [
            ("raw", b"", "empty"),
            ("raw", qcow2(), "qcow2"),
            ("raw", b"KDMV" + struct.pack("<IIQQQQ", 1, 3, 128, 128, 1, 20) + bytes(1 << 17), ""),
            ("aki", qcow2(), "qcow2"),
            ("qcow2", RAW, "raw"),
            ("qcow2", b"QFI\xfb", ""),
            ("qcow2", qcow2()[:1000], "past the end"),
            ("qcow2", qcow2()[: 4 * K64], "cut off"),
            ("qcow2", qcow2()[: 5 * K64], "cut off"),
            ("qcow2", qcow2(backing=512), "backing"),
            ("qcow2", qcow2(features=1 << 2), "data"),
            ("qcow2", qcow2(features=1 << 1), "corrupt"),
            ("qcow2", qcow2(features=1 << 40), "not safe"),
            ("qcow2", qcow2(version=1), ""),
            ("qcow2", qcow2(crypt=1), "encrypted"),
            ("qcow2", qcow2(bits=40), "cluster size"),
            ("qcow2", qcow2(virtual=0), "virtual size"),
            ("qcow2", qcow2(virtual=1 << 60), "virtual size"),
            ("qcow2", qcow2(l1_size=0), "L1 table"),
            ("qcow2", qcow2(l1_size=(1 << 32) - 1), "L1 table"),
            ("qcow2", qcow2(l1=1 << 40), "L1 table"),
            ("qcow2", qcow2(refcounts=1 << 40), "refcount table"),
            ("qcow2", qcow2(refcount_clusters=0), "refcount table"),
            ("qcow2", qcow2(l2=1 << 40), "cut off"),
            ("qcow2", qcow2(data=1 << 40), "cut off"),
        ],
    )
    def test_an_unfit_image_is_refused_and_can_be_sent_again(
        self, demo: Cloud, settings: Settings, disk_format: str, data: bytes, says: str
    ) -> None:
        image = make(demo, disk_format=disk_format)
        answer = put(demo, image, data)
        assert answer.status_code == 400, answer.text
        assert says in answer.json()["message"]
        assert show(demo, image)["status"] == "queued"
        assert on_disk(settings) == []
        assert put(demo, image, qcow2() if disk_format == "qcow2" else RAW).status_code == 204

    def test_a_valid_qcow2_is_taken(self, demo: Cloud) -> None:
        image = make(demo, disk_format="qcow2")
        assert put(demo, image, qcow2()).status_code == 204
        assert show(demo, image)["virtual_size"] == 1 << 20

    def test_an_image_without_a_format_takes_no_data(self, demo: Cloud, settings: Settings) -> None:
        image = demo.ask("POST", IMAGES, json={"name": "x"}).json()
        assert put(demo, image).status_code == 400
        assert show(demo, image)["status"] == "queued"

    def test_only_octets_are_taken(self, demo: Cloud) -> None:
        image = make(demo)
        answer = demo.ask("PUT", f"{IMAGES}/{image['id']}/file", json={})
        assert answer.status_code == 415
        assert show(demo, image)["status"] == "queued"

    @pytest.mark.parametrize("announced", [True, False])
    def test_too_much_is_refused(self, demo: Cloud, store: Store, tmp_path: Path, announced: bool) -> None:
        small = Settings(state_dir=tmp_path, image_max_bytes=3 << 20)
        demo = Cloud(app_over(store, small), store, demo.loop, demo.token)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"z" * K64

        image = make(demo)
        assert put(demo, image, b"z" * (4 << 20) if announced else chunks()).status_code == 413
        assert show(demo, image)["status"] == "queued"
        assert on_disk(small) == []

    def test_a_full_disk_is_refused_before_anything_is_written(
        self, demo: Cloud, store: Store, tmp_path: Path
    ) -> None:
        full = Settings(state_dir=tmp_path, image_free_bytes=1 << 60)
        demo = Cloud(app_over(store, full), store, demo.loop, demo.token)
        image = make(demo)
        assert put(demo, image).status_code == 413
        assert show(demo, image)["status"] == "queued"

    def test_a_silent_client_holds_nothing_for_ever(self, demo: Cloud, store: Store, tmp_path: Path) -> None:
        impatient = Settings(state_dir=tmp_path, body_seconds=0.05)
        demo = Cloud(app_over(store, impatient), store, demo.loop, demo.token)

        async def silence() -> AsyncIterator[bytes]:
            yield b"z" * (2 << 20)
            await asyncio.sleep(1)
            yield b"z"

        image = make(demo)
        assert put(demo, image, silence()).status_code == 408
        assert show(demo, image)["status"] == "queued"
        assert on_disk(impatient) == []

    def test_a_client_that_goes_away_leaves_nothing(self, demo: Cloud, settings: Settings) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"z" * (2 << 20)
            raise ConnectionError("gone")

        image = make(demo)
        with contextlib.suppress(ConnectionError):
            put(demo, image, broken())
        assert show(demo, image)["status"] == "queued"
        assert on_disk(settings) == []


class TestDelete:
    def test_a_deleted_image_is_gone_with_its_file(self, demo: Cloud, settings: Settings) -> None:
        image = make(demo)
        put(demo, image)
        path = f"{IMAGES}/{image['id']}"
        assert demo.ask("DELETE", path).status_code == 204
        assert demo.get(path).status_code == 404
        assert demo.ask("DELETE", path).status_code == 404
        assert names(demo) == []
        assert on_disk(settings) == []

    def test_protection_must_be_lifted_first(self, demo: Cloud) -> None:
        image = make(demo, protected=True)
        answer = demo.ask("DELETE", f"{IMAGES}/{image['id']}")
        assert answer.status_code == 403
        assert "protected" in answer.json()["message"]
        patch(demo, image, {"op": "replace", "path": "/protected", "value": False})
        assert demo.ask("DELETE", f"{IMAGES}/{image['id']}").status_code == 204

    def test_a_delete_wins_over_a_running_upload(self, demo: Cloud, settings: Settings) -> None:
        image = make(demo)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"z" * (2 << 20)
            await demo.store.run(rows.delete_image, image["id"], project_id=image["owner"])
            yield b"z"

        assert put(demo, image, chunks()).status_code == 409
        assert demo.get(f"{IMAGES}/{image['id']}").status_code == 404
        assert on_disk(settings) == []


class TestCrashes:
    """What is left when a process dies in the middle, and who cleans it up."""

    def claim(self, store: Store, image: dict[str, Any], nonce: str) -> None:
        store.transact(
            rows.claim_upload, image["id"], project_id=image["owner"], admin=False, nonce=nonce, seconds=60.0
        )

    def later(self, store: Store, seconds: float) -> None:
        """Let lease time pass in steps that are no gaps."""
        from unstuck.store.clock import tick

        real = store._wall
        assert real is not None
        passed = 0.0
        while passed < seconds:
            passed += 4.0
            store._wall = lambda so_far=passed: real() + so_far
            store.transact(tick, lease_seconds=0.0)

    def test_an_upload_that_died_is_queued_again_and_its_file_is_collected(
        self, demo: Cloud, settings: Settings
    ) -> None:
        image, nonce = make(demo), "a" * 32
        self.claim(demo.store, image, nonce)
        writer = files.Writer(settings.state_dir, image["id"], nonce)
        writer.write(b"half")
        writer.close()
        assert show(demo, image)["status"] == "saving"
        assert put(demo, image).status_code == 409
        assert demo.loop.run(sweep_images(demo.store, settings.state_dir)).removed == ()
        self.later(demo.store, 61)
        demo = demo.login("demo", "demo-secret", "demo")
        assert show(demo, image)["status"] == "queued"
        swept = demo.loop.run(sweep_images(demo.store, settings.state_dir))
        assert swept.removed == (f"{image['id']}.{nonce}.part",)
        assert put(demo, image).status_code == 204

    def test_an_upload_that_lost_its_turn_cannot_finish(self, demo: Cloud) -> None:
        image, store = make(demo), demo.store
        self.claim(store, image, "a" * 32)
        self.later(store, 61)
        self.claim(store, image, "b" * 32)
        assert not store.transact(rows.renew_upload, image["id"], nonce="a" * 32, seconds=60.0)
        assert not store.transact(rows.release_upload, image["id"], nonce="a" * 32)
        assert store.transact(rows.renew_upload, image["id"], nonce="b" * 32, seconds=60.0)

    def test_a_file_that_was_renamed_but_never_recorded_is_collected(
        self, demo: Cloud, settings: Settings
    ) -> None:
        image = make(demo)
        put(demo, image)
        stray = files.open_path(settings.state_dir, f"{image['id']}.{'c' * 32}")
        stray.write_bytes(b"x")
        assert demo.loop.run(sweep_images(demo.store, settings.state_dir)).removed == (stray.name,)
        assert demo.get(f"{IMAGES}/{image['id']}/file").content == RAW

    def test_files_of_images_the_store_does_not_know_are_only_reported(
        self, demo: Cloud, settings: Settings
    ) -> None:
        put(demo, make(demo))
        unknown = files.open_path(settings.state_dir, f"{uuid.uuid4()}.{'c' * 32}")
        unknown.write_bytes(b"x")
        (unknown.parent / "notes.txt").write_text("hands off")
        swept = demo.loop.run(sweep_images(demo.store, settings.state_dir))
        assert (swept.removed, swept.unknown) == ((), (unknown.name,))
        assert unknown.exists()

    def test_an_answer_lost_at_the_last_step_keeps_the_data(
        self, demo: Cloud, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        image, run = make(demo), demo.store.run

        async def lossy(tx: Any, *args: Any, **more: Any) -> Any:
            answer = await run(tx, *args, **more)
            if tx is rows.finish_upload:
                raise StoreUnavailable("the answer was lost")
            return answer

        monkeypatch.setattr(demo.store, "run", lossy)
        assert put(demo, image).status_code == 503
        monkeypatch.undo()
        assert show(demo, image)["status"] == "active"
        assert demo.loop.run(sweep_images(demo.store, settings.state_dir)).removed == ()
        assert demo.get(f"{IMAGES}/{image['id']}/file").content == RAW

    def test_data_that_vanished_is_said_and_not_made_up(self, demo: Cloud, settings: Settings) -> None:
        image = make(demo)
        put(demo, image)
        for name in on_disk(settings):
            files.open_path(settings.state_dir, name).unlink()
        assert demo.get(f"{IMAGES}/{image['id']}/file").status_code == 404
        assert show(demo, image)["status"] == "active"


def test_the_status_is_total_over_what_is_recorded() -> None:
    image = Image(id="i", project_id="p", created=0.0, updated=0.0)
    saving = msgspec.structs.replace(image, upload_nonce="n", upload_until=10.0)
    assert status(image, 5.0) == "queued"
    assert status(saving, 5.0) == "saving"
    assert status(saving, 10.0) == "queued"
    assert status(msgspec.structs.replace(image, deleted_wall=1.0), 5.0) == "deleted"


def test_file_names_are_never_paths(settings: Settings) -> None:
    for name in ("../x", "/etc/passwd", "", "x" * 36 + "." + "a" * 32, f"{uuid.uuid4()}.{'a' * 32}.part"):
        with pytest.raises(ValueError, match="not the name"):
            files.open_path(settings.state_dir, name)


@pytest.mark.parametrize("position", range(0, 112, 3))
def test_any_broken_header_is_a_refusal_and_not_a_crash(tmp_path: Path, position: int) -> None:
    disk = bytearray(qcow2())
    disk[position] ^= 0xFF
    (tmp_path / "disk").write_bytes(disk)
    with contextlib.suppress(Invalid):
        inspect_image(tmp_path / "disk", "qcow2")


def test_schemas_and_import_info_are_served(demo: Cloud) -> None:
    assert demo.get("/image/v2/schemas/image").json()["name"] == "image"
    assert demo.get("/image/v2/schemas/images").json()["name"] == "images"
    assert demo.get("/image/v2/info/import").json()["import-methods"]["value"] == []
    image = make(demo)
    assert demo.get(f"{IMAGES}/{image['id']}/members").json()["members"] == []
