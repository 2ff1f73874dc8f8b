"""Volumes: made empty once, found whole or not at all, put in order, grown and never shrunk."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.host.driver_wants import make_spec, make_want

from unstuck.core.server.data import Flavor
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.volume import check_volume, grow_volume, make_volume, volume_size
from unstuck.host.images import no_barrier
from unstuck.host.space import Space

pytestmark = pytest.mark.skipif(not shutil.which("mke2fs", path="/usr/sbin:/sbin"), reason="no e2fsprogs")
WANT = make_want(spec=make_spec(data=True))
GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> ServerFolder:
    return ServerFolder(tmp_path, WANT.server_id)


def make(folder: ServerFolder, owner: int = 0) -> Path:
    space = Space(folder.path.parent.parent)
    asyncio.run(make_volume(folder, WANT, space, no_barrier, owner))
    return folder.disk_of(WANT)


def debugfs(volume: Path, request: str, *, write: bool = False) -> str:
    words = ["debugfs", *(["-w"] if write else []), "-R", request, volume]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_a_volume_is_empty_formatted_sparse_and_its_users(folder: ServerFolder) -> None:
    volume = make(folder, owner=0x70000000)
    assert volume_size(volume) == volume.stat().st_size == GIB
    assert volume.stat().st_blocks * 512 < 64 << 20
    assert volume.stat().st_mode & 0o777 == 0o600
    assert "User: 1879048192   Group: 1879048192" in debugfs(volume, "stat /")
    assert folder.disks() == [volume.name]
    grant = folder.read_grant()
    assert grant is not None
    assert grant.nonce == WANT.nonce


def test_a_volume_that_is_there_is_never_made_again(folder: ServerFolder) -> None:
    volume = make(folder)
    debugfs(volume, "mkdir precious", write=True)
    make(folder)
    assert "precious" in debugfs(volume, "ls /")
    volume.rename(folder.disk("older", data=True))
    with pytest.raises(DriverError, match="another grant"):
        make(folder)


def test_a_killed_maker_leaves_no_volume_and_its_part_is_swept(folder: ServerFolder) -> None:
    async def die(_name: str) -> None:
        raise KeyboardInterrupt

    folder.ensure()
    space = Space(folder.path.parent.parent)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(make_volume(folder, WANT, space, die, 0))
    assert folder.disks() == []
    assert list(folder.path.glob("*.part-*"))
    make(folder)
    assert not list(folder.path.glob("*.part-*"))


def test_what_is_no_volume_or_only_a_part_of_one_is_not_taken_for_one(folder: ServerFolder) -> None:
    volume = make(folder)
    with volume.open("r+b") as file:
        file.truncate(GIB // 2)
    assert volume_size(volume) is None
    with pytest.raises(DriverError, match="a part of it is missing"):
        asyncio.run(check_volume(volume))
    volume.write_bytes(b"not a file system" * 1000)
    assert volume_size(volume) is None


def test_a_damaged_file_system_is_told_and_left_alone(folder: ServerFolder) -> None:
    volume = make(folder)
    debugfs(volume, "set_super_value free_blocks_count 1", write=True)
    debugfs(volume, "clri <2>", write=True)
    debugfs(volume, "set_super_value state 2", write=True)
    before = volume.read_bytes()[:4096]
    with pytest.raises(DriverError, match="file system is damaged") as told:
        asyncio.run(check_volume(volume))
    assert "restore a backup" in told.value.remedy
    assert volume.read_bytes()[1024 + 56 : 1024 + 58] == before[1024 + 56 : 1024 + 58]


def test_growing_keeps_what_is_there_and_goes_on_where_it_was_cut_off(folder: ServerFolder) -> None:
    volume = make(folder)
    debugfs(volume, "mkdir precious", write=True)

    async def die(_name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(grow_volume(volume, 3 * GIB, die))
    assert volume_size(volume) == GIB  # the file is larger already
    asyncio.run(grow_volume(volume, 3 * GIB, no_barrier))
    assert volume_size(volume) == volume.stat().st_size == 3 * GIB
    assert "precious" in debugfs(volume, "ls /")
    asyncio.run(grow_volume(volume, GIB, no_barrier))
    assert volume_size(volume) == 3 * GIB


def test_the_flavor_says_how_large(folder: ServerFolder) -> None:
    spec = msgspec.structs.replace(WANT.spec, flavor=Flavor(1, 64, 5))
    asyncio.run(
        make_volume(
            folder,
            msgspec.structs.replace(WANT, spec=spec),
            Space(folder.path.parent.parent),
            no_barrier,
            0,
        )
    )
    assert volume_size(folder.disk_of(WANT)) == 5 * GIB
