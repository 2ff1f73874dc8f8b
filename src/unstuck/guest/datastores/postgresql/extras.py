"""Extensions by name, and users that are lent for one task."""

from __future__ import annotations

import re
from typing import Final, assert_never

import psycopg
from psycopg import sql

from unstuck.core.instance.requests import (
    DatabaseAnswer,
    DisableExtension,
    EnableExtension,
    EndLoan,
    ExtensionInfo,
    Failed,
    Lend,
    ListExtensions,
    MoreRequest,
    Ok,
    ReadLog,
)
from unstuck.guest.datastores.postgresql import names, owners
from unstuck.guest.datastores.postgresql.session import Connection, beside, first_line

EXTENSIONS: Final = frozenset({
    "bloom", "btree_gin", "btree_gist", "citext", "cube", "dict_int", "dict_xsyn", "earthdistance",
    "fuzzystrmatch", "hstore", "intarray", "isn", "lo", "ltree", "pg_stat_statements", "pg_trgm", "pgcrypto",
    "postgis", "postgis_raster", "postgis_topology", "seg", "tablefunc", "tcn", "tsm_system_rows",
    "tsm_system_time", "unaccent", "uuid-ossp", "vector",
})  # fmt: skip
"""None of them reaches files, programs or other servers. What of them is there depends on the image."""
LOAN: Final = re.compile(r"unstuck_loan_[a-z0-9]{8,40}")
LONGEST: Final = 86400.0
"""Seconds for which a user can be lent."""
_BOOKED: Final = "SELECT rolname FROM pg_roles WHERE rolname ~ '^unstuck_loan_' AND rolvaliduntil < now()"
_NEEDED: Final = (psycopg.errors.DependentObjectsStillExist,)


def answer(connection: Connection, request: MoreRequest) -> DatabaseAnswer:
    """As ``requests.answer``: what PostgreSQL refuses is an answer; only a lost connection raises."""
    try:
        return _answer(connection, request)
    except psycopg.errors.InvalidCatalogName as error:
        return Failed("not-found", first_line(error), "database")
    except _NEEDED as error:
        return Failed("refused", f"{first_line(error)}: something in the database needs it", "name")
    except psycopg.errors.LockNotAvailable:
        return Failed("unready", "a transaction of another session holds what this needs until it ends.")
    except psycopg.OperationalError as error:
        if error.sqlstate is None or "does not exist" not in first_line(error):
            raise
        return Failed("not-found", first_line(error), "database")
    except psycopg.Error as error:
        return Failed("refused", first_line(error))


def _answer(connection: Connection, request: MoreRequest) -> DatabaseAnswer:
    match request:
        case ListExtensions(database):
            return _no_database(connection, database) or _list(connection, database)
        case EnableExtension(database, name):
            return _bad(connection, database, name) or _enable(connection, database, name)
        case DisableExtension(database, name):
            return _bad(connection, database, name) or _disable(connection, database, name)
        case Lend(name, verifier, database):
            bad = _bad_loan(name) or names.bad_verifier(verifier, "password")
            return bad or _no_database(connection, database) or _lend(connection, request)
        case EndLoan(name):
            return _bad_loan(name) or _end(connection, name)
        case ReadLog():
            return Failed("invalid", "that is no question for the server")
        case _ as never:
            assert_never(never)


def _no_database(connection: Connection, database: str) -> Failed | None:
    missing = Failed("not-found", f"There is no database {database!r}.", "database")
    if names.bad_database(database, "database") or owners.owner_of(connection, database) is None:
        return missing
    return None


def _bad(connection: Connection, database: str, name: str) -> Failed | None:
    found = _no_database(connection, database)
    if found is not None:
        return found
    there = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = %s", [name]).fetchone()
    if name not in EXTENSIONS or there is None:
        return Failed(
            "not-found", f"There is no extension {name[:60]!r} in this datastore's version.", "name"
        )
    return None


def _list(connection: Connection, database: str) -> Ok:
    with beside(connection, database) as there:
        rows = there.execute(
            "SELECT name, coalesce(installed_version, ''), coalesce(default_version, '')"
            " FROM pg_available_extensions WHERE name = ANY(%s) ORDER BY name",
            [sorted(EXTENSIONS)],
        ).fetchall()
    return Ok(extensions=tuple(ExtensionInfo(str(row[0]), str(row[1]), str(row[2])) for row in rows))


def _enable(connection: Connection, database: str, name: str) -> Ok:
    """What its users may make themselves is theirs; the rest is the server's."""
    trusted = connection.execute(
        "SELECT bool_and(v.trusted) FROM pg_available_extensions e JOIN pg_available_extension_versions v"
        " ON v.name = e.name AND v.version = e.default_version WHERE e.name = %s",
        [name],
    ).fetchone()
    owner = owners.owner_of(connection, database)
    with beside(connection, database) as there:
        if trusted is not None and trusted[0] and owner is not None:
            there.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(owner)))
        statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA public CASCADE")
        there.execute(statement.format(sql.Identifier(name)))
    return Ok()


def _disable(connection: Connection, database: str, name: str) -> Ok:
    with beside(connection, database) as there:
        there.execute(sql.SQL("DROP EXTENSION IF EXISTS {}").format(sql.Identifier(name)))
    return Ok()


def _bad_loan(name: str) -> Failed | None:
    return (
        None if LOAN.fullmatch(name) else Failed("invalid", "It is not the name of a user on loan.", "name")
    )


def _lend(connection: Connection, asked: Lend) -> Ok:
    """Whoever was lent before and may not log in any more goes first."""
    for (name,) in connection.execute(_BOOKED).fetchall():
        _end(connection, str(name))
    owner = owners.owner_of(connection, asked.database)
    assert owner is not None
    role, base = sql.Identifier(asked.name), sql.Identifier(asked.database)
    seconds = sql.Literal(f"{min(max(asked.seconds, 1.0), LONGEST):.0f} seconds")
    with connection.transaction():
        until = connection.execute(sql.SQL("SELECT (now() + {}::interval)::text").format(seconds)).fetchone()
        assert until is not None
        if not owners.has_role(connection, asked.name):
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {} VALID UNTIL {}").format(
                role, sql.Literal(asked.verifier), sql.Literal(until[0])
            )
        )
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(base, role))
        if asked.write:
            owners.grant(connection, asked.name, asked.database, owner)
        elif connection.info.server_version >= 140000:
            connection.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(role))
        else:
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(owner), role))
    return Ok()


def _end(connection: Connection, name: str) -> Ok:
    if not owners.has_role(connection, name):
        return Ok()
    role = sql.Identifier(name)
    connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))
    owners.end_sessions(connection, name)
    for (database,) in connection.execute(
        "SELECT DISTINCT datname FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid OR"
        " (s.classid = 'pg_database'::regclass AND d.oid = s.objid)"
        " WHERE refobjid = %s::regrole AND refclassid = 'pg_authid'::regclass AND datallowconn",
        [role.as_string()],
    ).fetchall():
        owner = owners.owner_of(connection, str(database))
        with beside(connection, str(database)) as there:
            if owner is not None:
                there.execute(sql.SQL("REASSIGN OWNED BY {} TO {}").format(role, sql.Identifier(owner)))
            there.execute(sql.SQL("DROP OWNED BY {}").format(role))
    connection.execute(sql.SQL("DROP ROLE {}").format(role))
    return Ok()
