"""``unstuck db``: managed databases from the command line, over the same API as every other client."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from unstuck.cli import dbmore, dbmove, dbretention, dbschedule, dbverify
from unstuck.cli.cloud import show_json
from unstuck.cli.dbcalls import Databases, State, databases
from unstuck.cli.dbshell import enter
from unstuck.cli.dbshown import (
    DATABASE,
    USER,
    connection,
    extension,
    first_address,
    instance_or_trash,
    login,
    until_complete,
    until_healthy,
    volume_for,
)
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

app = App(name="db", help="Managed databases: create, connect, back up, restore.")
app.command(dbschedule.app)
dbretention.add_to(app)
dbmore.add_to(app)
dbmove.add_to(app)
dbverify.add_to(app)

LEAST_MB: Final = 512

Wait = Annotated[float, Parameter(help="How long to wait, in seconds.")]


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
        shown = until_healthy(api, made["id"], seconds)
    print(connection(shown, user, database, password))
    return 0


@app.command
def restore(
    source: str,
    name: str,
    /,
    *,
    at: str | None = None,
    flavor: str | None = None,
    size: int | None = None,
    damaged: Annotated[bool, Parameter(negative="")] = False,
    seconds: Wait = 3600.0,
    state: State = None,
) -> int:
    """Create an instance from a backup, or as another one was at a moment, and wait until it is healthy.

    Users and passwords are those of the backup, or of the moment.

    Parameters
    ----------
    source
        Name or id of a backup; with --at of an instance (of a deleted one its id).
    name
        Name of the new instance.
    at
        A moment, like 2026-11-30T12:00:00Z; without a zone it is UTC.
    flavor
        Name or id of a flavor; without it the smallest that is enough.
    size
        Size of its volume in GiB; without it as large as the other instance's, or as the data needs.
    damaged
        Try it also with a backup that is known to be damaged.
    """
    with databases(state) as api:
        if at is not None:
            _from_moment(api, instance_or_trash(api, source), name, at, flavor, size, seconds)
            return 0
        backup = api.backup(source)
        wanted = {
            "volume": {"size": size or volume_for(api, backup)},
            "datastore": {
                "type": backup["datastore"]["type"],
                "version": backup["datastore"]["version_id"],
            },
            "restorePoint": {"backupRef": backup["id"]} | ({"accept_damage": True} if damaged else {}),
        }
        _made(api, wanted, name, flavor, seconds)
    return 0


@app.command
def fork(
    source: str,
    name: str,
    /,
    *,
    at: str | None = None,
    flavor: str | None = None,
    size: int | None = None,
    seconds: Wait = 3600.0,
    state: State = None,
) -> int:
    """Create an instance with the data of another one, as of its latest restorable moment; that one goes on.

    Parameters
    ----------
    source
        Name or id of an instance.
    name
        Name of the new instance.
    at
        Another moment, like 2026-11-30T12:00:00Z.
    flavor
        Name or id of a flavor; without it the smallest that is enough.
    size
        Size of its volume in GiB; without it as large as the other instance's.
    """
    with databases(state) as api:
        found = instance_or_trash(api, source)
        moment = at or extension(found).get("latest_restorable_time")
        if moment is None:
            raise CliError(
                f"No moment of {source} can be restored yet: it needs a complete backup and the log after it."
            )
        _from_moment(api, found, name, moment, flavor, size, seconds)
    return 0


def _from_moment(
    api: Databases, source: dict[str, Any], name: str, at: str, flavor: str | None, size: int | None,
    seconds: float,
) -> None:  # fmt: skip
    wanted = {
        "volume": {"size": size or int(source["volume"]["size"])},
        "restorePoint": {"instance": source["id"], "time": at},
    }
    _made(api, wanted, name, flavor, seconds)


def _made(
    api: Databases, wanted: dict[str, Any], name: str, flavor: str | None, seconds: float
) -> None:  # fmt: skip
    """Ask for it, wait, and print the address."""
    asked = {"name": name, "flavorRef": api.flavor(flavor, LEAST_MB), **wanted}
    made = api.ask("POST", "/instances", json={"instance": asked})["instance"]
    shown = until_healthy(api, made["id"], seconds)
    print(connection(shown, *login(api, shown, None, None)))


@app.command(name="list")
def list_(
    *,
    deleted: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> None:
    """List instances, and the backups that are there.

    Parameters
    ----------
    deleted
        List what is in the trash instead, and until when it can be brought back.
    output
        text or json.
    """
    with databases(state) as api:
        if deleted:
            _trash(api.all("instances", deleted="true"), output)
            return
        instances, backups = api.all("instances"), api.all("backups")
    if output == "json":
        show_json({"instances": instances, "backups": backups})
        return
    for item in instances:
        words = f"{item['name']}  {item['status']}  {item['operating_status']}  {first_address(item) or '-'}"
        print(plain(f"{item['id']}  {words}"))
    for item in backups:
        print(plain(f"{item['id']}  backup {item['name']}  {item['status']}  of {item['instance_id']}"))
    if not instances and not backups:
        print("There are no databases; `unstuck db create NAME` makes one.", file=sys.stderr)


def _trash(instances: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        show_json({"instances": instances})
        return
    for item in instances:
        print(plain(f"{item['id']}  {item['name']}  until {extension(item).get('trash_until') or '-'} UTC"))
    if not instances:
        print("The trash is empty.", file=sys.stderr)


@app.command
def url(name: str, /, *, user: str | None = None, database: str | None = None, state: State = None) -> int:
    """Print the address to connect to an instance. The password is not in it: nobody keeps it.

    Parameters
    ----------
    name
        Name or id of the instance.
    user
        A user of it; without one `app`, or else one that it has.
    database
        A database of it; without one `app`, or else one of the user's.
    """
    with databases(state) as api:
        shown = api.instance(name)
        print(connection(shown, *login(api, shown, user, database)))
    return 0


@app.command
def shell(
    name: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    user: str | None = None,
    database: str | None = None,
    new_password: bool = False,
    state: State = None,
) -> int:
    """Connect to an instance with its datastore's own client: psql, or mariadb.

    The password comes from PGPASSWORD or MYSQL_PWD, or is asked for.

    Parameters
    ----------
    name
        Name or id of the instance.
    arguments
        What the client is given besides, as in `unstuck db shell shop -- -c 'select 1'`.
    user
        A user of it; without one `app`, or else one that it has.
    database
        A database of it; without one `app`, or else one of the user's.
    new_password
        Set a new password for the user, show it, and connect with it.
    """
    return enter(name, arguments, user, database, new_password, state)


@app.command
def psql(
    name: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    user: str | None = None,
    database: str | None = None,
    new_password: bool = False,
    state: State = None,
) -> int:
    """The same as `shell`, for instances of PostgreSQL only.

    Parameters
    ----------
    name
        Name or id of the instance.
    arguments
        What psql is given besides, as in `unstuck db psql shop -- -c 'select 1'`.
    user
        A user of it; without one `app`, or else one that it has.
    database
        A database of it; without one `app`, or else one of the user's.
    new_password
        Set a new password for the user, show it, and connect with it.
    """
    return enter(name, arguments, user, database, new_password, state, "postgresql")


@app.command
def backup(
    name: str,
    /,
    *,
    call: str | None = None,
    incremental: Annotated[bool, Parameter(negative="")] = False,
    parent: str | None = None,
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
    incremental
        Only what has changed since its newest backup; a full one, where there is none.
    parent
        Only what has changed since this backup (name or id).
    """
    with databases(state) as api:
        instance = api.instance(name)
        title = call or f"{instance['name']}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        wanted = {"name": title, "instance": instance["id"], "incremental": int(incremental)}
        if parent is not None:
            wanted["parent_id"] = api.backup(parent)["id"]
        made = api.ask("POST", "/backups", json={"backup": wanted})["backup"]
        seen = until_complete(api, made, seconds)
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
        kept = [item for item in api.all("instances", deleted="true") if item["id"] == found["id"]]
    words = f"{plain(found['name'])} is deleted."
    for until in (extension(item).get("trash_until") for item in kept):
        if until:
            words += f" Until {until} UTC `unstuck db undelete {found['id']}` brings it back."
    print(words, file=sys.stderr)
    return 0


