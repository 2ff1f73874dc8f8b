"""The migrations on PostgreSQL; `create_all`, which the other tests use, writes other SQL than they do."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests import postgres as own
from unstuck.store.engine import Store
from unstuck.store.migrate import ensure_schema
from unstuck.store.schema import metadata


def test_an_empty_postgresql_is_brought_to_the_schema(postgres: str, request: pytest.FixtureRequest) -> None:
    """A default that was written from SQLite (`BOOLEAN DEFAULT 0`) is refused by PostgreSQL."""
    name = f"m{abs(hash(request.node.nodeid)):x}"
    own.copy(postgres, name, "template0")
    store = Store(own.url(postgres, name))
    try:
        assert ensure_schema(store)
        with store.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
    finally:
        store.close()
        own.drop(postgres, name)
