"""A state folder with an image, made once: setting up and uploading is what takes time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.many import Many, free_port
from tests.tiny_image import fake_tiny
from unstuck.runtime.state import prepare


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("processes")
    made = Many(root / "state")
    try:
        control = made.control()
        made.upload(fake_tiny(root / "tiny"))
        control.kill()
    finally:
        made.close()
    return made.state.root


@pytest.fixture
def many(tmp_path: Path, template: Path) -> Iterator[Many]:
    """A cloud of which nothing runs yet."""
    shutil.copytree(template, tmp_path / "state")
    made = Many(tmp_path / "state", prepared=prepare(tmp_path / "state", port=free_port()))
    yield made
    made.close()
