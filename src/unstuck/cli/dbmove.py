"""``unstuck db export`` and ``import``: with PostgreSQL's own tools, as a user that is lent for just that.

The user cannot log in any more when its time is over, whatever becomes of this process; an import is one
transaction. So one that is cut off leaves nothing behind, and can be repeated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from cyclopts import App, Parameter

from unstuck.cli.dbcalls import Databases, State, databases
from unstuck.cli.dbshown import DATABASE, connection
from unstuck.cli.errors import CliError

MAGIC: Final = b"PGDMP"
"""What PostgreSQL's own format of dumps begins with."""
Seconds = Annotated[int, Parameter(help="How long it may take, in seconds; a day at most.")]


def add_to(parent: App) -> None:
    """Make these commands of ``unstuck db``."""
    parent.command(export)
    parent.command(import_, name="import")


def export(
    name: str, /, *, database: str = DATABASE, sql: Annotated[bool, Parameter(negative="")] = False,
    seconds: Seconds = 86400, state: State = None,
) -> int:  # fmt: skip
    """Write a dump of one database to standard output, as of one moment.

    Parameters
    ----------
    name
        Name or id of the instance.
    database
        Name of the database.
    sql
        As SQL statements; without it in PostgreSQL's own format, compressed.
    """
    if not sql and sys.stdout.isatty():
        raise CliError("Send the dump to a file (> FILE), or say --sql.")
    program = _program("pg_dump")
    with databases(state) as api, _lent(api, name, database, seconds, write=False) as (target, password):
        form = "plain" if sql else "custom"
        words = [program, f"--format={form}", "--no-owner", "--no-privileges", f"--dbname={target}"]
        sys.stdout.flush()
        code = subprocess.run(words, env=_with(password), stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        raise CliError(f"pg_dump ended with {code}: the dump is not whole.")
    return 0


def import_(
    name: str, file: Path | None = None, /, *, source: Annotated[str | None, Parameter(name="--from")] = None,
    database: str = DATABASE, seconds: Seconds = 86400, state: State = None,
) -> int:  # fmt: skip
    """Bring a dump, or all of a running PostgreSQL's database, into a database. All of it, or nothing.

    Parameters
    ----------
    name
        Name or id of the instance.
    file
        A dump, in PostgreSQL's own format or as SQL statements.
    source
        Instead of a file: the address of a database, like postgresql://user@host/name; its password comes
        from the address, or from PGPASSWORD.
    database
        Name of the database; made, where it is not there.
    """
    if (file is None) == (source is None):
        raise CliError("Name either a file or an address (--from).")
    if file is not None and not file.is_file():
        raise CliError(f"There is no file {file}.")
    tools = [_program("pg_dump"), _program("pg_restore"), _program("psql")]
    with databases(state) as api:
        _ensure(api, name, database)
        with _lent(api, name, database, seconds, write=True) as (target, password):
            if file is not None:
                _from_file(file, tools, target, password)
            else:
                assert source is not None
                _from_server(source, tools, target, password)
    return 0


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise CliError(f"{name} is not installed; Debian has it in the package postgresql-client.")
    return found


def _with(password: str) -> dict[str, str]:
    return {**os.environ, "PGPASSWORD": password}


@contextmanager
def _lent(
    api: Databases, name: str, database: str, seconds: int, *, write: bool
) -> Iterator[tuple[str, str]]:
    """The address and password of a user for this alone."""
    shown = api.instance(name)
    path = f"/instances/{shown['id']}/loans"
    asked = {"database": database, "write": write, "seconds": min(max(seconds, 1), 86400)}
    loan: dict[str, Any] = api.ask("POST", path, json={"loan": asked})["loan"]
    try:
        yield connection(shown, loan["user"], database), loan["password"]
    finally:
        api.ask("DELETE", f"{path}/{loan['user']}")


def _ensure(api: Databases, name: str, database: str) -> None:
    shown = api.instance(name)
    there = api.get(f"/instances/{shown['id']}/databases")["databases"]
    if database not in [item["name"] for item in there]:
        api.ask("POST", f"/instances/{shown['id']}/databases", json={"databases": [{"name": database}]})


def _restore(tools: Sequence[str], target: str) -> list[str]:
    return [
        tools[1], "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction",
        f"--dbname={target}",
    ]  # fmt: skip


def _from_file(file: Path, tools: Sequence[str], target: str, password: str) -> None:
    with file.open("rb", buffering=0) as dump:
        own = dump.read(len(MAGIC)) == MAGIC
        dump.seek(0)
        words = _restore(tools, target) if own else [
            tools[2], "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1",
            "--output=/dev/null", f"--dbname={target}",
        ]  # fmt: skip
        _finish(subprocess.run(words, env=_with(password), stdin=dump, check=False).returncode)


def _from_server(source: str, tools: Sequence[str], target: str, password: str) -> None:
    address, theirs = _without_password(source)
    dump = [tools[0], "--format=custom", "--no-owner", "--no-privileges", f"--dbname={address}"]
    with subprocess.Popen(
        dump, env=_with(theirs), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        code = subprocess.run(
            _restore(tools, target), env=_with(password), stdin=reading.stdout, check=False
        ).returncode
        reading.stdout.close()
    if reading.returncode != 0:
        raise CliError(f"The source could not be dumped: pg_dump ended with {reading.returncode}.")
    _finish(code)


def _without_password(source: str) -> tuple[str, str]:
    """An address for a command line, where everybody may see it, and the password apart."""
    parts = urlsplit(source)
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname:
        raise CliError("The address has the form postgresql://user@host/database.")
    secret = unquote(parts.password) if parts.password else os.environ.get("PGPASSWORD", "")
    who, _, where = parts.netloc.rpartition("@")
    user = who.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{where}" if user else where)), secret


def _finish(code: int) -> None:
    if code != 0:
        raise CliError("The dump could not be brought in, for the reason above; nothing of it was kept.")
