"""``unstuck db``: managed databases from the command line, over the same API as every other client."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from unstuck.cli.cloud import connect, show_json, state_of
from unstuck.cli.clouds import NAMES
from unstuck.cli.dbcalls import Databases, wait
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

app = App(name="db", help="Managed databases: create, connect, back up, restore.")

PORT: Final = 5432
LEAST_MB: Final = 512
USER: Final = "app"
DATABASE: Final = "app"

State = Annotated[Path | None, Parameter(help="The state folder.")]
Wait = Annotated[float, Parameter(help="How long to wait, in seconds.")]


@contextmanager
def databases(state: Path | None) -> Iterator[Databases]:
    """The database API as the user of ``OS_CLOUD``, where that is one of this cloud's entries; else demo."""
    user, _ = NAMES.get(os.environ.get("OS_CLOUD", ""), NAMES["unstuck"])
    with connect(state_of(state), user) as cloud:
        yield Databases(cloud)


@app.command
def create(
    name: str,
    /,
    *,
    flavor: str | None = None,
    size: int = 1,
    datastore: str | None = None,
    version: str | None = None,
    user: str = USER,
    database: str = DATABASE,
    allow: tuple[str, ...] = (),
    seconds: Wait = 900.0,
    state: State = None,
) -> int:
    """Create a database instance, wait until it is healthy, and print the address to connect to.

    The password is generated, stands in the address, and is shown this once.

    Parameters
    ----------
    name
        Name of the instance.
    flavor
        Name or id of a flavor; without it the smallest that is enough.
    size
        Size of its volume in GiB.
    datastore
        Name of a datastore; without it the default.
    version
        Name or id of the datastore's version; without it the default.
    user
        The user to make in it.
    database
        The database to make in it.
    allow
        A network that may connect, like 10.0.0.0/8; may be repeated. Without one: the instance's own network
        and this host.
    """
    password = secrets.token_urlsafe(18)
    with databases(state) as api:
        wanted: dict[str, Any] = {
            "name": name,
            "flavorRef": api.flavor(flavor, LEAST_MB),
            "volume": {"size": size},
            "databases": [{"name": database}],
            "users": [{"name": user, "password": password, "databases": [{"name": database}]}],
        }
        stores = {"type": datastore, "version": version}
        if datastore or version:
            wanted["datastore"] = {key: value for key, value in stores.items() if value}
        if allow:
            wanted["access"] = {"allowed_cidrs": list(allow)}
        made = api.ask("POST", "/instances", json={"instance": wanted})["instance"]
        shown = _until_healthy(api, made["id"], seconds)
    print(_url(shown, user, database, password))
    return 0


@app.command
def restore(
    backup: str,
    name: str,
    /,
    *,
    flavor: str | None = None,
    size: int | None = None,
    seconds: Wait = 3600.0,
    state: State = None,
) -> int:
    """Create an instance from a backup, and wait until it is healthy. Users and passwords are the backup's.

    Parameters
    ----------
    backup
        Name or id of a backup.
    name
        Name of the new instance.
    flavor
        Name or id of a flavor; without it the smallest that is enough.
    size
        Size of its volume in GiB; without it as large as the backed up instance's, or as the data needs.
    """
    with databases(state) as api:
        source = api.backup(backup)
        wanted = {
            "name": name,
            "flavorRef": api.flavor(flavor, LEAST_MB),
            "volume": {"size": size or _volume_for(api, source)},
            "datastore": {
                "type": source["datastore"]["type"],
                "version": source["datastore"]["version_id"],
            },
            "restorePoint": {"backupRef": source["id"]},
        }
        made = api.ask("POST", "/instances", json={"instance": wanted})["instance"]
        shown = _until_healthy(api, made["id"], seconds)
    print(_url(shown, USER, DATABASE))
    return 0