@app.command
def undelete(name: str, /, *, seconds: Wait = 900.0, state: State = None) -> int:
    """Bring a deleted instance back from the trash, with its data, and wait until it is healthy.

    Parameters
    ----------
    name
        Name or id of the instance; `unstuck db list --deleted` shows what is in the trash.
    """
    with databases(state) as api:
        named = [item for item in api.all("instances", deleted="true") if name in (item["id"], item["name"])]
        if len(named) > 1:
            ids = ", ".join(item["id"] for item in named)
            raise CliError(f"Several instances in the trash are called {name}; say which by its id: {ids}.")
        if not named:
            raise CliError(f"There is no instance {name} in the trash; `unstuck db list --deleted` lists it.")
        api.ask("POST", f"/instances/{named[0]['id']}/action", json={"undelete": {}})
        shown = until_healthy(api, named[0]["id"], seconds)
        who = login(api, shown, None, None)
    print(connection(shown, *who))
    return 0


@app.command
def protect(
    name: str, /, *, off: Annotated[bool, Parameter(negative="")] = False, state: State = None
) -> int:
    """Protect an instance from being deleted.

    Parameters
    ----------
    name
        Name or id of the instance.
    off
        Lift it.
    """
    with databases(state) as api:
        found = api.instance(name)
        api.ask("POST", f"/instances/{found['id']}/action", json={"protect": {"protected": not off}})
    words = "can be deleted again" if off else "is protected from being deleted"
    print(f"{plain(found['name'])} {words}.", file=sys.stderr)
    return 0


@app.command
def cancel(backup: str, /, *, state: State = None) -> int:
    """End a backup that has not ended; its instance is free at once.

    Parameters
    ----------
    backup
        Name or id of the backup.
    """
    with databases(state) as api:
        found = api.backup(backup)
        api.ask("POST", f"/backups/{found['id']}/action", json={"cancel": {}})
    print(f"The backup {plain(found['name'])} is cancelled.", file=sys.stderr)
    return 0


@app.command
def retry(backup: str, /, *, seconds: Wait = 3600.0, state: State = None) -> int:
    """Make a backup that failed once more, and wait until it is complete and verified. Prints its id.

    Parameters
    ----------
    backup
        Name or id of the backup that failed.
    """
    with databases(state) as api:
        found = api.backup(backup)
        made = api.ask("POST", f"/backups/{found['id']}/action", json={"retry": {}})["backup"]
        seen = until_complete(api, made, seconds)
    print(seen["id"])
    return 0
