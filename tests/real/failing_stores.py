"""Stores of objects that fail while a real database is backed up to them: a folder that is full, and a real
S3 server behind a proxy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.faulty_store import FaultyStore
from tests.real.database_cloud import DatabaseCloud
from tests.s3_server import S3Server, s3_is_built
from unstuck.blobs import stores


class Far:
    """A bucket behind a proxy; ``direct`` is how a test looks into it."""

    def __init__(self, made: DatabaseCloud, server: S3Server) -> None:
        self.made = made
        self.direct = server.bucket("backups")
        self.proxy = FaultyStore(server.url)
        self.where = msgspec.structs.replace(self.direct, endpoint=self.proxy.url)

    def use(self) -> None:
        self.made.send_to("far", self.where)

    def only_complete(self) -> None:
        self.made.only_objects_of_complete_backups("far", self.direct)


@pytest.fixture(scope="module")
def far(made: DatabaseCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    if not s3_is_built():
        pytest.skip("the S3 server for tests is not installed: scripts/s3-server build (make test does it)")
    server = S3Server(tmp_path_factory.mktemp("s3"))  # in the cloud's own network
    try:
        found = Far(made, server)
        yield found
        found.proxy.close()
    finally:
        server.close()


@pytest.fixture
def small(made: DatabaseCloud, tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 6 MiB: a backup does not fit."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "small", folder], check=True)
    stores.make_folder(folder)
    try:
        yield folder
    finally:
        made.send_home()
        subprocess.run(["umount", "--lazy", folder], check=True)
