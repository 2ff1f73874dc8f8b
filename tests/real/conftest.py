"""Fixtures of the tests on the real thing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import fault_cloud
from tests.real.container_stage import why_not
from tests.real.database_cloud import DatabaseCloud, Instance, database_cloud
from unstuck.host import dbimage
from unstuck.host.debian import BuildError


@pytest.fixture
def namespace() -> Iterator[None]:
    """A network namespace of this test's own, for this thread and what it starts."""
    if os.geteuid() != 0:
        pytest.skip("networks need root")
    with fault_cloud.namespace():
        yield


@pytest.fixture(scope="session")
def database_image() -> Path:
    """Of the code as it is now; what comes from Debian was fetched by set-up."""
    if found := why_not():
        pytest.skip(found)
    folder = dbimage.default_folder()
    if not (folder / "manifest.json").exists():
        pytest.skip("the database image was not built: scripts/setup (make test does it)")
    try:
        dbimage.build(folder)
    except BuildError as error:
        pytest.skip(f"the database image cannot be built here: {error}")
    return folder


@pytest.fixture(scope="module")
def made(database_image: Path) -> Iterator[DatabaseCloud]:
    """One cloud for a module's tests; its paths are short, because sockets lie in it."""
    with (
        tempfile.TemporaryDirectory(prefix="unstuck-db-") as root,
        database_cloud(Path(root), database_image) as cloud,
    ):
        yield cloud


@pytest.fixture
def shop(made: DatabaseCloud) -> Iterator[Instance]:
    """An instance with data and a writer, which the tests before this one have left free."""
    made.settings()
    made.send_home()
    yield made.shared()
    made.shared_is_done()
