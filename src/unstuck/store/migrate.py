"""Bringing a database's schema to what this version needs.

The fast path reads one row and imports nothing of Alembic: a control plane is up within two seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from unstuck.store.engine import Store

HEAD: Final = "0001"
"""The newest revision in ``migrations/versions``; a test holds the two together."""

FOLDER: Final = Path(__file__).parent / "migrations"


class SchemaError(Exception):
    """The database's schema is not one that this version can use; the message says what helps."""


def schema_version(store: Store) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with store.engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def ensure_schema(store: Store) -> bool:
    """Migrate to :data:`HEAD` where needed; true if anything was done. Raises :class:`SchemaError`."""
    if schema_version(store) == HEAD:
        return False
    from alembic import command
    from alembic.util import CommandError

    try:
        with store.engine.connect() as connection:
            command.upgrade(configuration(connection), "head")
    except CommandError as error:
        raise SchemaError(
            f"this version does not know the database's schema ({error}): a newer one made it; upgrade"
        ) from error
    return True


def configuration(connection: sa.Connection) -> Any:
    """Alembic's configuration for one connection; there is no ini file to get lost."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    return config


def main() -> None:
    """``python -m unstuck.store.migrate MESSAGE``: write the next revision from the difference between
    the newest one and the tables in ``schema/``. Look at it before committing; then set :data:`HEAD`."""
    import sys

    from alembic import command

    store = Store("sqlite://")
    with store.engine.connect() as connection:
        config = configuration(connection)
        if any((FOLDER / "versions").glob("[0-9]*.py")):
            command.upgrade(config, "head")
        number = 1 + len(list((FOLDER / "versions").glob("[0-9]*.py")))
        command.revision(
            config, message=" ".join(sys.argv[1:]) or "schema", autogenerate=True, rev_id=f"{number:04d}"
        )
    store.close()


if __name__ == "__main__":
    main()
