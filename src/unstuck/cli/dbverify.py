"""``unstuck db verify``: a backup is restored into an instance that is thrown away, and that is read."""

from __future__ import annotations

import sys
from typing import Any

from cyclopts import App

from unstuck.cli.dbcalls import Databases, State, databases, wait
from unstuck.cli.words import plain


def add_to(app: App) -> None:
    app.command(verify)


def verify(
    backup: str,
    /,
    *,
    query: str = "",
    database: str = "",
    seconds: float = 3600.0,
    state: State = None,
) -> int:
    """Restore a backup into an instance that is thrown away, read all of it, and wait for the result.

    Exits with 0 if it is sound, 1 if it is damaged, 2 if that could not be found out.

    Parameters
    ----------
    backup
        Name or id of the backup.
    query
        One statement of yours, run read-only in what was restored; its first value has to be true.
    database
        Where it is run; without it the first database.
    seconds
        How long to wait.
    """
    with databases(state) as api:
        found = api.backup(backup)
        seen = verified(api, found["id"], {"query": query, "database": database}, seconds)
        shown = api.get(f"/backups/{found['id']}")["backup"]["unstuck"]["verified"] or {}
    took = f", restored in {shown['seconds']:.1f} s" if shown.get("seconds") is not None else ""
    print(plain(f"{found['name']} is {seen['result']}{took}: {seen['detail'] or seen['reason']}"))
    if seen["result"] == "sound":
        return 0
    if seen["result"] == "damaged":
        print("Restore another one instead; `unstuck db list` shows them.", file=sys.stderr)
    return 1 if seen["result"] == "damaged" else 2


def verified(api: Databases, backup_id: str, asked: dict[str, str], seconds: float) -> dict[str, Any]:
    """Ask for a verification, and wait for what comes of it."""
    path = f"/backups/{backup_id}"
    before = {item["id"] for item in api.get(f"{path}/verifications")["verifications"]}
    api.ask("POST", f"{path}/action", json={"verify": asked})

    def look() -> dict[str, Any]:
        items = api.get(f"{path}/verifications")["verifications"]
        return next((item for item in items if item["id"] not in before), {"result": None, "reason": ""})

    return wait(look, lambda item: item["result"] is not None, _words, seconds, "The verification")


def _words(item: dict[str, Any]) -> str:
    return f"verification: {item['result'] or 'under way'}  {item['reason']}".rstrip()
