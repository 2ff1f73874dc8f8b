"""What is in dispute in recovery mode, as one diff, and settling it as one act."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.core.generation import Dispute, Recovery
from unstuck.core.server.data import Observation, Thing
from unstuck.store.clock import clock_row
from unstuck.store.generation import end_recovery, recovery, untold
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, judge, load_server, lock_host
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import hosts, placements, servers
from unstuck.store.schema.identity import projects
from unstuck.store.servers import Caller, delete_server
from unstuck.store.tx import Tx


class Files(msgspec.Struct, frozen=True):
    """Image files that no image names, and ids of images whose file is not there."""

    unnamed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Item(msgspec.Struct, frozen=True):
    """One thing in dispute. ``action``: exactly what accepting the diff does about it."""

    kind: str
    id: str
    name: str
    detail: str
    action: str


class Diff(msgspec.Struct, frozen=True):
    """``id`` changes whenever anything in it does. ``waiting``: hosts that have not spoken yet."""

    id: str
    generation: int
    recovery: Recovery
    waiting: tuple[str, ...]
    items: tuple[Item, ...]


_DISPUTED = (
    sa.select(
        servers.c.id, servers.c.name, servers.c.project_id, servers.c.disputed, servers.c.deleted,
        servers.c.seen, hosts.c.hostname, hosts.c.id.label("host_id"),
        projects.c.name.label("project"),
    )
    .outerjoin(placements, sa.and_(placements.c.server_id == servers.c.id, placements.c.state == "live"))
    .outerjoin(hosts, hosts.c.id == placements.c.host_id)
    .outerjoin(projects, projects.c.id == servers.c.project_id)
    .where(servers.c.disputed.is_not(None))
    .order_by(servers.c.id)
)  # fmt: skip
_LOCK_CLOCK = Prepared(sa.update(clock).where(clock.c.recovery.is_not(None)).values(tick=clock.c.tick))
_SETTLED = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(disputed=None, project_id=sa.bindparam("owner"))
)
_seen = msgspec.json.Decoder(Observation)


def diff(tx: Tx, files: Files) -> Diff | None:
    """Everything in dispute; None when the store is not in recovery mode."""
    found = recovery(tx)
    if found is None:
        return None
    items = (*(_server_item(row) for row in tx.execute(_DISPUTED)), *_file_items(files))
    number, waiting = clock_row(tx).generation, tuple(untold(tx))
    text = msgspec.json.encode((number, waiting, items))
    return Diff(hashlib.sha256(text).hexdigest()[:12], number, found, waiting, items)


def _server_item(row: Any) -> Item:
    where = f"host {row.hostname}"
    if row.disputed == Dispute.UNKNOWN:
        detail = f"{where} has it, and the store had lost it; it was adopted as it is"
        action = f"it stays, in project {row.project}" if row.project else "it stays, in the project you name"
    elif _disk_is_back(row):
        detail = f"its disk was not on {where}, and is there again"
        action = "it stays"
    else:
        detail = f"{where} has no disk of it: it was deleted after the copy was made, or its disk was lost"
        action = f"it is deleted; there is no data of it on {where}"
    if row.deleted:
        detail += "; its user has deleted it, which was held back"
        action = "it is deleted, with its disk, as its user asked"
    return Item(f"server-{row.disputed}", row.id, row.name, detail, action)


def _disk_is_back(row: Any) -> bool:
    return row.seen is not None and _seen.decode(row.seen).disk is Thing.PRESENT


def _file_items(files: Files) -> list[Item]:
    unnamed = [
        Item(
            "image-file", name, name, "no image in the store names this file",
            "it is moved to blobs/set-aside and kept",
        )
        for name in files.unnamed
    ]  # fmt: skip
    missing = [
        Item(
            "image-data", image_id, image_id, "the image's file is not there",
            "nothing: bring the file back, or delete the image",
        )
        for image_id in files.missing
    ]  # fmt: skip
    return [*unnamed, *missing]


def accept(
    tx: Tx, diff_id: str, files: Files, caller: Caller, *, project: str | None = None,
    give_up: frozenset[str] = frozenset(),
) -> list[str]:  # fmt: skip
    """Settle all of the diff as it says, and end recovery mode; returns the hosts to notify.

    ``project``: id or name, for servers whose own project the store does not know. ``give_up``: ids of
    unknown servers that are to be deleted instead, with their disks.
    """
    _LOCK_CLOCK.run(tx)
    found = diff(tx, files)
    if found is None:
        raise NotFound("The store is not in recovery mode: there is nothing to accept.")
    if found.id != diff_id:
        raise Conflict(f"What is in dispute has changed; it is {found.id} now. Look at it again.")
    if found.waiting:
        raise Conflict(
            f"{', '.join(found.waiting)} has not said yet what it holds: start its agent, or disable the "
            "host if it will not come back."
        )
    rows = list(tx.execute(_DISPUTED))
    strange = give_up - {row.id for row in rows if row.disputed == Dispute.UNKNOWN}
    if strange:
        raise Invalid(f"give_up: {', '.join(sorted(strange))} is no server that the store had lost.")
    owner = _owner(tx, project, rows)
    for row in rows:
        _settle(tx, row, row.project_id if row.project else owner, caller, given_up=row.id in give_up)
    end_recovery(tx)
    return sorted({row.host_id for row in rows if row.host_id is not None})


def _owner(tx: Tx, project: str | None, rows: list[Any]) -> str:
    """The project for servers whose own one is not known; only needed where there are such."""
    if project is not None:
        query = sa.select(projects.c.id).where(sa.or_(projects.c.id == project, projects.c.name == project))
        found = tx.execute(query.order_by(projects.c.id != project)).scalars().first()
        if found is None:
            raise Invalid(f"project: there is no project {project!r}.")
        return str(found)
    homeless = [row.id for row in rows if not row.project]
    if homeless:
        raise Invalid(f"project: the store does not know the project of {', '.join(homeless)}; name one.")
    return ""


def _settle(tx: Tx, row: Any, owner: str, caller: Caller, *, given_up: bool) -> None:
    if row.host_id is not None:
        lock_host(tx, row.host_id)
    loaded = load_server(tx, row.id, lock=True)
    assert loaded is not None
    _SETTLED.run(tx, server=row.id, owner=owner)
    goes = given_up or (row.disputed == Dispute.MISSING and not _disk_is_back(row))
    if goes and not loaded.server.deleted:
        delete_server(tx, row.id, caller)
        return
    if row.host_id is not None:
        bump_world(tx, row.host_id, row.id)
    judge(tx, row.id)


__all__ = ["Diff", "Files", "Item", "accept", "diff"]