@app.command(name="list")
def list_(
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> None:
    """List instances, and the backups that are there.

    Parameters
    ----------
    output
        text or json.
    """
    with databases(state) as api:
        instances, backups = api.all("instances"), api.all("backups")
    if output == "json":
        show_json({"instances": instances, "backups": backups})
        return
    for item in instances:
        words = f"{item['name']}  {item['status']}  {item['operating_status']}  {_address(item) or '-'}"
        print(plain(f"{item['id']}  {words}"))
    for item in backups:
        print(plain(f"{item['id']}  backup {item['name']}  {item['status']}  of {item['instance_id']}"))
    if not instances and not backups:
        print("There are no databases; `unstuck db create NAME` makes one.", file=sys.stderr)


@app.command
def url(name: str, /, *, user: str = USER, database: str = DATABASE, state: State = None) -> int:
    """Print the address to connect to an instance. The password is not in it: nobody keeps it.

    Parameters
    ----------
    name
        Name or id of the instance.
    user
        A user of it.
    database
        A database of it.
    """
    with databases(state) as api:
        print(_url(api.instance(name), user, database))
    return 0


@app.command
def psql(
    name: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    user: str = USER,
    database: str = DATABASE,
    new_password: bool = False,
    state: State = None,
) -> int:
    """Connect to an instance with psql. The password comes from PGPASSWORD, or is asked for.

    Parameters
    ----------
    name
        Name or id of the instance.
    arguments
        What psql is given besides, as in `unstuck db psql shop -- -c 'select 1'`.
    user
        A user of it.
    database
        A database of it.
    new_password
        Set a new password for the user, show it, and connect with it.
    """
    program = shutil.which("psql")
    if program is None:
        raise CliError("psql is not installed; Debian has it in the package postgresql-client.")
    with databases(state) as api:
        shown = api.instance(name)
        target = _url(shown, user, database)
        password = os.environ.get("PGPASSWORD", "")
        if new_password:
            password = secrets.token_urlsafe(18)
            change = {"user": {"password": password}}
            api.ask("PUT", f"/instances/{shown['id']}/users/{quote(user, safe='')}", json=change)
            print(f"The new password of {plain(user)}: {password}", file=sys.stderr)
    if not password:
        password = getpass.getpass(f"Password of {user}: ")
    os.execve(program, [program, target, *arguments], {**os.environ, "PGPASSWORD": password})  # noqa: S606


@app.command
def backup(
    name: str,
    /,
    *,
    call: str | None = None,
    seconds: Wait = 3600.0,
    state: State = None,
) -> int:
    """Back an instance up, and wait until the backup is complete and verified. Prints its id.

    Parameters
    ----------
    name
        Name or id of the instance.
    call
        What to call the backup; without it the instance's name and the time.
    """
    with databases(state) as api:
        instance = api.instance(name)
        title = call or f"{instance['name']}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        made = api.ask("POST", "/backups", json={"backup": {"name": title, "instance": instance["id"]}})[
            "backup"
        ]
        seen = wait(
            lambda: dict(api.get(f"/backups/{made['id']}")["backup"]),
            lambda item: item["status"] in ("COMPLETED", "FAILED"),
            _backup_words,
            seconds,
            f"The backup {title}",
        )
    if seen["status"] != "COMPLETED":
        raise CliError(
            f"The backup {title} failed: {_extension(seen).get('reason') or 'no reason was given'}."
        )
    print(seen["id"])
    return 0


@app.command
def delete(name: str, /, *, state: State = None) -> int:
    """Delete an instance. It stays in the trash for a while, and its backups stay.

    Parameters
    ----------
    name
        Name or id of the instance.
    """
    with databases(state) as api:
        found = api.instance(name)
        api.ask("DELETE", f"/instances/{found['id']}")
    print(f"{plain(found['name'])} is deleted.", file=sys.stderr)
    return 0


def _until_healthy(api: Databases, instance_id: str, seconds: float) -> dict[str, Any]:
    seen = wait(
        lambda: dict(api.get(f"/instances/{instance_id}")["instance"]),
        lambda item: item["status"] in ("ERROR", "SHUTDOWN") or _healthy(item),
        _instance_words,
        seconds,
        f"The instance {instance_id}",
    )
    if not _healthy(seen):
        why = seen.get("fault", {}).get("message") or _extension(seen).get("reason") or "no reason was given"
        raise CliError(f"The instance {seen['name']} ({instance_id}) is in {seen['status']}: {why}")
    return seen


def _healthy(item: dict[str, Any]) -> bool:
    return item["status"] in ("ACTIVE", "BACKUP") and item["operating_status"] == "HEALTHY"


def _extension(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = item.get("unstuck") or {}
    return found


def _instance_words(item: dict[str, Any]) -> str:
    told = _extension(item)
    words = [item["name"], item["status"], item["operating_status"], told.get("reason") or ""]
    progress = told.get("progress") or {}
    if progress.get("total"):
        words.append(f"{_size(progress['done'])} of {_size(progress['total'])}")
    return "  ".join(word for word in words if word)


def _backup_words(item: dict[str, Any]) -> str:
    told = _extension(item)
    words = [item["name"], item["status"], told.get("phase") or ""]
    if told.get("bytes"):
        words.append(_size(told["bytes"]))
    if (told.get("attempt") or 1) > 1:
        words.append(f"attempt {told['attempt']}")
    words.append(told.get("reason") or "")
    return "  ".join(word for word in words if word)


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _volume_for(api: Databases, source: dict[str, Any]) -> int:
    """GiB: as the instance that was backed up has, if it is still there; else what the data needs."""
    needed = int(float(source.get("size") or 0) * 1.25) + 1
    for item in api.all("instances"):
        if item["id"] == source["instance_id"]:
            return max(int(item["volume"]["size"]), needed)
    return needed


def _address(item: dict[str, Any]) -> str | None:
    for address in item.get("addresses") or ():
        return str(address["address"])
    return None


def _url(item: dict[str, Any], user: str, database: str, password: str | None = None) -> str:
    """A connection address; with TLS, as every instance has it."""
    address = _address(item)
    if address is None:
        raise CliError(f"The instance {item['name']} has no address yet (it is in {item['status']}).")
    secret = "" if password is None else f":{quote(password, safe='')}"
    who = f"{quote(user, safe='')}{secret}"
    return f"postgresql://{who}@{address}:{PORT}/{quote(database, safe='')}?sslmode=require"
