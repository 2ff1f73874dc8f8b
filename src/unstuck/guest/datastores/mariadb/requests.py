"""Databases, users and root of a running server, as the API asks for them.

Each request is harmless when repeated. Names go into statements through ``words.py`` only.
"""

from __future__ import annotations

import contextlib
from typing import Final, assert_never

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
from unstuck.guest.datastores.mariadb import check, names
from unstuck.guest.datastores.mariadb.accounts import LOCAL
from unstuck.guest.datastores.mariadb.names import ANYWHERE, ROOT
from unstuck.guest.datastores.mariadb.session import DatabaseError, Session
from unstuck.guest.datastores.mariadb.words import account, database_of, identifier, literal, pattern

PAGE: Final = 1000
_EXISTS: Final = (1007, 1396)
_UNKNOWN_DATABASE: Final = (1008, 1049)
INVALID: Final = (1102, 1115, 1253, 1273, 1302, 1470, 1524)
"""Names, character sets and collations that there are not, or that do not fit."""
_WAITS: Final = (1205, 1317, 1969)
_FULL: Final = (1040, 1203, 1226)
_ROOT_MAY: Final = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, CREATE TEMPORARY TABLES,"
    " LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER,"
    " DELETE HISTORY"
)
_TENANTS: Final = (
    f"Host <> {literal(LOCAL)} AND Host <> '' AND User NOT IN ({literal(ROOT)}, 'mariadb.sys', 'PUBLIC')"
)


def answer(session: Session, request: DatabaseRequest) -> DatabaseAnswer:
    """Do it. What MariaDB refuses is an answer as well; only a lost connection raises."""
    try:
        return _answer(session, request)
    except DatabaseError as error:
        return _refused(error)


def _refused(error: DatabaseError) -> Failed:
    """In the API's words."""
    if error.code in _EXISTS:
        return Failed("exists", str(error), "name")
    if error.code in _UNKNOWN_DATABASE:
        return Failed("not-found", str(error), "databases")
    if error.code in INVALID:
        return Failed("invalid", str(error))
    if error.code in _WAITS:
        return Failed("unready", "a transaction of another session holds what this needs until it ends.")
    if error.code in _FULL:
        return Failed("unready", str(error))
    return Failed("refused", str(error))


def _answer(session: Session, request: DatabaseRequest) -> DatabaseAnswer:
    match request:
        case ListDatabases(limit, after):
            return _list_databases(session, limit, after)
        case CreateDatabases(databases):
            return names.bad_databases(databases) or create_databases(session, databases)
        case DropDatabase(name):
            return names.bad_database(name, "name") or _drop_database(session, name)
        case ListUsers(limit, after):
            return _list_users(session, limit, after)
        case GetUser(name, host):
            return _no_user(session, name, host) or Ok(users=(_info(session, name, host),))
        case CreateUsers(users):
            return create_users(session, users)
        case ChangeUser(name):
            return _no_user(session, name, request.host) or _change(session, request)
        case DropUser(name, host):
            return _no_user(session, name, host) or _drop_user(session, name, host)
        case Grant(name, databases, host):
            bad = names.bad_names(databases)
            return bad or _no_user(session, name, host) or _grant(session, name, host, databases)
        case Revoke(name, database, host):
            return _no_user(session, name, host) or _revoke(session, name, host, database)
        case EnableRoot(verifier):
            return names.bad_verifier(verifier, "password") or _enable_root(session, verifier)
        case DisableRoot():
            return _disable_root(session)
        case Check():
            return check.check(session, request)
        case _ as never:
            assert_never(never)


# --- databases


def _list_databases(session: Session, limit: int, after: str) -> Ok:
    if not _plain(after):
        return Ok()
    limit = min(max(limit, 1), PAGE)
    rows = session.ask(
        "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN"
        f" ({', '.join(literal(name) for name in names.SYSTEM)})"
        f" AND BINARY SCHEMA_NAME > BINARY {literal(after)} ORDER BY BINARY SCHEMA_NAME LIMIT {limit + 1}"
    )
    found = tuple(DatabaseInfo(str(row[0])) for row in rows[:limit])
    return Ok(databases=found, more=len(rows) > limit)


