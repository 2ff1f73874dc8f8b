"""What the ``unstuck db`` commands say of instances and backups, and how they wait for them."""

from __future__ import annotations

import sys
from typing import Any, Final
from urllib.parse import quote

from unstuck.cli.dbcalls import Databases, wait
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

ADDRESSES: Final = {
    "postgresql": "postgresql://{who}@{where}/{database}?sslmode=require",
    "mariadb": "mysql://{who}@{where}/{database}?ssl-mode=REQUIRED",
}
"""By what runs the datastore; each with TLS, as every instance has it."""
USER: Final = "app"
DATABASE: Final = "app"


def until_healthy(api: Databases, instance_id: str, seconds: float) -> dict[str, Any]:
    seen = wait(
        lambda: dict(api.get(f"/instances/{instance_id}")["instance"]),
        lambda item: item["status"] in ("ERROR", "SHUTDOWN") or healthy(item),
        instance_words,
        seconds,
        f"The instance {instance_id}",
    )
    if not healthy(seen):
        why = seen.get("fault", {}).get("message") or extension(seen).get("reason") or "no reason was given"
        raise CliError(f"The instance {seen['name']} ({instance_id}) is in {seen['status']}: {why}")
    return seen


def healthy(item: dict[str, Any]) -> bool:
    return (
        item["status"] in ("ACTIVE", "BACKUP", "RESTART_REQUIRED") and item["operating_status"] == "HEALTHY"
    )


def extension(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = item.get("unstuck") or {}
    return found


def instance_words(item: dict[str, Any]) -> str:
    told = extension(item)
    words = [item["name"], item["status"], item["operating_status"], told.get("reason") or ""]
    return "  ".join(word for word in words if word)


def backup_words(item: dict[str, Any]) -> str:
    told = extension(item)
    words = [item["name"], item["status"], told.get("phase") or ""]
    if told.get("bytes"):
        words.append(amount(told["bytes"]))
    if (told.get("attempt") or 1) > 1:
        words.append(f"attempt {told['attempt']}")
    words.append(told.get("reason") or "")
    return "  ".join(word for word in words if word)


def amount(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def volume_for(api: Databases, source: dict[str, Any]) -> int:
    """GiB: as the instance that was backed up has, if it is still there; else what the data needs."""
    needed = int(_size_of_chain(api, source) * 1.25) + 1
    for item in api.all("instances"):
        if item["id"] == source["instance_id"]:
            return max(int(item["volume"]["size"]), needed)
    return needed


def _size_of_chain(api: Databases, source: dict[str, Any]) -> float:
    """GiB of a backup and of its parents, as far as they are not deleted."""
    size, known = 0.0, {item["id"]: item for item in api.all("backups")}
    found: dict[str, Any] | None = source
    while found is not None:
        size += float(found.get("size") or 0)
        found = known.pop(found.get("parent_id") or "", None)
    return size


def instance_or_trash(api: Databases, name: str) -> dict[str, Any]:
    """An instance by name or id; or a deleted one by its id."""
    for item in api.all("instances", deleted="true"):
        if item["id"] == name:
            return item
    return api.instance(name)


def first_address(item: dict[str, Any]) -> str | None:
    for address in item.get("addresses") or ():
        return str(address["address"])
    return None


def connection(item: dict[str, Any], user: str, database: str, password: str | None = None) -> str:
    """A connection address, as the datastore's clients write it."""
    address = first_address(item)
    if address is None:
        raise CliError(f"The instance {item['name']} has no address yet (it is in {item['status']}).")
    secret = "" if password is None else f":{quote(password, safe='')}"
    who = f"{quote(user, safe='')}{secret}"
    told = extension(item)
    form = ADDRESSES.get(told.get("manager") or "", ADDRESSES["postgresql"])
    return form.format(who=who, where=f"{address}:{told['port']}", database=quote(database, safe=""))


def login(
    api: Databases, instance: dict[str, Any], user: str | None, database: str | None
) -> tuple[str, str]:
    """Who connects, and to which database, where that is not said: ``app`` if it is there, else another.

    An instance that was made by another client, or from its backup, has users of other names. It is asked; if
    it does not answer, ``app`` is as good as any.
    """
    if user is not None and database is not None:
        return user, database
    try:
        found = api.get(f"/instances/{instance['id']}/users")["users"]
    except CliError:
        found = []
    known = {item["name"]: [one["name"] for one in item["databases"]] for item in found}
    if user is None:
        user = USER if USER in known or not known else sorted(known)[0]
        if len(known) > 1 and user != USER:
            others = ", ".join(plain(name) for name in sorted(known))
            print(f"It has several users: {others}; --user names one.", file=sys.stderr)
    if database is None:
        theirs = known.get(user, [])
        database = DATABASE if DATABASE in theirs or not theirs else sorted(theirs)[0]
    return user, database


def until_complete(api: Databases, made: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Wait for a backup. Raises :class:`CliError` where it failed, or takes longer."""
    title = made["name"]
    seen = wait(
        lambda: dict(api.get(f"/backups/{made['id']}")["backup"]),
        lambda item: item["status"] in ("COMPLETED", "FAILED"),
        backup_words,
        seconds,
        f"The backup {title}",
    )
    if seen["status"] != "COMPLETED":
        why = extension(seen).get("reason") or "no reason was given"
        raise CliError(f"The backup {title} failed: {why}.")
    return seen
