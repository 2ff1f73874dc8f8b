"""Fixtures of the agents' API."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents_site import Site

from unstuck.store.engine import Store


@pytest.fixture
def site(store: Store, tmp_path: Path) -> Site:
    """A control plane with one host."""
    return Site(store, tmp_path)
