"""Backups in a real S3 server behind a proxy that fails: they end, and others are not held up."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from backup_site import BackupCloud, Instance
from tests.faulty_store import FaultyStore
from tests.s3_server import S3Server

from unstuck.blobs.manifest import digest as digest_of
from unstuck.blobs.manifest import manifest_key
from unstuck.blobs.objects import Location, open_objects
from unstuck.blobs.stores import add
from unstuck.core.backup import change
from unstuck.core.backup.data import Done, Unanswered
from unstuck.core.backup.explain import explain
from unstuck.core.instance.wire import AskGrant, RestoreGrant
from unstuck.store import backup_rows, backups
from unstuck.store.engine import Store


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.core.backup.control.LEASE", 2.0)
    monkeypatch.setattr("unstuck.control.loop.LEASE", 2.0)
    monkeypatch.setattr("unstuck.core.backup.control.ASK_AGAIN", 0.2)
    monkeypatch.setattr(backup_rows, "ASK_AGAIN", 0.2)
    monkeypatch.setattr(backup_rows, "LEASE", 2.0)
    monkeypatch.setattr(change, "UPLOAD_AT_LONGEST", 1.0)
    monkeypatch.setattr("unstuck.control.backups.BACKOFF_MAX", 0.5)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyStore]:
    made = FaultyStore(s3.url)
    yield made
    made.close()


class Play:
    """A cloud whose default store is a bucket behind the proxy; ``direct`` is the bucket itself."""

    def __init__(self, store: Store, tmp_path: Path, s3: S3Server, proxy: FaultyStore) -> None:
        self.store, self.tmp_path, self.proxy = store, tmp_path, proxy
        where = s3.bucket(f"b{secrets.token_hex(6)}")
        self.direct = open_objects(where)
        add(tmp_path / "backup-stores.json", "far", msgspec.structs.replace(where, endpoint=proxy.url))

    def run(self, play: Callable[[BackupCloud], Awaitable[None]], *, job: float = 5.0) -> None:
        async def whole() -> None:
            cloud = BackupCloud(self.store, self.tmp_path)
            port = cloud.control_port()
            task = cloud.control_backups(port, job=job)
            try:
                await play(cloud)
                assert not task.done(), "the control plane has ended"
            finally:
                port.end(0)
                await task

        asyncio.run(whole())

    async def written(self, instance: Instance, **wish: float) -> str:
        """A backup whose objects are all in the bucket, by a host that writes them itself."""
        backup_id = await instance.backup(**wish)
        taken = await instance.taken(backup_id)
        assert taken.place is not None
        upload = instance.upload(backup_id, taken)
        for key, data in {**upload.objects, manifest_key(taken.prefix): upload.signed()}.items():
            await asyncio.to_thread(self.direct.put_new, key, data)
        return backup_id

    def left(self, backup_id: str) -> int:
        return len(self.direct.list(f"backups/{backup_id}"))


@pytest.fixture
def far(store: Store, tmp_path: Path, s3: S3Server, proxy: FaultyStore) -> Play:
    return Play(store, tmp_path, s3, proxy)


def test_a_host_writes_to_s3_by_itself_and_a_restore_reads_there(far: Play) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.complete()
        row = await cloud.ended(backup_id)
        assert (cloud.status(backup_id), row.location) == ("COMPLETED", "far")
        reader = await cloud.instance(restores=backup_id)
        answer = await reader.post("restores/grant", AskGrant(reader.who))
        grant = msgspec.json.decode(answer.content, type=RestoreGrant)
        assert grant.place is not None
        assert grant.place.endpoint == far.proxy.url
        await cloud.store.run(backups.delete_backup, backup_id, "project")

    far.run(play)


@pytest.mark.parametrize("fault", [500, 503, 403, 507, "hang"])
def test_a_store_that_fails_for_a_while_costs_no_backup(far: Play, fault: int | str) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        with far.proxy.doing(fault):
            backup_id = await far.written(instance)
            await instance.end(backup_id, Done(await digest(far, cloud, backup_id)))
            await cloud.until(lambda: isinstance(cloud.row(backup_id).backup.verdict, Unanswered))
            assert cloud.status(backup_id) == "SAVING"
            said = explain(cloud.row(backup_id).backup, 0.0)
            assert "no answer" in said.why
        await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"

    far.run(play, job=3.0)


async def digest(far: Play, cloud: BackupCloud, backup_id: str) -> str:
    nonce = cloud.row(backup_id).backup.attempt.nonce
    key = f"backups/{backup_id}/0001-{nonce}/manifest.json"
    data = await asyncio.to_thread(far.direct.get, key)
    assert data is not None
    return digest_of(data)


@pytest.mark.parametrize("fault", [503, 403, "hang"])
def test_a_store_that_fails_for_good_ends_the_backup_within_its_deadline(far: Play, fault: int | str) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        with far.proxy.doing(fault):
            backup_id = await far.written(instance, verify=1.0)
            await instance.end(backup_id, Done("d" * 64))
            row = await cloud.ended(backup_id)
            assert row.backup.ended is not None
            assert row.backup.ended.reason.startswith("it could not be verified in time: ")
            assert far.left(backup_id) > 0, "what cannot be reached cannot be removed, and is not forgotten"
            await cloud.until(lambda: cloud.row(backup_id).backup.trouble is not None)
            assert (await instance.backup()) != backup_id, "the instance is free"
        await cloud.settled(backup_id)
        assert far.left(backup_id) == 0

    far.run(play, job=1.0)


@pytest.mark.parametrize("fault", [503, 403, "hang"])
def test_an_agent_that_died_while_the_store_is_away_is_given_up_all_the_same(
    far: Play, fault: int | str
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        with far.proxy.doing(fault):
            backup_id = await instance.backup(unknown=1.0, attempts=1)
            await instance.taken(backup_id)
            row = await cloud.ended(backup_id)
            assert row.backup.ended is not None
            assert row.backup.ended.reason == "its agent was not heard of any more"

    far.run(play, job=1.0)


def test_credentials_that_are_replaced_are_used_at_once(far: Play, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        path = tmp_path / "backup-stores.json"
        good = path.read_bytes()
        backup_id = await far.written(instance)
        path.write_bytes(good.replace(b'"testing"', b'"outdated"'))
        await cloud.until(lambda: isinstance(cloud.row(backup_id).backup.store, Unanswered))
        said = cloud.row(backup_id).backup.store
        assert isinstance(said, Unanswered)
        assert said.reason.startswith("refused")
        assert "outdated" not in said.reason
        path.write_bytes(good)
        await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"

    far.run(play)


def test_a_store_that_hangs_holds_up_only_what_is_in_it(far: Play) -> None:
    async def play(cloud: BackupCloud) -> None:
        hung = []
        with far.proxy.doing("hang"):
            for _ in range(6):
                instance = await cloud.instance()
                backup_id = await far.written(instance)
                await instance.end(backup_id, Done("d" * 64))
                hung.append(backup_id)
            near = await cloud.instance()
            new = backups.NewBackup(
                id="b-near", nonce="near", name="near", instance_id=near.id, location="local"
            )
            await cloud.store.run(
                backups.create_backup, new, "project", keyring=cloud.keyring, places=cloud.stores.places()
            )
            taken = await near.taken("b-near")
            assert taken.place is None
            await near.end("b-near", Done(await near.write("b-near", taken)))
            async with asyncio.timeout(5.0):
                await cloud.ended("b-near")
            assert cloud.status("b-near") == "COMPLETED"
            assert [cloud.status(item) for item in hung] == ["SAVING"] * 6 or all(
                cloud.row(item).backup.ended is None for item in hung
            )

    far.run(play, job=60.0)


def test_a_full_folder_is_told_to_the_host_and_nothing_half_lies_there(
    store: Store, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        disk = small_disk(256 << 10)
        add(tmp_path / "backup-stores.json", "small", msgspec.convert({"url": disk.as_uri()}, Location))
        instance = await cloud.instance()
        backup_id = await instance.backup()
        taken = await instance.taken(backup_id)
        key = f"{taken.prefix}/00000000.zst.age"
        answer = await instance.put(key, b"x" * (1 << 20), taken.frame.nonce)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "store-full")
        assert (await instance.put(key, b"y" * 1000, taken.frame.nonce)).status_code == 204
        assert cloud.objects.get(key) == b"y" * 1000

    asyncio.run(whole())
