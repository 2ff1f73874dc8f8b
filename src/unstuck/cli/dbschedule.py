"""``unstuck db schedule``: when an instance is backed up by itself."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from unstuck.cli.cloud import show_json
from unstuck.cli.dbcalls import Databases, State, databases
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

app = App(name="schedule", help="When an instance is backed up by itself.")


def _find(api: Databases, name: str) -> dict[str, Any]:
    found = [item for item in api.all("backup_schedules") if name in (item["id"], item["name"])]
    if len(found) > 1:
        ids = ", ".join(item["id"] for item in found)
        raise CliError(f"Several schedules are called {name}; say which by its id: {ids}.")
    if not found:
        raise CliError(f"There is no schedule {name}; `unstuck db schedule list` shows what is there.")
    return found[0]


@app.command
def create(
    instance: str,
    cron: str,
    /,
    *,
    timezone: str = "UTC",
    call: str = "backup",
    missed: Literal["once", "skip"] = "once",
    full_every: int = 1,
    verify: Annotated[bool, Parameter(negative="")] = False,
    query: str = "",
    state: State = None,
) -> int:
    """Back an instance up whenever a cron expression says so. Prints the schedule's id.

    Parameters
    ----------
    instance
        Name or id of the instance.
    cron
        Minute, hour, day of month, month and day of week, as in '30 2 * * *'.
    timezone
        Where these are: a name like Europe/Berlin.
    call
        What to call the schedule; its backups' names begin with it.
    missed
        What becomes of times at which nobody was there to see to it: once (one backup, as soon as possible)
        or skip.
    full_every
        Every so many-th backup is a full one, and those in between hold what has changed; 1: all are full.
    verify
        Do not back it up: verify its last backup, as `unstuck db verify` does.
    query
        With --verify: one statement whose first value has to be true.
    """
    with databases(state) as api:
        wanted = {
            "instance_id": api.instance(instance)["id"], "cron": cron, "timezone": timezone, "name": call,
            "missed": missed, "full_every": full_every,
            "kind": "verify" if verify else "backup", "query": query,
        }  # fmt: skip
        made = api.ask("POST", "/backup_schedules", json={"backup_schedule": wanted})["backup_schedule"]
    print(made["id"])
    print(f"The next backups: {made['next_run']} and {made['following_run']} UTC.", file=sys.stderr)
    return 0


@app.command(name="list")
def list_(
    *,
    instance: str | None = None,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> None:
    """List schedules with their next and last run.

    Parameters
    ----------
    instance
        Name or id of an instance: only its schedules.
    output
        text or json.
    """
    with databases(state) as api:
        query = {} if instance is None else {"instance_id": str(api.instance(instance)["id"])}
        found = api.all("backup_schedules", **query)
    if output == "json":
        show_json({"backup_schedules": found})
        return
    for item in found:
        counts = ", ".join(f"{count} {word}" for word, count in item["counts"].items())
        when = "paused" if item["paused"] else f"next {item['next_run'] or 'never'}"
        words = f"{item['name']}  {item['cron']} {item['timezone']}  {when}  last {item['last_run'] or '-'}"
        print(plain(f"{item['id']}  {words}  of {item['instance_id']}  ({counts})"))
    if not found:
        print("There are no schedules; `unstuck db schedule create` makes one.", file=sys.stderr)


@app.command
def show(
    name: str,
    /,
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> None:
    """Show what became of a schedule's last runs.

    Parameters
    ----------
    name
        Name or id of the schedule.
    output
        text or json.
    """
    with databases(state) as api:
        found = _find(api, name)
    if output == "json":
        show_json({"backup_schedule": found})
        return
    print(plain(f"{found['name']}: {found['cron']} {found['timezone']}, {found['reason']}"))
    print(f"next: {found['next_run'] or 'never'} UTC")
    for item in found["history"]:
        why = item["backup_id"] or item["verification_id"] or ""
        words = [item["planned"], item["outcome"], why, item["reason"]]
        if item["missed_before"]:
            words.append(f"{item['missed_before']} before it were missed")
        print(plain("  ".join(word for word in words if word)))


@app.command
def pause(name: str, /, *, state: State = None) -> int:
    """Make no more backups by a schedule until it is resumed.

    Parameters
    ----------
    name
        Name or id of the schedule.
    """
    return _set_paused(name, state, paused=True)


@app.command
def resume(name: str, /, *, state: State = None) -> int:
    """Let a schedule go on; what it would have made meanwhile is not made up for.

    Parameters
    ----------
    name
        Name or id of the schedule.
    """
    return _set_paused(name, state, paused=False)


def _set_paused(name: str, state: State, *, paused: bool) -> int:
    with databases(state) as api:
        found = _find(api, name)
        change = {"backup_schedule": {"paused": paused}}
        shown = api.ask("PATCH", f"/backup_schedules/{found['id']}", json=change)["backup_schedule"]
    when = f"; the next backup is at {shown['next_run']} UTC" if shown["next_run"] else ""
    print(f"{plain(shown['name'])}: {shown['reason']}{when}.", file=sys.stderr)
    return 0


@app.command
def delete(name: str, /, *, state: State = None) -> int:
    """Delete a schedule. The backups that it made stay.

    Parameters
    ----------
    name
        Name or id of the schedule.
    """
    with databases(state) as api:
        found = _find(api, name)
        api.ask("DELETE", f"/backup_schedules/{found['id']}")
    print(f"The schedule {plain(found['name'])} is deleted.", file=sys.stderr)
    return 0
