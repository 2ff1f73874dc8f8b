"""A backup over the agents' API, with the control plane's loop: it always ends, whoever fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import msgspec
import pysqlite3
import pytest
from agents_site import HOST
from backup_site import BackupCloud, Instance, run
from tests.backup_world import set_instance

from unstuck.blobs import keys
from unstuck.blobs.chunks import open_chunk
from unstuck.blobs.manifest import manifest_key
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores
from unstuck.control.backup_blobs import ThreadedBlobs
from unstuck.core.backup import change
from unstuck.core.backup.data import Done, Gave, Rotten, Verified
from unstuck.core.instance.wire import AskGrant, RestoreGrant, Taken
from unstuck.store import backup_rows, backups
from unstuck.store.backup_work import Work, Written
from unstuck.store.engine import Store
from unstuck.store.figures import figures
from unstuck.store.generation import rise


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that nobody can ask for, a second or less."""
    monkeypatch.setattr("unstuck.core.backup.control.LEASE", 2.0)
    monkeypatch.setattr("unstuck.control.loop.LEASE", 2.0)
    monkeypatch.setattr("unstuck.core.backup.control.STOP", 1.0)
    monkeypatch.setattr("unstuck.core.backup.control.ASK_AGAIN", 0.2)
    monkeypatch.setattr(backup_rows, "ASK_AGAIN", 0.2)
    monkeypatch.setattr(backup_rows, "LEASE", 2.0)
    monkeypatch.setattr(change, "UPLOAD_AT_LONGEST", 1.0)


def left(cloud: BackupCloud, backup_id: str) -> list[str]:
    """What of it is still in the store of objects."""
    return [entry.key for entry in cloud.objects.list(f"backups/{backup_id}")]


