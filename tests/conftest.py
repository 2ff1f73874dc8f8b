"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck.store.clock import init_clock
from unstuck.store.engine import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store with its clock."""
    made = Store(f"sqlite:///{tmp_path}/store.db")
    made.create_all()
    made.transact(init_clock, generation_id="0" * 32)
    yield made
    made.close()
