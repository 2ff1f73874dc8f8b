"""Fixtures that all tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck.store.clock import init_clock
from unstuck.store.engine import Store


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and its clock: made once, because making tables is slow."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    made = Store(f"sqlite:///{path}")
    made.create_all()
    made.transact(init_clock, generation_id="0" * 32)
    made.close()  # the last connection to close moves everything from the WAL into the one file
    return path


@pytest.fixture
def store(tmp_path: Path, sqlite_template: Path) -> Iterator[Store]:
    """An empty store with its clock."""
    shutil.copyfile(sqlite_template, tmp_path / "store.db")
    made = Store(f"sqlite:///{tmp_path}/store.db")
    yield made
    made.close()
