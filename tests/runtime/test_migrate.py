"""The migrations make exactly the tables of the schema, and a database at head is not touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from unstuck.store.engine import Store
from unstuck.store.migrate import (
    FOLDER,
    HEAD,
    SchemaError,
    ensure_schema,
    ensure_schema_apart,
    schema_version,
)
from unstuck.store.schema import metadata


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path}/new.db")
    yield store
    store.close()


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory(str(FOLDER)).get_current_head() == HEAD


def test_migrations_and_schema_say_the_same(empty: Store) -> None:
    """If this fails: `python -m unstuck.store.migrate revision WORDS` writes what is missing."""
    assert ensure_schema(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert not ensure_schema(empty)


def _checks(store: Store) -> dict[str, set[str]]:
    """The laws in the schema's words, which Alembic's comparison does not look at."""
    inspector = sa.inspect(store.engine)
    return {
        table: {str(check["name"]) for check in inspector.get_check_constraints(table)}
        for table in metadata.tables
    }


def test_the_checks_are_there_too(empty: Store, tmp_path: Path) -> None:
    ensure_schema(empty)
    made = Store(f"sqlite:///{tmp_path}/made.db")
    made.create_all()
    assert _checks(empty) == _checks(made)
    assert any(_checks(made).values())
    made.close()


def test_apart_is_the_same(empty: Store, tmp_path: Path) -> None:
    ensure_schema_apart(empty, f"sqlite:///{tmp_path}/new.db")
    assert schema_version(empty) == HEAD


def test_a_schema_of_the_future_is_refused(empty: Store, tmp_path: Path) -> None:
    ensure_schema(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="upgrade"):
        ensure_schema(empty)
    with pytest.raises(SchemaError, match="upgrade"):
        ensure_schema_apart(empty, f"sqlite:///{tmp_path}/new.db")


def test_the_fast_path_imports_no_alembic(empty: Store, tmp_path: Path) -> None:
    ensure_schema(empty)
    code = (
        "import sys; from unstuck.store.engine import Store; from unstuck.store.migrate import ensure_schema;"
        f"assert not ensure_schema(Store('sqlite:///{tmp_path}/new.db'));"
        "assert not any(name.startswith('alembic') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
