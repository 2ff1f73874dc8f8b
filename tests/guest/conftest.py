"""Guests for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guest.guest import Guest, folder
from unstuck.blobs.objects import FolderObjects


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    root = tmp_path / "objects"
    root.mkdir()
    return FolderObjects(root)


@pytest.fixture
def guests(objects: FolderObjects) -> Iterator[Callable[..., Guest]]:
    """Makes guests; all of them read and write the same objects."""
    with folder() as root:
        made: list[Guest] = []

        def make(datastore: str = "postgresql") -> Guest:
            place = root / str(len(made))
            place.mkdir()
            made.append(Guest(place, objects, datastore=datastore))
            return made[-1]

        yield make
        for guest in made:
            guest.end()


@pytest.fixture
def guest(guests: Callable[[], Guest]) -> Guest:
    return guests()
