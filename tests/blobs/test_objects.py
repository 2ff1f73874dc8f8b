"""A store of objects: create-only, durable, and certain about what is absent."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.faulty_store import FaultyStore
from tests.s3_server import S3Server
from unstuck.blobs.objects import (
    BlobError,
    Conflict,
    Entry,
    FolderObjects,
    Location,
    Objects,
    Problem,
    RemoteObjects,
    open_objects,
)


@pytest.fixture
def folder(tmp_path: Path) -> Objects:
    root = tmp_path / "a store"
    root.mkdir()
    return open_objects(Location(f"file://{root}".replace(" ", "%20")))


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.xdist_group("s3"))])
def store(request: pytest.FixtureRequest) -> Objects:
    """Each kind of store; the same must hold for all."""
    if request.param == "folder":
        made: Objects = request.getfixturevalue("folder")
        return made
    return bucket(request.getfixturevalue("s3"))


def bucket(s3: S3Server) -> Objects:
    return open_objects(s3.bucket(f"b{secrets.token_hex(6)}"))


def test_what_was_put_is_there_as_a_whole(store: Objects) -> None:
    store.put_new("backups/b/0001-n/00000000.zst.age", b"data")
    assert store.get("backups/b/0001-n/00000000.zst.age") == b"data"
    assert store.head("backups/b/0001-n/00000000.zst.age") == Entry("backups/b/0001-n/00000000.zst.age", 4)
    assert store.list("backups/b") == [Entry("backups/b/0001-n/00000000.zst.age", 4)]
    assert store.list("backups/b/0001-n") == store.list("backups")


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(store: Objects) -> None:
    store.put_new("backups/b/one", b"1")
    store.put_new("backups/b2/two", b"2")
    assert [entry.key for entry in store.list("backups/b")] == ["backups/b/one"]


def test_a_piece_of_four_megabytes_comes_back_as_it_was(store: Objects) -> None:
    data = os.urandom(4 << 20)
    store.put_new("a/b", data)
    assert store.get("a/b") == data


def test_what_is_not_there_is_absent_for_certain(store: Objects) -> None:
    assert store.get("a/b") is None
    assert store.head("a/b") is None
    assert store.list("a") == []


def test_the_same_again_is_success_and_anything_else_is_refused(store: Objects) -> None:
    store.put_new("a/b", b"one")
    store.put_new("a/b", b"one")
    with pytest.raises(Conflict):
        store.put_new("a/b", b"two")
    assert store.get("a/b") == b"one"


def test_deleting_is_repeatable(store: Objects) -> None:
    store.put_new("a/b/c", b"1")
    store.put_new("a/d", b"2")
    store.delete(["a/b/c", "a/b/never"])
    store.delete(["a/b/c"])
    assert [entry.key for entry in store.list("a")] == ["a/d"]


@pytest.mark.parametrize("secret", ["wrong", ""])
def test_a_store_that_refuses_the_secret_says_so_and_the_secret_stays_unsaid(
    s3: S3Server, secret: str
) -> None:
    where = msgspec.structs.replace(s3.bucket(f"b{secrets.token_hex(6)}"), secret_key=secret or "testin")
    with pytest.raises(BlobError) as said:
        open_objects(where).put_new("a/b", b"1")
    assert said.value.problem is Problem.REFUSED
    assert where.secret_key not in said.value.reason


def test_a_bucket_that_is_not_there_is_a_fault_and_no_empty_store(s3: S3Server) -> None:
    where = msgspec.structs.replace(s3.bucket("bbb"), url="s3://never-made")
    store = open_objects(where)
    with pytest.raises(BlobError):
        store.list("a")
    with pytest.raises(BlobError):
        store.put_new("a/b", b"1")


def test_a_store_that_accepts_and_never_answers_is_given_up(s3: S3Server) -> None:
    where = s3.bucket(f"b{secrets.token_hex(6)}")
    store = open_objects(where, answer=2.0)
    store.put_new("a/b", b"1")
    with s3.frozen("object"):
        for ask in (lambda: store.get("a/b"), lambda: store.put_new("a/c", b"2")):
            with pytest.raises(BlobError) as said:
                ask()
            assert said.value.problem is Problem.UNREACHABLE
    assert store.get("a/b") == b"1"


ANSWERS = {
    401: Problem.REFUSED, 403: Problem.REFUSED, 507: Problem.FULL, 400: Problem.FAULT, 404: Problem.FAULT,
    429: Problem.FAULT, 500: Problem.FAULT, 503: Problem.FAULT,
}  # fmt: skip


@pytest.mark.parametrize("status", ANSWERS)
def test_what_a_store_answered_is_told_by_its_status_and_without_its_address(status: int) -> None:
    proxy = FaultyStore("http://127.0.0.1:1")
    # Names with numbers that would mean something as a status.
    where = Location("s3://bucket/403/507", proxy.url, access_key="a", secret_key="b")
    store = open_objects(where, answer=1.0)
    with proxy.doing(status), pytest.raises(BlobError) as said:
        store.put_new("401/timeout", b"1")
    proxy.close()
    assert said.value.problem is ANSWERS[status]
    assert f"it answered {status} " in said.value.reason
    assert "a fault that a test has asked for" in said.value.reason
    assert "127.0.0.1" not in said.value.reason


def test_deleting_leaves_no_empty_folder(folder: Objects, tmp_path: Path) -> None:
    folder.put_new("a/b/c", b"1")
    folder.put_new("a/d", b"2")
    folder.delete(["a/b/c", "a/d"])
    assert list((tmp_path / "a store").iterdir()) == []


def test_a_folder_that_is_not_mounted_is_unknown_and_not_empty(tmp_path: Path) -> None:
    away = FolderObjects(tmp_path / "away")
    for ask in (
        lambda: away.get("a"),
        lambda: away.head("a"),
        lambda: away.list("a"),
        lambda: away.delete(["a"]),
    ):
        with pytest.raises(BlobError) as said:
            ask()
        assert said.value.problem is Problem.UNREACHABLE


def test_nothing_is_put_into_a_folder_that_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(BlobError) as said:
        FolderObjects(tmp_path / "away").put_new("a", b"1")
    assert said.value.problem is Problem.UNREACHABLE
    assert not (tmp_path / "away").exists()


def test_what_a_killed_writer_left_is_no_object(folder: Objects, tmp_path: Path) -> None:
    folder.put_new("a/b", b"1")
    (tmp_path / "a store" / "a" / ".part-0123").write_bytes(b"half")
    assert folder.list("a") == [Entry("a/b", 1)]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.part-1", "a\nb", "x" * 600])
def test_a_key_that_is_none_is_refused(folder: Objects, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        folder.put_new(key, b"")


@pytest.mark.parametrize("url", ["", "/a", "ftp://a/b", "file://other/a", "s3://", "file:relative"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        open_objects(Location(url))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0 or os.environ.get("UNSTUCK_NETNS") != "1":
        pytest.skip("mounts need a namespace of the test's own (scripts/in-netns, as root)")
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_told_as_such_and_leaves_nothing(tiny_disk: Path) -> None:
    store = FolderObjects(tiny_disk)
    with pytest.raises(BlobError) as said:
        store.put_new("a/b", os.urandom(2 << 20))
    assert said.value.problem is Problem.FULL
    assert store.list("a") == []
    store.put_new("a/b", b"fits")
    assert store.get("a/b") == b"fits"


def test_a_store_that_nobody_serves_is_unreachable(unused_port: int) -> None:
    where = Location("s3://bucket/p", f"http://127.0.0.1:{unused_port}", access_key="a", secret_key="b")
    store = open_objects(where)
    assert isinstance(store, RemoteObjects)
    with pytest.raises(BlobError) as said:
        store.head("a/b")
    assert said.value.problem is Problem.UNREACHABLE
    assert "secret" not in said.value.reason
