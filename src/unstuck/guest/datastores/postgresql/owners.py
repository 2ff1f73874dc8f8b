"""Who owns a database: a role of its own, without a login, that its users are members of.

So what one user of a database makes belongs to all of them, a user can be dropped without what it made, and
PostgreSQL 15's ``public`` schema (which is its database's owner's) is open to them and to nobody else.
"""

from __future__ import annotations

from psycopg import sql

from unstuck.guest.datastores.postgresql.names import ROOT
from unstuck.guest.datastores.postgresql.session import Connection

OWNER = "unstuck_owner_"
_FILES = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")


def owner_of(connection: Connection, database: str) -> str | None:
    """The database's owning role, made where it is missing; None if there is no such database."""
    row = connection.execute(
        "SELECT d.oid, r.rolname FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE datname = %s",
        [database],
    ).fetchone()
    if row is None:
        return None
    oid, held = row
    owner = f"{OWNER}{oid}"
    if held == owner:
        return owner
    role, base = sql.Identifier(owner), sql.Identifier(database)
    with connection.transaction():
        if not has_role(connection, owner):
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(base, role))
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(base))
        if has_role(connection, ROOT):
            connection.execute(sql.SQL("GRANT {} TO {}").format(role, sql.Identifier(ROOT)))
        if not is_super(connection, str(held)):  # who made it by hand goes on using it
            connection.execute(sql.SQL("GRANT {} TO {}").format(role, sql.Identifier(str(held))))
    return owner


def has_role(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone() is not None


def is_super(connection: Connection, name: str) -> bool:
    found = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [name]).fetchone()
    return found is not None and bool(found[0])


def grant(connection: Connection, user: str, database: str, owner: str) -> None:
    """What the user makes there is the owner's from the start."""
    role, base, name = sql.Identifier(owner), sql.Identifier(database), sql.Identifier(user)
    connection.execute(sql.SQL("GRANT {} TO {}").format(role, name))
    connection.execute(
        sql.SQL("ALTER ROLE {} IN DATABASE {} SET role = {}").format(name, base, sql.Literal(owner))
    )


def revoke(connection: Connection, user: str, database: str, owner: str) -> None:
    role, base, name = sql.Identifier(owner), sql.Identifier(database), sql.Identifier(user)
    connection.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET role").format(name, base))
    connection.execute(sql.SQL("REVOKE {} FROM {}").format(role, name))
    end_sessions(connection, user, database)


def end_sessions(connection: Connection, user: str, database: str | None = None) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        " AND (%s::text IS NULL OR datname = %s)",
        [user, database, database],
    )


def harden(connection: Connection) -> None:
    """Before 16, who may make roles may also give away those that reach the server's files and programs,
    unless they are superusers themselves. Nothing passes on that attribute, and they cannot log in."""
    if connection.info.server_version < 160000:
        connection.execute(
            "UPDATE pg_authid SET rolsuper = true WHERE rolname = ANY(%s) AND NOT rolsuper", [list(_FILES)]
        )
    for name in ("postgres", "template1"):
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
