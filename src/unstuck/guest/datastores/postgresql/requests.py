"""Databases, users and root of a running server, as the API asks for them.

Each request is harmless when repeated. Names go into statements as quoted identifiers only.
"""

from __future__ import annotations

from typing import assert_never

import psycopg
from psycopg import sql

from unstuck.core.instance.requests import (
    ChangeUser,
    Check,
    CreateDatabases,
    CreateUsers,
    DatabaseAnswer,
    DatabaseInfo,
    DatabaseRequest,
    DisableRoot,
    DropDatabase,
    DropUser,
    EnableRoot,
    Failed,
    GetUser,
    Grant,
    ListDatabases,
    ListUsers,
    Ok,
    Revoke,
    UserInfo,
)
from unstuck.core.instance.want import WantedDatabase, WantedUser
from unstuck.guest.datastores.postgresql import check, names, owners
from unstuck.guest.datastores.postgresql.names import ROOT
from unstuck.guest.datastores.postgresql.session import Connection, beside, first_line

PAGE = 1000
AGAIN = 5
"""Times that a request is tried while others get in its way."""
_DATABASES = (
    "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate AND datname <> 'postgres'"
)
_USERS = (
    "SELECT rolname FROM pg_roles WHERE rolcanlogin AND NOT rolsuper AND rolname <> 'root'"
    " AND rolname !~ '^(pg|unstuck)_'"
)
_EXISTS = (psycopg.errors.DuplicateDatabase, psycopg.errors.DuplicateObject)
_RACED = (*_EXISTS, psycopg.errors.UniqueViolation, psycopg.errors.UndefinedObject)
"""Perhaps somebody else was faster with the same thing. A second look shows what is there now."""
INVALID = (
    psycopg.errors.InvalidParameterValue, psycopg.errors.FeatureNotSupported, psycopg.errors.WrongObjectType,
    psycopg.errors.ReservedName, psycopg.errors.InvalidName, psycopg.errors.UndefinedObject,
)  # fmt: skip


def answer(connection: Connection, request: DatabaseRequest, *, superuser: bool = False) -> DatabaseAnswer:
    """Do it. What PostgreSQL refuses is an answer as well; only a lost connection raises.

    ``superuser``: root is to be a true one (the operator lets it).
    """
    for tried in range(1, AGAIN + 1):
        try:
            return _answer(connection, request, superuser)
        except psycopg.Error as error:
            if tried == AGAIN or not (isinstance(error, _RACED) or "tuple concurrently" in first_line(error)):
                return _refused(error)
    raise AssertionError


def _refused(error: psycopg.Error) -> Failed:
    """In the API's words. A lost connection is no refusal: it is raised."""
    text = first_line(error)
    if isinstance(error, _EXISTS):
        return Failed("exists", text, "name")
    if isinstance(error, psycopg.errors.InvalidCatalogName):
        return Failed("not-found", text, "databases")
    if isinstance(error, INVALID):
        return Failed("invalid", text)
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
        return Failed("unready", "a transaction of another session holds what this needs until it ends.")
    if isinstance(error, psycopg.OperationalError):
        raise error
    return Failed("refused", text)


def _answer(connection: Connection, request: DatabaseRequest, superuser: bool) -> DatabaseAnswer:
    match request:
        case ListDatabases(limit, after):
            return _list_databases(connection, limit, after)
        case CreateDatabases(databases):
            return names.bad_databases(databases) or create_databases(connection, databases)
        case DropDatabase(name):
            return names.bad_database(name, "name") or _drop_database(connection, name)
        case ListUsers(limit, after):
            return _list_users(connection, limit, after)
        case GetUser(name):
            return _no_user(connection, name) or Ok(users=(_info(connection, name),))
        case CreateUsers(users):
            return create_users(connection, users)
        case ChangeUser(name):
            return _no_user(connection, name) or _change(connection, request)
        case DropUser(name):
            return _no_user(connection, name) or _drop_user(connection, name)
        case Grant(name, databases):
            bad = names.bad_names(databases)
            return bad or _no_user(connection, name) or _grant(connection, name, databases)
        case Revoke(name, database):
            return _no_user(connection, name) or _revoke(connection, name, database)
        case EnableRoot(verifier):
            return names.bad_verifier(verifier, "password") or _enable_root(connection, verifier, superuser)
        case DisableRoot():
            return _disable_root(connection)
        case Check():
            return check.check(connection, request)
        case _ as never:
            assert_never(never)


