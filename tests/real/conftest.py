"""Fixtures of the tests on the real thing."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
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
def images() -> Callable[[str], Path]:
    """A datastore's image, of the code as it is now; what comes from Debian was fetched by set-up."""

    @functools.cache
    def built(datastore: str) -> Path:
        if found := why_not():
            pytest.skip(found)
        folder = dbimage.default_folder(datastore)
        if not (folder / "manifest.json").exists():
            how = "scripts/setup (make test does it)" if datastore == "postgresql" else f"make {datastore}"
            pytest.skip(f"the image of {datastore} was not built: {how}")
        try:
            dbimage.build(folder, datastore)
        except BuildError as error:
            pytest.skip(f"the image of {datastore} cannot be built here: {error}")
        return folder

    return built


@pytest.fixture(scope="session")
def database_image(images: Callable[[str], Path]) -> Path:
    return images("postgresql")


@pytest.fixture(scope="module")
def made(images: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[DatabaseCloud]:
    """One cloud for a module's tests; its paths are short, because sockets lie in it. Its parameter, where a
    module has one, is the datastore."""
    datastore = getattr(request, "param", "postgresql")
    with (
        tempfile.TemporaryDirectory(prefix="unstuck-db-") as root,
        database_cloud(Path(root), images(datastore), datastore) as cloud,
    ):
        yield cloud


@pytest.fixture
def shop(made: DatabaseCloud) -> Iterator[Instance]:
    """An instance with data and a writer, which the tests before this one have left free."""
    made.settings()
    made.send_home()
    yield made.shared()
    made.shared_is_done()
