"""The bytes of images: upload, download, delete, and what a crash must not leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_cloud import BASE_SERVICES, Cloud, app_over
from image_setup import IMAGES, K64, RAW, make, names, on_disk, patch, put, qcow2, show

from unstuck.api.context import Settings
from unstuck.blobs import images as files
from unstuck.blobs.inspect import inspect_image
from unstuck.control.images import sweep_images
from unstuck.core.errors import Invalid
from unstuck.core.image import Image, status
from unstuck.store import images as rows
from unstuck.store.engine import Store, StoreUnavailable


@pytest.fixture
def services() -> list[str]:
    return BASE_SERVICES


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
            ("qcow2", qcow2(snapshots=1_000_000), "convert it first"),
            ("qcow2", qcow2(snapshots_at=1 << 63), "table of snapshots"),
            ("qcow2", qcow2(header=(1 << 32) - 1), "longer than a cluster"),
            ("qcow2", qcow2(header=8), "too short"),
            ("qcow2", qcow2(order=7), "refcounts are too wide"),
            ("qcow2", qcow2(features=1 << 3), "compression"),
            ("qcow2", qcow2(extension=1 << 20), "past the first cluster"),
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

    def test_a_disk_that_fills_up_during_the_upload_keeps_nothing(
        self, demo: Cloud, store: Store, small_disk: Callable[[int], Path]
    ) -> None:
        """On a real file system that is full after 8 MiB, of which the announced size says nothing."""
        full = Settings(state_dir=small_disk(8 << 20), image_free_bytes=0)
        demo = Cloud(app_over(store, full), store, demo.loop, demo.token)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield b"z" * K64

        image = make(demo)
        answer = put(demo, image, chunks())
        assert answer.status_code == 413
        assert "Image storage media is full" in answer.text
        assert show(demo, image)["status"] == "queued"
        assert on_disk(full) == []
        assert put(demo, image).status_code == 204, "and there is room again"

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

        real = store._wall or time.time
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
