"""``unstuck db retention`` and ``unstuck db pin``: how long backups are kept."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from unstuck.cli.cloud import show_json
from unstuck.cli.dbcalls import State, databases
from unstuck.cli.words import plain

Switch = Annotated[bool, Parameter(negative="")]


def add_to(app: App) -> None:
    app.command(retention)
    app.command(pin)


def retention(
    instance: str,
    /,
    *,
    days: float | None = None,
    count: int | None = None,
    daily: int | None = None,
    weekly: int | None = None,
    monthly: int | None = None,
    minimum: int | None = None,
    timezone: str | None = None,
    manual: Switch = False,
    default: Switch = False,
    dry_run: Switch = False,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: State = None,
) -> int:
    """Show, or set, how long an instance's automatic backups are kept; each backup with why it stays or goes.

    A backup stays if any rule wants it. What somebody asked for, or pinned, stays anyway. Without a rule in
    the command nothing is changed; a new policy replaces the old one.

    Parameters
    ----------
    instance
        Name or id of the instance.
    days
        The recovery window.
    count
        So many, the newest.
    daily
        The last one of each of so many days.
    weekly
        The last one of each of so many weeks.
    monthly
        The last one of each of so many months.
    minimum
        Never less than so many; without it one.
    timezone
        Whose days these are; without it UTC.
    manual
        Also backups that somebody asked for are subject to it.
    default
        Go back to what every instance has: seven days.
    dry_run
        Say what would go, and change nothing.
    output
        text or json.
    """
    given = {
        "days": days, "count": count, "daily": daily, "weekly": weekly, "monthly": monthly,
        "minimum": minimum, "timezone": timezone, "manual": manual or None,
    }  # fmt: skip
    policy = {name: value for name, value in given.items() if value is not None}
    with databases(state) as api:
        path = f"/instances/{api.instance(instance)['id']}/retention"
        if policy or default:
            body = {"retention": None if default else policy}
            query = {"dry_run": "true"} if dry_run else {}
            found = api.ask("PUT", path, json=body, params=query)["retention"]
        else:
            found = api.get(path)["retention"]
    if output == "json":
        show_json({"retention": found})
        return 0
    _print(found)
    return 0


def _print(found: dict[str, Any]) -> None:
    rules = {name: value for name, value in found["policy"].items() if value not in (None, 0, False, "UTC")}
    whose = "the default: " if found["default"] else ""
    print(whose + (", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                             for name, value in rules.items())))  # fmt: skip
    if found["trouble"]:
        print(plain(f"nothing goes now: {found['trouble']}"))
    for item in found["backups"]:
        word = "stays" if item["keep"] else "goes "
        print(plain(f"{word}  {item['created']}  {item['id']}  {item['name']}  ({item['why']})"))
    for item in found["removed"]:
        words = f"{item['created']}  {item['id']}  {item['name']}  {item['removed']}"
        print(plain(f"gone   {words} ({item['why']})"))


def pin(backup: str, /, *, off: Switch = False, state: State = None) -> int:
    """Keep a backup whatever the policy says.

    Parameters
    ----------
    backup
        Name or id of the backup.
    off
        Keep it no longer than the policy says.
    """
    with databases(state) as api:
        found = api.backup(backup)
        api.ask("POST", f"/backups/{found['id']}/action", json={"pin": {"pinned": not off}})
    words = "is kept no longer than its instance's policy says" if off else "is kept until it is deleted"
    print(f"The backup {plain(found['name'])} {words}.", file=sys.stderr)
    return 0
