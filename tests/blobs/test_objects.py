"""A store of objects: create-only, durable, and certain about what is absent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_what_was_put_is_there_as_a_whole(folder: Objects) -> None:
    folder.put_new("backups/b/0001-n/00000000.zst.age", b"data")
    assert folder.get("backups/b/0001-n/00000000.zst.age") == b"data"
    assert folder.head("backups/b/0001-n/00000000.zst.age") == Entry("backups/b/0001-n/00000000.zst.age", 4)
    assert folder.list("backups/b") == [Entry("backups/b/0001-n/00000000.zst.age", 4)]


def test_what_is_not_there_is_absent_for_certain(folder: Objects) -> None:
    assert folder.get("a/b") is None
    assert folder.head("a/b") is None
    assert folder.list("a") == []


def test_the_same_again_is_success_and_anything_else_is_refused(folder: Objects) -> None:
    folder.put_new("a/b", b"one")
    folder.put_new("a/b", b"one")
    with pytest.raises(Conflict):
        folder.put_new("a/b", b"two")
    assert folder.get("a/b") == b"one"


def test_deleting_is_repeatable_and_leaves_no_empty_folder(folder: Objects, tmp_path: Path) -> None:
    folder.put_new("a/b/c", b"1")
    folder.put_new("a/d", b"2")
    folder.delete(["a/b/c", "a/b/never"])
    folder.delete(["a/b/c"])
    assert [entry.key for entry in folder.list("a")] == ["a/d"]
    folder.delete(["a/d"])
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