def test_a_backup_is_taken_written_verified_and_complete(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        assert cloud.status(backup_id) == "NEW"
        taken = await instance.taken(backup_id)
        assert taken.place is None
        assert cloud.status(backup_id) == "BUILDING"
        assert (await instance.renew(backup_id, size=7)).json() == {"stop": None}
        digest = await instance.write(backup_id, taken)
        assert (await instance.end(backup_id, Done(digest))).status_code == 204
        row = await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"
        assert (row.digest, row.prefix, row.size) == (digest, taken.prefix, 15000)
        assert row.settled
        assert (await instance.end(backup_id, Done(digest))).status_code == 204, "said again, it is no news"

    run(store, tmp_path, play)


def test_nobody_comes_and_it_ends_and_the_instance_was_free_all_along(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(claim=1.0)
        moving = (await cloud.store.run_read(figures)).moving
        assert moving["backup"].count == 1
        row = await cloud.ended(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.reason == "no agent of the instance took it within 1 s"
        await cloud.settled(backup_id)
        assert (await cloud.store.run_read(figures)).moving["backup"].count == 0
        await cloud.ended(await instance.complete())

    run(store, tmp_path, play)


def test_an_agent_that_dies_is_followed_by_another_attempt_and_its_objects_go(
    store: Store, tmp_path: Path
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        first = await instance.taken(backup_id)
        upload = instance.upload(backup_id, first)
        for key, data in list(upload.objects.items())[:2]:
            assert (await instance.put(key, data, first.frame.nonce)).status_code == 204
        await attempt(cloud, backup_id, 2)
        late = await instance.put(f"{first.prefix}/manifest.json", upload.signed(), first.frame.nonce)
        assert late.status_code == 410, "a late agent writes nothing any more"
        assert (await instance.end(backup_id, Done("d" * 64), first.frame.nonce)).status_code == 410
        second = await instance.taken(backup_id)
        digest = await instance.write(backup_id, second)
        await instance.end(backup_id, Done(digest))
        row = await cloud.settled(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"
        assert row.prefix == second.prefix
        assert all(key.startswith(second.prefix) for key in left(cloud, backup_id))
        assert len(left(cloud, backup_id)) == len(upload.objects) + 1

    run(store, tmp_path, play)


async def refused(call: Callable[[], Awaitable[httpx2.Response]]) -> None:
    """An agent says it again and again, until it is told that its attempt is over."""
    async with asyncio.timeout(20.0):
        while (await call()).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def attempt(cloud: BackupCloud, backup_id: str, number: int) -> None:
    await cloud.until(lambda: cloud.row(backup_id).backup.attempt.number >= number)


def test_a_finished_backup_whose_report_was_lost_is_found_and_complete(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        taken = await instance.taken(backup_id)
        digest = await instance.write(backup_id, taken)
        row = await cloud.ended(backup_id)
        assert (cloud.status(backup_id), row.digest, row.prefix) == ("COMPLETED", digest, taken.prefix)

    run(store, tmp_path, play)


@pytest.mark.parametrize("phase", ["starting", "copying", "finishing", "uploading"])
def test_an_agent_that_lives_and_does_nothing_is_given_up_in_each_phase_and_told(
    store: Store, tmp_path: Path, phase: str
) -> None:
    """Its tool hangs, and it says so itself, each time with a greater age of its last progress."""

    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(attempts=1, **{phase: 1.0})
        taken = await instance.taken(backup_id)
        began = time.monotonic()
        nonce = taken.frame.nonce
        await refused(
            lambda: instance.renew(backup_id, phase=phase, idle=time.monotonic() - began, nonce=nonce)
        )
        row = await cloud.ended(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.reason.endswith("nothing moved for 1 s")
        assert time.monotonic() - began < 20.0

    run(store, tmp_path, play)


def test_an_agent_that_moves_all_the_time_ends_with_the_time_it_was_given_in_all(
    store: Store, tmp_path: Path
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(total=1.0)
        taken = await instance.taken(backup_id)
        await refused(lambda: instance.renew(backup_id, nonce=taken.frame.nonce))
        row = await cloud.ended(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.reason == "it took longer than it was given in all"

    run(store, tmp_path, play)


@pytest.mark.parametrize("how", ["cancel", "delete", "delete the instance"])
def test_an_agent_that_ignores_that_it_is_to_stop_holds_nobody_up(
    store: Store, tmp_path: Path, how: str
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        taken = await instance.taken(backup_id)
        await instance.put(*next(iter(instance.upload(backup_id, taken).objects.items())), taken.frame.nonce)
        match how:
            case "cancel":
                await cloud.store.run(backups.cancel_backup, backup_id, "project")
            case "delete":
                await cloud.store.run(backups.delete_backup, backup_id, "project")
            case _:
                await cloud.store.run(backups.instance_deleted, instance.id)
        stop = (await instance.renew(backup_id, nonce=taken.frame.nonce)).json()["stop"]
        assert "deleted" in stop or "cancelled" in stop
        await refused(lambda: instance.renew(backup_id, nonce=taken.frame.nonce))
        await cloud.settled(backup_id)
        assert cloud.status(backup_id) == "FAILED"
        assert left(cloud, backup_id) == []

    run(store, tmp_path, play)


def liars(cloud: BackupCloud, instance: Instance, backup_id: str, taken: Taken, how: str) -> bytes:
    """A manifest that must not be believed."""
    upload = instance.upload(backup_id, taken)
    match how:
        case "of another cloud":
            other = keys.Signer.new()
            upload.certificate = other.certify(HOST, upload.signer.public)
            return upload.signed()
        case "of another host":
            upload.certificate = cloud.keyring.certify("another-host", upload.signer.public)
            return upload.signed()
        case "with a flipped bit":
            data = bytearray(upload.signed())
            at = data.index(b"shop")
            data[at] ^= 1
            return bytes(data)
        case "of another backup":
            return upload.signed(project_id="mine")
        case "with another key":
            return upload.signed(key=keys.wrap(keys.new_identity(), [upload.manifest.recipients[0]]))
        case "no manifest":
            return b"{"
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("of another cloud", "not signed by this cloud"),
        ("of another host", "signed by host another-host"),
        ("with a flipped bit", "not signed by this cloud"),
        ("of another backup", "another project_id"),
        ("with another key", "another key"),
        ("no manifest", "cannot be read"),
    ],
)
def test_a_manifest_that_lies_is_tried_again_and_fails_with_what_was_wrong(
    store: Store, tmp_path: Path, how: str, said: str
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(attempts=2)
        for number in (1, 2):
            await attempt(cloud, backup_id, number)
            taken = await instance.taken(backup_id)
            forged = liars(cloud, instance, backup_id, taken, how)
            digest = await instance.write(backup_id, taken, signed=forged)
            await instance.end(backup_id, Done(digest))
        row = await cloud.settled(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.ending == "FAILED"
        assert said in row.backup.ended.reason
        assert left(cloud, backup_id) == []

    run(store, tmp_path, play)


def test_a_forged_manifest_under_a_higher_number_hides_no_good_one(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        taken = await instance.taken(backup_id)
        digest = await instance.write(backup_id, taken)
        cloud.objects.put_new(manifest_key(f"backups/{backup_id}/9999-evil"), b"{}")
        row = await cloud.ended(backup_id)
        assert (cloud.status(backup_id), row.digest) == ("COMPLETED", digest)

    run(store, tmp_path, play)


@pytest.mark.parametrize("what", ["missing", "truncated"])
def test_a_piece_that_is_not_there_as_it_was_written_is_named(
    store: Store, tmp_path: Path, what: str
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(attempts=1)
        taken = await instance.taken(backup_id)
        digest = await instance.write(backup_id, taken, without=2 if what == "missing" else None)
        if what == "truncated":
            path = tmp_path / "backups" / taken.prefix / "00000002.zst.age"
            path.write_bytes(path.read_bytes()[:-1])
        await instance.end(backup_id, Done(digest))
        row = await cloud.ended(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.reason == "pieces are missing or of another length: 00000002.zst.age"

    run(store, tmp_path, play)


def test_a_folder_that_is_not_mounted_is_no_empty_store(store: Store, tmp_path: Path) -> None:
    """Its place is there, and empty: what was backed up is not taken for lost, nor a removal for done."""

    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup(unknown=600.0)
        taken = await instance.taken(backup_id)
        digest = await instance.write(backup_id, taken)
        (tmp_path / "backups").rename(tmp_path / "away")
        (tmp_path / "backups").mkdir()
        await cloud.until(lambda: cloud.row(backup_id).backup.store is not None)
        assert cloud.row(backup_id).backup.attempt.number == 1
        (tmp_path / "backups").rmdir()
        (tmp_path / "away").rename(tmp_path / "backups")
        assert (await cloud.ended(backup_id)).digest == digest

    run(store, tmp_path, play)


def test_a_restore_gets_its_backups_content_key_and_objects_and_nothing_else(
    store: Store, tmp_path: Path
) -> None:
    async def play(cloud: BackupCloud) -> None:
        source = await cloud.instance()
        backup_id, other_id = await source.complete(), None
        await cloud.ended(backup_id)
        other_id = await source.complete()
        other = await cloud.ended(other_id)
        reader = await cloud.instance(restores=backup_id)
        answer = await reader.post("restores/grant", AskGrant(reader.who))
        grant = msgspec.json.decode(answer.content, type=RestoreGrant)
        assert (grant.backup_id, grant.content.size) == (backup_id, 15000)
        plain = b""
        for chunk in grant.content.chunks:
            got = await reader.get(f"{grant.prefix}/{chunk.index:08d}.zst.age")
            assert got.status_code == 200
            plain += open_chunk(chunk, got.content, grant.identity)
        assert plain == b"all of the data" * 1000
        assert (await reader.get(f"{other.prefix}/00000000.zst.age")).status_code == 410
        assert (await source.get(f"{grant.prefix}/00000000.zst.age")).status_code == 410
        assert (await source.post("restores/grant", AskGrant(source.who))).status_code == 410
        assert (await reader.get(f"{grant.prefix}/00000099.zst.age")).status_code == 404
        set_instance(cloud.store, reader.id, data_recorded=True, restores=None)
        assert (await reader.get(f"{grant.prefix}/00000000.zst.age")).status_code == 410
        assert (await reader.post("restores/grant", AskGrant(reader.who))).status_code == 410

    run(store, tmp_path, play)


def test_a_restore_from_a_backup_whose_manifest_was_changed_is_refused(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        source = await cloud.instance()
        backup_id = await source.complete()
        row = await cloud.ended(backup_id)
        reader = await cloud.instance(restores=backup_id)
        assert row.prefix is not None
        path = tmp_path / "backups" / manifest_key(row.prefix)
        path.write_bytes(path.read_bytes().replace(b"shop", b"shoq"))
        answer = await reader.post("restores/grant", AskGrant(reader.who))
        assert answer.status_code == 422
        assert answer.json()["error"]["type"] == "rotten"

    run(store, tmp_path, play)


def test_a_backup_deleted_while_it_is_restored_from_goes_when_the_restore_has_ended(
    store: Store, tmp_path: Path
) -> None:
    async def play(cloud: BackupCloud) -> None:
        source = await cloud.instance()
        backup_id = await source.complete()
        row = await cloud.ended(backup_id)
        reader = await cloud.instance(restores=backup_id)
        await cloud.store.run(backups.delete_backup, backup_id, "project")
        cloud.notifier.wake("control")
        await asyncio.sleep(0.5)  # more than enough for several looks
        assert (await reader.get(f"{row.prefix}/00000000.zst.age")).status_code == 200
        set_instance(cloud.store, reader.id, data_recorded=True, restores=None)
        await cloud.settled(backup_id)
        assert left(cloud, backup_id) == []
        assert cloud.row(backup_id).removed

    run(store, tmp_path, play)


BAD_KEYS = [
    "backups/{b}/0001-{n}/../../x", "backups/{b}/0001-{n}/00000000.zst", "backups/{b}/1-{n}/manifest.json",
    "backups/{b}/0001-{n}/%2e%2e", "backups/{b}/0001-{n}/.part-x", "backups/{b}/00001-{n}/manifest.json",
]  # fmt: skip


def test_a_host_writes_only_what_its_live_attempt_may(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        mine, other = await cloud.instance(), await cloud.instance()
        backup_id = await mine.backup()
        nonce = cloud.row(backup_id).backup.attempt.nonce
        first = f"backups/{backup_id}/0001-{nonce}/00000000.zst.age"
        assert (await mine.put(first, b"x", nonce)).status_code == 410, "nobody has taken it yet"
        await mine.taken(backup_id)
        assert (await other.put(first, b"x", nonce)).status_code == 410, "another instance's"
        for key in BAD_KEYS:
            assert (await mine.put(key.format(b=backup_id, n=nonce), b"x", nonce)).status_code == 404, key
        assert (await mine.put(first, b"x", "another")).status_code == 400
        assert (await mine.put(first, b"", nonce)).status_code == 400
        assert (await mine.put(first, b"x" * ((8 << 20) + 1), nonce)).status_code == 413
        assert left(cloud, backup_id) == []
        assert (await mine.put(first, b"x", nonce)).status_code == 204
        assert (await mine.put(first, b"x", nonce)).status_code == 204
        again = await mine.put(first, b"y", nonce)
        assert (again.status_code, again.json()["error"]["type"]) == (409, "conflict")
        assert cloud.objects.get(first) == b"x"
        assert (await mine.get(first)).status_code == 410, "it restores nothing"
        stranger = cloud.raw(authorization="Bearer wrong")
        async with stranger as client:
            refused = await client.put(f"objects/{first}", params=mine.query(nonce), content=b"x")
        assert refused.status_code == 401

    run(store, tmp_path, play)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("attempts/take", {"signing_key": "no key"}),
        ("attempts/take", {"signing_key": "AAAA"}),
        ("attempts/take", {"backup_id": "../x"}),
        ("attempts/take", {"nonce": ""}),
        ("attempts/renew", {"phase": "dreaming"}),
        ("attempts/renew", {"size": -1}),
        ("attempts/renew", {"size": 2**70}),
        ("attempts/renew", {"idle": -1.0}),
        ("attempts/renew", {"idle": "long"}),
        ("attempts/end", {"said": {"type": "done", "digest": "x"}}),
        ("attempts/end", {"said": {"type": "perhaps"}}),
        ("restores/grant", {"who": None}),
    ],
)
def test_bad_input_is_a_400_that_names_it(
    store: Store, tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        good = {
            "who": msgspec.to_builtins(instance.who), "backup_id": backup_id,
            "nonce": cloud.row(backup_id).backup.attempt.nonce, "signing_key": cloud.signer.public,
            "phase": "copying", "size": 1, "idle": 0.0, "said": {"type": "gave", "reason": "x"},
        }  # fmt: skip
        answer = await instance.post(path, good | body)
        assert answer.status_code == 400, answer.text
        assert "nput" in answer.json()["error"]["message"]

    run(store, tmp_path, play)


def test_what_an_agent_says_of_its_failure_is_kept_within_bounds(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        await instance.taken(backup_id)
        await instance.end(backup_id, Gave("no  space\n" * 1000, final=True))
        row = await cloud.ended(backup_id)
        assert row.backup.ended is not None
        assert row.backup.ended.reason.startswith("no space no space")
        assert len(row.backup.ended.reason) <= 1000

    run(store, tmp_path, play)


class Stuck(ThreadedBlobs):
    """A control plane that is killed while it verifies: its answer never comes."""

    async def verify(self, work: Work, seconds: float) -> tuple[Verified, Written] | Rotten:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


def test_a_control_plane_that_dies_while_it_verifies_is_followed_by_the_next(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unstuck.control.backups.LEASE_MORE", 0.5)

    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        instance = await cloud.instance()
        port = cloud.control_port()
        task = cloud.control_backups(port, job=1.0, blobs=Stuck(cloud.stores, cloud.keyring))
        backup_id = await instance.complete()
        await cloud.until(lambda: cloud.row(backup_id).owner is not None)
        port.end(0)
        await task
        assert cloud.status(backup_id) == "SAVING"
        port = cloud.control_port()
        task = cloud.control_backups(port, job=1.0)
        await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"
        port.end(0)
        await task

    asyncio.run(whole())


def test_of_two_control_planes_each_backup_is_verified_by_one(store: Store, tmp_path: Path) -> None:
    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        counts = [Counting(cloud.stores, cloud.keyring) for _ in range(2)]
        ports = [cloud.control_port() for _ in counts]
        tasks = [cloud.control_backups(p, blobs=c) for p, c in zip(ports, counts, strict=True)]
        ids = [await (await cloud.instance()).complete() for _ in range(6)]
        for backup_id in ids:
            await cloud.ended(backup_id)
        assert [cloud.status(backup_id) for backup_id in ids] == ["COMPLETED"] * 6
        assert sum(count.verified for count in counts) == 6
        for port, task in zip(ports, tasks, strict=True):
            port.end(0)
            await task

    asyncio.run(whole())


class Counting(ThreadedBlobs):
    verified = 0

    async def verify(self, work: Work, seconds: float) -> tuple[Verified, Written] | Rotten:
        self.verified += 1
        return await super().verify(work, seconds)


def test_a_host_that_sends_slowly_holds_up_only_itself() -> None:
    async def play() -> None:
        there = BackupSite(Stores(Path("/nonexistent"), Path("/nonexistent")), None)
        async with contextlib.AsyncExitStack() as slow:
            for _ in range(4):
                await slow.enter_async_context(there.object_in_memory("slow", 1.0))
            with pytest.raises(TimeoutError):
                await slow.enter_async_context(there.object_in_memory("slow", 0.05))
            async with there.object_in_memory("other", 1.0):
                pass
        async with there.object_in_memory("slow", 1.0):
            pass

    asyncio.run(play())


def test_a_store_set_back_to_before_the_backup_was_taken_finds_it_complete(
    store: Store, tmp_path: Path
) -> None:
    """Its older copy knows the backup as one that nobody took, and its deadline is over."""
    older = tmp_path / "older.db"

    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        instance = await cloud.instance()
        backup_id = await instance.backup(claim=1.0)
        with contextlib.closing(pysqlite3.connect(str(tmp_path / "store.db"))) as connection:
            connection.execute(f"VACUUM INTO '{older}'")
        taken = await instance.taken(backup_id)
        await instance.end(backup_id, Done(await instance.write(backup_id, taken)))
        copy = Store(f"sqlite:///{older}")
        try:
            await copy.run(rise, "an older copy was put back")
            cloud.store = copy
            assert cloud.status(backup_id) == "NEW"
            port = cloud.control_port()
            task = cloud.control_backups(port)
            row = await cloud.ended(backup_id)
            assert (cloud.status(backup_id), row.size) == ("COMPLETED", 15000)
            port.end(0)
            await task
        finally:
            copy.close()

    asyncio.run(whole())
