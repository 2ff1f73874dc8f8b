"""Bringing a database's schema to what this version needs.

The fast path reads one row and imports nothing of Alembic: a control plane is up within two seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from unstuck.store.engine import Store, StoreUnavailable

HEAD: Final = "0015"
"""The newest revision in ``migrations/versions``; a test holds the two together."""

_SETUP_LOCK: Final = 0x756E737475636B
"""The name of the advisory lock on PostgreSQL."""
_VARIABLE: Final = "UNSTUCK_STORE"
FOLDER: Final = Path(__file__).parent / "migrations"


class SchemaError(Exception):
    """The database's schema is not one that this version can use; the message says what helps."""


def schema_version(store: Store) -> str | None:
    """The revision that the database is at; None for an empty one. Raises :class:`StoreUnavailable`."""
    try:
        with store.engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    except store.errors as error:
        raise store.told(error) from error


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


def ensure_schema_apart(store: Store, url: str) -> None:
    """The same, but Alembic runs in a process of its own: its memory would stay with a control plane for
    as long as it lives. The URL goes by the environment, because it may hold a password."""
    if schema_version(store) == HEAD:
        return
    import os
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "unstuck.store.migrate", "upgrade"], env={**os.environ, _VARIABLE: url},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise SchemaError(said[-1] if said else f"the migration ended with {done.returncode}")


@contextlib.contextmanager
def alone(store: Store) -> Iterator[None]:
    """Keep other control planes from making the store complete at the same time; they wait for a minute.

    Two replicas started at once on an empty PostgreSQL made the same tables and the same users. SQLite has
    one control plane anyway. Raises :class:`StoreUnavailable` when the other one does not come to an end.
    """
    if store.sqlite:
        yield
        return
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            connection.exec_driver_sql("SET lock_timeout = '60s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({_SETUP_LOCK})")
        except store.outages as error:
            cause = getattr(error, "orig", error)
            raise StoreUnavailable(f"another control plane is setting up the store: {cause}") from error
        try:
            yield
        finally:
            connection.invalidate()  # the lock ends with its session, whatever state that is in


def configuration(connection: sa.Connection) -> Any:
    """Alembic's configuration for one connection; there is no ini file to get lost."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    return config


def write_revision(message: str) -> None:
    """Write the next revision from the difference between the newest one and the tables in ``schema/``."""
    from alembic import command

    store = Store("sqlite://")
    with store.engine.connect() as connection:
        config = configuration(connection)
        number = 1 + len(list((FOLDER / "versions").glob("[0-9]*.py")))
        if number > 1:
            command.upgrade(config, "head")
        command.revision(config, message=message, autogenerate=True, rev_id=f"{number:04d}")
    store.close()


def main(argv: list[str]) -> int:
    """``python -m unstuck.store.migrate upgrade`` (the URL in ``UNSTUCK_STORE``), or ``… revision MESSAGE``:
    look at what it wrote before committing it, and set :data:`HEAD`."""
    import os
    import sys

    if argv[:1] == ["revision"]:
        write_revision(" ".join(argv[1:]) or "schema")
        return 0
    store = Store(os.environ[_VARIABLE])
    try:
        ensure_schema(store)
    except SchemaError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
