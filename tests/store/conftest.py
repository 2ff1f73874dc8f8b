"""The store's tests run on both databases: SQLite, and a PostgreSQL that the tests start themselves."""

from __future__ import annotations

import pytest

from unstuck.store.engine import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """The same test on both databases."""
    name = "store" if request.param == "sqlite" else "postgres_store"
    found: Store = request.getfixturevalue(name)
    return found
