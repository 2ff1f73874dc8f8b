"""``unstuck db logs``, ``extension …`` and ``upgrade``."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from unstuck.cli.cloud import show_json
from unstuck.cli.dbcalls import Databases, State, databases, wait
from unstuck.cli.dbshown import extension as told_of
from unstuck.cli.dbshown import healthy, instance_words
from unstuck.cli.dbverify import verified
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

app = App(name="extension", help="Extensions of an instance's databases, by name.")

PART: Final = 64 << 10
LOOK: Final = 1.0
"""Seconds between two looks at a log that is followed."""
Wait = Annotated[float, Parameter(help="How long to wait, in seconds.")]


def add_to(parent: App) -> None:
    """Make these commands of ``unstuck db``."""
    parent.command(logs)
    parent.command(upgrade)
    parent.command(app)


def logs(
    name: str, /, *, follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    size: int = 16384, state: State = None,
) -> int:  # fmt: skip
    """Print the last lines of an instance's database server's log.

    Parameters
    ----------
    name
        Name or id of the instance.
    follow
        Go on with what is added, until interrupted.
    size
        So many bytes at most, to begin with: 64 KiB are the most there can be.
    """
    with databases(state) as api:
        path = f"/instances/{api.instance(name)['id']}/log/server"
        part = api.get(path, params={"bytes": str(min(max(size, 1), PART))})["log"]
        _print(part["text"])
        while follow:
            time.sleep(LOOK)
            after = 0 if part["after"] > part["size"] else part["after"]
            part = api.get(path, params={"after": str(after)})["log"]
            _print(part["text"])
    return 0


def _print(text: str) -> None:
    """Lines of a guest, which is its tenant: nothing in them drives the terminal."""
    for line in text.splitlines():
        print(plain(line))
    sys.stdout.flush()


@app.command(name="list")
def list_extensions(
    name: str, /, *, database: str = "app",
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> int:  # fmt: skip
    """List the extensions that a database may have, and the version of those that it has.

    Parameters
    ----------
    name
        Name or id of the instance.
    database
        Name of the database.
    output
        text or json.
    """
    with databases(state) as api:
        found = api.get(_path(api, name, database))["extensions"]
    if output == "json":
        show_json({"extensions": found})
        return 0
    for item in found:
        print(plain(f"{item['name']}  {item['version'] or '-'}"))
    return 0


@app.command
def enable(name: str, extension: str, /, *, database: str = "app", state: State = None) -> int:
    """Enable an extension in a database.

    Parameters
    ----------
    name
        Name or id of the instance.
    extension
        Name of the extension.
    database
        Name of the database.
    """
    with databases(state) as api:
        api.ask("POST", _path(api, name, database), json={"extension": {"name": extension}})
    return 0


@app.command
def disable(name: str, extension: str, /, *, database: str = "app", state: State = None) -> int:
    """Disable an extension of a database; refused while anything in it needs it.

    Parameters
    ----------
    name
        Name or id of the instance.
    extension
        Name of the extension.
    database
        Name of the database.
    """
    with databases(state) as api:
        api.ask("DELETE", f"{_path(api, name, database)}/{quote(extension, safe='')}")
    return 0


def _path(api: Databases, name: str, database: str) -> str:
    return f"/instances/{api.instance(name)['id']}/databases/{quote(database, safe='')}/extensions"


def upgrade(
    name: str, version: str, /, *, rehearse: Annotated[bool, Parameter(negative="")] = False,
    seconds: Wait = 3600.0, state: State = None,
) -> int:  # fmt: skip
    """Give an instance another version of its datastore, and wait until it is healthy with it.

    If it does not come up with that, it goes back to its present version.

    Parameters
    ----------
    name
        Name or id of the instance.
    version
        Name, number or id of the version.
    rehearse
        Only try it: have its newest backup restored into an instance of that version that is thrown away,
        and all of it read; say how long that took.
    """
    with databases(state) as api:
        found = api.instance(name)
        if rehearse:
            took = _rehearse(api, found, version, seconds)
            print(f"A copy of {plain(found['name'])} came up with version {plain(version)} in {took:.0f} s.")
            return 0
        before = found["datastore"]["version"]
        api.ask("PATCH", f"/instances/{found['id']}", json={"instance": {"datastore_version": version}})
        seen = wait(
            lambda: dict(api.get(f"/instances/{found['id']}")["instance"]),
            lambda item: told_of(item).get("pending") is None and (
                item["status"] in ("ERROR", "SHUTDOWN") or healthy(item)
            ),
            instance_words,
            seconds,
            f"The upgrade of {found['name']}",
        )  # fmt: skip
    if seen["datastore"]["version"] == before:
        raise CliError(
            f"The upgrade failed, and {found['name']} has version {before} as before; "
            f"`unstuck explain instance {found['id']}` says why."
        )
    print(f"{plain(found['name'])} has version {plain(seen['datastore']['version'])}.", file=sys.stderr)
    return 0


def _rehearse(api: Databases, found: dict[str, Any], version: str, seconds: float) -> float:
    """Seconds until a copy could be used. Raises :class:`CliError`. The cloud makes it, reads it and throws
    it away, also when we are ended meanwhile."""
    complete = [
        item
        for item in api.all("backups", instance_id=found["id"])
        if item["status"] in ("COMPLETED", "RESTORED")
    ]
    if not complete:
        raise CliError(
            f"{found['name']} has no complete backup to rehearse with: unstuck db backup makes one."
        )
    source = max(complete, key=lambda item: str(item["created"]))
    seen = verified(api, source["id"], {"version": version}, seconds)
    if seen["result"] != "sound":
        raise CliError(
            f"A copy of {found['name']} did not come up with version {version}: {seen['reason']}. "
            f"{found['name']} is as it was."
        )
    return float(seen["seconds"] or 0.0)
