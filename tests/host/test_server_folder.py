"""The state folder: identity, atomic files, budget of starts, console log, removal."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_wants import SERVER, make_want

from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import (
    FolderError,
    ServerFolder,
    check_identity,
    server_ids,
    sweep_records,
    write_identity,
)
from unstuck.runtime.files import write_whole
from unstuck.runtime.marks import MarkFile


@pytest.fixture
def folder(tmp_path: Path) -> ServerFolder:
    write_identity(tmp_path, "host-1")
    made = ServerFolder(tmp_path, SERVER)
    made.ensure()
    return made


def test_a_folder_of_another_host_or_format_or_none_is_never_ours(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="mounted"):
        check_identity(tmp_path, "host-1")
    write_identity(tmp_path, "host-1")
    check_identity(tmp_path, "host-1")
    with pytest.raises(FolderError, match="another host"):
        check_identity(tmp_path, "host-2")
    (tmp_path / "host.json").write_text('{"format": 99, "host_id": "host-1"}')
    with pytest.raises(FolderError, match="format 99"):
        check_identity(tmp_path, "host-1")
    (tmp_path / "host.json").write_text("{")
    with pytest.raises(FolderError, match="cannot be read"):
        check_identity(tmp_path, "host-1")


def test_the_format_of_version_1_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text('{"format":1,"host_id":"h"}')
    check_identity(tmp_path, "h")


def test_a_file_is_replaced_as_a_whole_and_belongs_to_us_alone(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_whole(target, b"one")
    write_whole(target, b"two")
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_killed_writers_left_goes_with_the_next_start(folder: ServerFolder) -> None:
    """A server that rests is not touched for long: its half written grant would have stayed."""
    host_dir = folder.path.parents[1]
    mark = host_dir / "mark.json"
    left = [folder.path / ".grant.json.part-0123abcd", host_dir / ".mark.json.part-0123abcd"]
    kept = [folder.path / "grant.json", folder.path / "disk-n.qcow2.part-0123abcd", mark]
    for path in left + kept:
        path.write_bytes(b"{")
    sweep_records(host_dir)
    MarkFile(mark)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("bad", ["../../etc", "", "x" * 36, SERVER.upper() + "/", SERVER + "\n"])
def test_nothing_but_a_server_id_names_a_folder(tmp_path: Path, bad: str) -> None:
    with pytest.raises(DriverError):
        ServerFolder(tmp_path, bad)


def test_nothing_but_a_nonce_names_a_disk(folder: ServerFolder) -> None:
    with pytest.raises(DriverError):
        folder.disk("../x")


def test_starts_count_per_edge_and_only_lately(folder: ServerFolder) -> None:
    three, four = make_want(edge=3), make_want(edge=4)
    for now in (1000.0, 1001.0, 1002.0):
        folder.record_start(three, now, window=600)
    assert folder.recent_starts(three, 1003.0, 600) == 3
    assert folder.recent_starts(four, 1003.0, 600) == 0
    assert folder.recent_starts(three, 1601.5, 600) == 1
    folder.record_start(four, 1003.0, 600)
    assert folder.recent_starts(four, 1003.0, 600) == 1
    folder.forget_starts()
    assert folder.recent_starts(four, 1003.0, 600) == 0


def test_starts_before_an_operators_mark_do_not_count(folder: ServerFolder) -> None:
    folder.record_start(make_want(edge=3), 1000.0, 600)
    marked = make_want(edge=3, mark=9)
    assert folder.recent_starts(marked, 1001.0, 600) == 0
    folder.record_start(marked, 1001.0, 600)
    assert folder.recent_starts(marked, 1002.0, 600) == 1


def test_starts_of_another_boot_do_not_count(folder: ServerFolder) -> None:
    (folder.path / "starts.json").write_text('{"edge":3,"boot_id":"other","times":[1.0,2.0]}')
    assert folder.recent_starts(make_want(edge=3), 3.0, 600) == 0


def test_the_console_log_is_bounded_while_the_guest_appends(folder: ServerFolder) -> None:
    with folder.console.open("ab") as guest:
        guest.write(b"".join(b"line %06d\n" % n for n in range(2000)))
        guest.flush()
        folder.bound_console(10_000)
        guest.write(b"after\n")
        guest.flush()
    assert folder.console.read_bytes() == b"after\n"
    tail = folder.console_tail(3)
    assert tail.splitlines() == ["line 001998", "line 001999", "after"]
    assert len(folder.console_tail(None)) < 10_100


def test_qemus_last_words_are_short_and_without_its_own_name(folder: ServerFolder) -> None:
    folder.output.write_bytes(b"noise\n" * 9 + b"qemu-system-x86_64: -netdev tap: no such device\n")
    assert folder.last_words().endswith("| -netdev tap: no such device")


def test_removal_is_idempotent_and_takes_everything(folder: ServerFolder, tmp_path: Path) -> None:
    folder.write_grant(make_want())
    folder.disk("a").touch()
    folder.lock.touch()
    (folder.path / "disk-a.qcow2.part-1").touch()
    assert server_ids(tmp_path) == {SERVER}
    folder.remove()
    folder.remove()
    assert server_ids(tmp_path) == frozenset()
    grants = ServerFolder(tmp_path, SERVER)
    assert grants.read_grant() is None
    assert grants.disks() == []


def test_the_grant_says_what_lies_in_use(folder: ServerFolder) -> None:
    folder.write_grant(make_want(edge=9))
    grant = folder.read_grant()
    assert grant is not None
    assert (grant.generation, grant.epoch, grant.nonce, grant.edge) == (1, 3, "n0nce", 9)