def _list_databases(connection: Connection, limit: int, after: str) -> Ok:
    found, more = _page(connection, _DATABASES, "datname", limit, after)
    return Ok(databases=tuple(DatabaseInfo(name) for name in found), more=more)


def _list_users(connection: Connection, limit: int, after: str) -> Ok:
    found, more = _page(connection, _USERS, "rolname", limit, after)
    return Ok(users=tuple(_info(connection, name) for name in found), more=more)


def _page(connection: Connection, query: str, column: str, limit: int, after: str) -> tuple[list[str], bool]:
    limit = min(max(limit, 1), PAGE)
    if "\0" in after or not _utf8(after):
        return [], False
    rows = connection.execute(
        sql.SQL('{} AND {} COLLATE "C" > %s ORDER BY {} COLLATE "C" LIMIT %s').format(
            sql.SQL(query),
            sql.Identifier(column),
            sql.Identifier(column),
        ),
        [after, limit + 1],
    ).fetchall()
    return [str(row[0]) for row in rows[:limit]], len(rows) > limit


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def create_databases(connection: Connection, wanted: tuple[WantedDatabase, ...]) -> DatabaseAnswer:
    """All or none: what was made before one failed is dropped again."""
    for database in wanted:
        if _has_database(connection, database.name):
            return Failed("exists", f"The database {database.name} exists.", "name")
    made: list[str] = []
    try:
        for database in wanted:
            connection.execute(_create(database))
            made.append(database.name)
            owners.owner_of(connection, database.name)
    except psycopg.Error:
        for name in made:
            _drop_database(connection, name)
        raise
    return Ok()


def _create(wanted: WantedDatabase) -> sql.Composed:
    parts = [sql.SQL("CREATE DATABASE {}").format(sql.Identifier(wanted.name))]
    if wanted.character_set or wanted.collate:
        parts.append(sql.SQL("TEMPLATE template0").format())
    if wanted.character_set:
        parts.append(sql.SQL("ENCODING {}").format(sql.Literal(wanted.character_set)))
    if wanted.collate:
        collate = sql.Literal(wanted.collate)
        parts.append(sql.SQL("LC_COLLATE {} LC_CTYPE {}").format(collate, collate))
    return sql.SQL(" ").join(parts)


def _has_database(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def _drop_database(connection: Connection, name: str) -> DatabaseAnswer:
    row = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", [name]).fetchone()
    if row is None:
        return Failed("not-found", f"There is no database {name}.", "name")
    connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(f"{owners.OWNER}{row[0]}")))
    return Ok()


def _info(connection: Connection, name: str) -> UserInfo:
    rows = connection.execute(
        f"{_DATABASES} AND pg_has_role(%s, datdba, 'MEMBER') ORDER BY datname COLLATE \"C\"",
        [name],
    ).fetchall()
    return UserInfo(name, tuple(str(row[0]) for row in rows))


def _no_user(connection: Connection, name: str) -> Failed | None:
    missing = Failed("not-found", f"There is no user {name!r}.", "name")
    if names.bad_user(name, "name"):
        return missing
    found = connection.execute(f"{_USERS} AND rolname = %s", [name]).fetchone()
    return missing if found is None else None


def create_users(connection: Connection, users: tuple[WantedUser, ...]) -> DatabaseAnswer:
    """All or none, in one transaction."""
    for user in users:
        if (bad := names.bad_wanted_user(user)) is not None:
            return bad
        if owners.has_role(connection, user.name):
            return Failed("exists", f"The user {user.name} exists.", "name")
    if (bad := names.twice([user.name for user in users], "name")) is not None:
        return bad
    held = _owners(connection, {name for user in users for name in user.databases})
    if isinstance(held, Failed):
        return held
    with connection.transaction():
        for user in users:
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                    sql.Identifier(user.name), sql.Literal(user.verifier)
                )
            )
            for database in user.databases:
                owners.grant(connection, user.name, database, held[database])
    return Ok()


