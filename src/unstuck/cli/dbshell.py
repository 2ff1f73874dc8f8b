"""Connecting to an instance with its datastore's own client, in this process's place."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from unstuck.cli.dbcalls import databases
from unstuck.cli.dbshown import connection, extension, first_address, login
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain


class Client(msgspec.Struct, frozen=True):
    """A datastore's client: its program, Debian's package, the variable that it takes a password from, and
    what it is told to reach a user's database of an instance."""

    program: str
    package: str
    variable: str
    words: Callable[[dict[str, Any], str, str], list[str]]


def _mariadb(item: dict[str, Any], user: str, database: str) -> list[str]:
    address, port = first_address(item), extension(item)["port"]
    if address is None:
        raise CliError(f"The instance {item['name']} has no address yet (it is in {item['status']}).")
    words = ["--no-defaults", f"--host={address}", f"--port={port}", f"--user={user}", "--ssl"]
    return [*words, "--skip-ssl-verify-server-cert", database]


CLIENTS: Final = {
    "postgresql": Client(
        "psql", "postgresql-client", "PGPASSWORD",
        lambda item, user, database: [connection(item, user, database)],
    ),
    "mariadb": Client("mariadb", "mariadb-client-core", "MYSQL_PWD", _mariadb),
}  # fmt: skip


def enter(
    name: str, arguments: Sequence[str], user: str | None, database: str | None, new_password: bool,
    state: Path | None, only: str | None = None,
) -> int:  # fmt: skip
    """Become the client; ``only``: for instances of this datastore."""
    with databases(state) as api:
        shown = api.instance(name)
        manager = extension(shown).get("manager") or ""
        client = CLIENTS.get(manager)
        if client is None or (only is not None and manager != only):
            raise CliError(
                f"The instance {name} is one of {manager}; `unstuck db shell {name}` connects to it."
            )
        program = shutil.which(client.program)
        if program is None:
            raise CliError(
                f"{client.program} is not installed; Debian has it in the package {client.package}."
            )
        user, database = login(api, shown, user, database)
        words = client.words(shown, user, database)
        password = os.environ.get(client.variable, "")
        if new_password:
            password = secrets.token_urlsafe(18)
            change = {"user": {"password": password}}
            api.ask("PUT", f"/instances/{shown['id']}/users/{quote(user, safe='')}", json=change)
            print(f"The new password of {plain(user)}: {password}", file=sys.stderr)
    if not password:
        if not sys.stdin.isatty():
            raise CliError(
                f"No terminal to ask for the password of {user}: "
                f"set {client.variable}, or say --new-password."
            )
        password = getpass.getpass(f"Password of {user}: ")
    environment = {**os.environ, client.variable: password}
    os.execve(program, [program, *words, *arguments], environment)  # noqa: S606