def _plain(text: str) -> bool:
    """Whether a statement can hold it; else nothing is called so."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def has_database(session: Session, name: str) -> bool:
    query = f"SELECT 1 FROM information_schema.SCHEMATA WHERE BINARY SCHEMA_NAME = BINARY {literal(name)}"
    return session.one(query) is not None


def create_databases(session: Session, wanted: tuple[WantedDatabase, ...]) -> DatabaseAnswer:
    """All or none: what was made before one failed is dropped again."""
    for database in wanted:
        if has_database(session, database.name):
            return Failed("exists", f"The database {database.name} exists.", "name")
    made: list[str] = []
    try:
        for database in wanted:
            session.ask(_create(database))
            made.append(database.name)
    except DatabaseError:
        for name in made:
            _drop_database(session, name)
        raise
    return Ok()


def _create(wanted: WantedDatabase) -> str:
    parts = [f"CREATE DATABASE {identifier(wanted.name)}"]
    if wanted.character_set:
        parts.append(f"CHARACTER SET {literal(wanted.character_set)}")
    if wanted.collate:
        parts.append(f"COLLATE {literal(wanted.collate)}")
    return " ".join(parts)


def _drop_database(session: Session, name: str) -> DatabaseAnswer:
    """With who may use it: another database of that name is another one."""
    if not has_database(session, name):
        return Failed("not-found", f"There is no database {name}.", "name")
    session.ask(f"DROP DATABASE {identifier(name)}")
    kept = literal(pattern(name))
    for user, host in session.ask(f"SELECT User, Host FROM mysql.db WHERE Db = {kept} AND {_TENANTS}"):
        _take(session, str(user), str(host), name)
    return Ok()


# --- users


def _list_users(session: Session, limit: int, after: str) -> Ok:
    if not _plain(after):
        return Ok()
    limit = min(max(limit, 1), PAGE)
    name, at, host = after.rpartition("@")
    if not at:
        name, host = after, ANYWHERE if after else ""
    here = f"(BINARY {literal(name)}, BINARY {literal(host)})"
    rows = session.ask(
        f"SELECT User, Host FROM mysql.global_priv WHERE {_TENANTS}"
        f" AND (BINARY User, BINARY Host) > {here} ORDER BY BINARY User, BINARY Host LIMIT {limit + 1}"
    )
    found = tuple(_info(session, str(row[0]), str(row[1])) for row in rows[:limit])
    return Ok(users=found, more=len(rows) > limit)


def _info(session: Session, name: str, host: str) -> UserInfo:
    rows = session.ask(f"SELECT Db FROM mysql.db WHERE {_is(name, host)}")
    granted = {database_of(str(row[0])) for row in rows}
    there = session.ask("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return UserInfo(name, tuple(sorted(str(row[0]) for row in there if row[0] in granted)), host)


def _is(name: str, host: str) -> str:
    return f"BINARY User = BINARY {literal(name)} AND BINARY Host = BINARY {literal(host)}"


def has_user(session: Session, name: str, host: str) -> bool:
    return session.one(f"SELECT 1 FROM mysql.global_priv WHERE {_is(name, host)}") is not None


def _no_user(session: Session, name: str, host: str) -> Failed | None:
    shown = name if host == ANYWHERE else f"{name}@{host}"
    if names.bad_account(name, host) or not has_user(session, name, host):
        return Failed("not-found", f"There is no user {shown!r}.", "name")
    return None


def create_users(session: Session, users: tuple[WantedUser, ...]) -> DatabaseAnswer:
    """All or none: who was made before one failed is dropped again."""
    for user in users:
        if (bad := names.bad_wanted_user(user)) is not None:
            return bad
        if has_user(session, user.name, user.host or ANYWHERE):
            return Failed("exists", f"The user {user.name}@{user.host or ANYWHERE} exists.", "name")
    shown = [f"{user.name}@{user.host or ANYWHERE}" for user in users]
    bad = names.twice(shown, "name")
    bad = bad or _lacking(session, tuple(name for user in users for name in user.databases))
    if bad is not None:
        return bad
    made: list[str] = []
    try:
        for user in users:
            who = account(user.name, user.host or ANYWHERE)
            session.ask(
                f"CREATE USER {who} IDENTIFIED VIA mysql_native_password USING {literal(user.verifier)}"
            )
            made.append(who)
            for database in dict.fromkeys(user.databases):
                _give(session, who, database)
    except DatabaseError:
        for who in made:
            session.ask(f"DROP USER IF EXISTS {who}")
        raise
    return Ok()


def _lacking(session: Session, databases: tuple[str, ...]) -> Failed | None:
    for name in dict.fromkeys(databases):
        if not has_database(session, name):
            return Failed("not-found", f"There is no database {name}.", "databases")
    return None


def _give(session: Session, who: str, database: str) -> None:
    session.ask(f"GRANT ALL PRIVILEGES ON {identifier(pattern(database))}.* TO {who}")


def _take(session: Session, user: str, host: str, database: str) -> None:
    who = account(user, host)
    session.ask(f"REVOKE ALL PRIVILEGES ON {identifier(pattern(database))}.* FROM {who}")


def _change(session: Session, change: ChangeUser) -> DatabaseAnswer:
    if change.verifier is not None and (bad := names.bad_verifier(change.verifier, "password")) is not None:
        return bad
    name, host = change.new_name or change.name, change.new_host or change.host
    if (bad := names.bad_account(name, host)) is not None:
        return bad
    other = (name, host) != (change.name, change.host)
    if other and has_user(session, name, host):
        return Failed("exists", f"The user {name}@{host} exists.", "name")
    who = account(change.name, change.host)
    if change.verifier is not None:
        text = literal(change.verifier)
        session.ask(f"ALTER USER {who} IDENTIFIED VIA mysql_native_password USING {text}")
    if other:
        session.ask(f"RENAME USER {who} TO {account(name, host)}")
    return Ok()


def _grant(session: Session, name: str, host: str, databases: tuple[str, ...]) -> DatabaseAnswer:
    if (bad := _lacking(session, databases)) is not None:
        return bad
    for database in databases:
        _give(session, account(name, host), database)
    return Ok()


def _revoke(session: Session, name: str, host: str, database: str) -> DatabaseAnswer:
    if names.bad_database(database, "database") or database not in _info(session, name, host).databases:
        return Failed("not-found", f"{name} has no access to a database {database!r}.", "database")
    _take(session, name, host, database)
    _end_sessions(session, name, host)
    return Ok()


def _drop_user(session: Session, name: str, host: str) -> DatabaseAnswer:
    session.ask(f"DROP USER {account(name, host)}")
    _end_sessions(session, name, host)
    return Ok()


def _end_sessions(session: Session, name: str, host: str) -> None:
    """Those that are connected keep what they were given when they chose their database."""
    with contextlib.suppress(DatabaseError):
        session.ask(f"KILL CONNECTION USER {account(name, host)}")


# --- root


def root_enabled(session: Session) -> bool:
    row = session.one(
        "SELECT COALESCE(JSON_VALUE(Priv, '$.account_locked'), 0) FROM mysql.global_priv"
        f" WHERE {_is(ROOT, ANYWHERE)}"
    )
    return row is not None and str(row[0]) not in ("1", "true")


def _enable_root(session: Session, verifier: str) -> Ok:
    """Bounded: everything in every database but the server's own; no files, no settings, no users of the
    server, nothing of the agent's. The server takes a database's own grants before those for all of them, so
    one that allows nothing keeps them out of its own."""
    who = account(ROOT, ANYWHERE)
    session.ask(f"CREATE USER IF NOT EXISTS {who} IDENTIFIED VIA mysql_native_password ACCOUNT LOCK")
    for name in names.SYSTEM[1:]:
        session.ask(f"GRANT SHOW VIEW ON {identifier(pattern(name))}.* TO {who}")
    session.ask(f"GRANT {_ROOT_MAY} ON {identifier(ANYWHERE)}.* TO {who}")
    session.ask(f"GRANT PROCESS, SHOW DATABASES ON *.* TO {who}")
    session.ask(
        f"ALTER USER {who} IDENTIFIED VIA mysql_native_password USING {literal(verifier)} ACCOUNT UNLOCK"
    )
    return Ok()


def _disable_root(session: Session) -> Ok:
    """What it made stays its own, for when it comes back."""
    if has_user(session, ROOT, ANYWHERE):
        session.ask(f"ALTER USER {account(ROOT, ANYWHERE)} ACCOUNT LOCK")
        _end_sessions(session, ROOT, ANYWHERE)
    return Ok()