def _owners(connection: Connection, databases: set[str]) -> dict[str, str] | Failed:
    held: dict[str, str] = {}
    for name in sorted(databases):
        owner = owners.owner_of(connection, name)
        if owner is None:
            return Failed("not-found", f"There is no database {name}.", "databases")
        held[name] = owner
    return held


def _change(connection: Connection, change: ChangeUser) -> DatabaseAnswer:
    if change.verifier is not None and (bad := names.bad_verifier(change.verifier, "password")) is not None:
        return bad
    if change.new_name is not None and (bad := names.bad_user(change.new_name, "name")) is not None:
        return bad
    with connection.transaction():
        name = sql.Identifier(change.name)
        if change.verifier is not None:
            statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
            connection.execute(statement.format(name, sql.Literal(change.verifier)))
        if change.new_name is not None and change.new_name != change.name:
            new = sql.Identifier(change.new_name)
            connection.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(name, new))
    return Ok()


def _grant(connection: Connection, name: str, databases: tuple[str, ...]) -> DatabaseAnswer:
    held = _owners(connection, set(databases))
    if isinstance(held, Failed):
        return held
    with connection.transaction():
        for database, owner in held.items():
            owners.grant(connection, name, database, owner)
    return Ok()


def _revoke(connection: Connection, name: str, database: str) -> DatabaseAnswer:
    missing = Failed("not-found", f"{name} has no access to a database {database!r}.", "database")
    if names.bad_database(database, "database") or database not in _info(connection, name).databases:
        return missing
    owner = owners.owner_of(connection, database)
    if owner is None:
        return missing
    with connection.transaction():
        owners.revoke(connection, name, database, owner)
    return Ok()


def _drop_user(connection: Connection, name: str) -> DatabaseAnswer:
    """What it owns stays, with the database's owner."""
    role = sql.Identifier(name)
    # Not NOLOGIN: cut off here, it would be no user any more to whoever asks again.
    connection.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 0").format(role))
    owners.end_sessions(connection, name)
    for (database,) in connection.execute(
        "SELECT datname FROM pg_database WHERE datdba = %s::regrole", [sql.Identifier(name).as_string()]
    ).fetchall():
        owners.owner_of(connection, str(database))
    for (database,) in connection.execute(
        "SELECT DISTINCT datname FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid"
        " WHERE refobjid = %s::regrole AND refclassid = 'pg_authid'::regclass AND datallowconn",
        [sql.Identifier(name).as_string()],
    ).fetchall():
        _hand_over(connection, name, str(database))
    connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
    connection.execute(sql.SQL("DROP ROLE {}").format(role))
    return Ok()


def _hand_over(connection: Connection, name: str, database: str) -> None:
    owner = owners.owner_of(connection, database) if database != "postgres" else None
    with beside(connection, database) as there:
        role = sql.Identifier(name)
        if owner is not None:
            there.execute(sql.SQL("REASSIGN OWNED BY {} TO {}").format(role, sql.Identifier(owner)))
        there.execute(sql.SQL("DROP OWNED BY {}").format(role))


def _enable_root(connection: Connection, verifier: str, superuser: bool) -> Ok:
    """Bounded: makes databases and roles; no replication, no files of the server, and no superuser unless
    the operator lets it be one."""
    root = sql.Identifier(ROOT)
    with connection.transaction():
        if not owners.has_role(connection, ROOT):
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(root))
        connection.execute(
            sql.SQL(
                "ALTER ROLE {} LOGIN CREATEDB CREATEROLE {} NOREPLICATION NOBYPASSRLS PASSWORD {}"
            ).format(root, sql.SQL("SUPERUSER" if superuser else "NOSUPERUSER"), sql.Literal(verifier))
        )
        connection.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE postgres TO {}").format(root))
        for (name,) in connection.execute(f"{_DATABASES} ORDER BY datname").fetchall():
            owner = owners.owner_of(connection, str(name))
            if owner is not None:
                connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(owner), root))
    return Ok()


def _disable_root(connection: Connection) -> Ok:
    """What it made stays its own, for when it comes back."""
    if owners.has_role(connection, ROOT):
        connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(sql.Identifier(ROOT)))
        owners.end_sessions(connection, ROOT)
    return Ok()
