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


def supers(connection: Connection) -> list[str]:
    """Superusers that are neither the agent's role nor those of :func:`harden`."""
    ours = [connection.info.user, *_FILES]
    found = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> ALL(%s) ORDER BY rolname", [ours]
    )
    return [str(row[0]) for row in found.fetchall()]


def _let_out(connection: Connection) -> list[tuple[str, str]]:
    """(role, member): who was let to the server's files and programs, which only a superuser can do."""
    found = connection.execute(
        "SELECT DISTINCT roleid::regrole::text, m.rolname FROM pg_auth_members"
        " JOIN pg_roles m ON m.oid = member WHERE roleid::regrole::text = ANY(%s)",
        [list(_FILES)],
    )
    return [(str(role), str(member)) for role, member in found.fetchall()]


def unbound(connection: Connection) -> bool:
    """Somebody may do what :func:`bound` takes."""
    return bool(supers(connection) or _let_out(connection))


def bound(connection: Connection) -> None:
    """Take what a superuser could do, from root and from whomever it gave it to. What was done with it
    (functions of the agent's role, files of programs) stays: nobody can tell it from the rest."""
    if not unbound(connection):
        return
    mighty = {*supers(connection), *(member for _, member in _let_out(connection))}
    for role, member in _let_out(connection):
        connection.execute(
            sql.SQL("REVOKE {} FROM {} CASCADE").format(sql.Identifier(role), sql.Identifier(member))
        )
    for name in sorted(mighty):
        connection.execute(
            sql.SQL("ALTER ROLE {} NOSUPERUSER NOREPLICATION NOBYPASSRLS").format(sql.Identifier(name))
        )
        end_sessions(connection, name)
    connection.execute("ALTER SYSTEM RESET ALL")


def harden(connection: Connection) -> None:
    """Before 16, who may make roles may also give away those that reach the server's files and programs,
    unless they are superusers themselves. Nothing passes on that attribute, and they cannot log in."""
    if connection.info.server_version < 160000:
        connection.execute(
            "UPDATE pg_authid SET rolsuper = true WHERE rolname = ANY(%s) AND NOT rolsuper", [list(_FILES)]
        )
    for name in ("postgres", "template1"):
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
