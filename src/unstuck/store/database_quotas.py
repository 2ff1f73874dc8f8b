"""Quotas of database instances, apart from those of servers; what is in use is counted, never kept.

What lies in the trash does not count: its user has given it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Invalid, TooLarge
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.store.backups_made import USER
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.quotas import UNLIMITED, lock_project
from unstuck.store.schema.compute import quotas
from unstuck.store.schema.database import backups, instances

DEFAULTS: Final[dict[str, int]] = {
    "instances": 10, "volumes": 40, "backups": 50, "automatic_backups": 500, "ram": -1,
}  # fmt: skip
"""Instances, GiB of volumes, backups that somebody asked for, those made by schedules and the like, MiB of
memory; -1: as much as a project likes."""
PREFIX: Final = "database."


class Usage(msgspec.Struct, frozen=True):
    instances: int
    volumes: int
    backups: int
    automatic_backups: int
    ram: int


_USED = Prepared(
    sa.select(
        sa.func.count().label("instances"),
        sa.func.coalesce(sa.func.sum(instances.c.volume_gb), 0).label("volumes"),
        sa.func.coalesce(sa.func.sum(instances.c.ram_mb), 0).label("ram"),
    ).where(instances.c.project_id == sa.bindparam("project"), sa.not_(instances.c.deleted))
)
_BACKUPS = Prepared(
    sa.select(
        sa.func.count().label("every"), sa.func.count().filter(backups.c.made_by == USER).label("asked")
    ).where(backups.c.project_id == sa.bindparam("project"), sa.not_(backups.c.deleted))
)


def _up_to(kind: sa.ColumnElement[bool]) -> Prepared:
    """Counts a project's backups of a kind, up to ``most``: further entries of the index are not read."""
    mine = sa.select(sa.literal(1)).where(
        backups.c.project_id == sa.bindparam("project"), sa.not_(backups.c.deleted), kind
    )
    return Prepared(sa.select(sa.func.count()).select_from(mine.limit(sa.bindparam("most")).subquery()))


_OF_USERS = _up_to(backups.c.made_by == sa.bindparam("user"))
# Not "another than": that would be looked for among all of the project's.
_OF_OTHERS = (
    _up_to(backups.c.made_by < sa.bindparam("user")),
    _up_to(backups.c.made_by > sa.bindparam("user")),
)
_LIMITS = Prepared(
    sa.select(quotas.c.resource, quotas.c.hard_limit).where(
        quotas.c.project_id == sa.bindparam("project"), quotas.c.resource.startswith(PREFIX)
    )
)


def limits(tx: Tx, project_id: str) -> dict[str, int]:
    """A project's limits by resource; -1 is no limit."""
    if project_id == SERVICE_PROJECT:  # what is thrown away again is bounded by those who make it
        return dict.fromkeys(DEFAULTS, -1)
    own = {row.resource.removeprefix(PREFIX): row.hard_limit for row in _LIMITS.all(tx, project=project_id)}
    return {name: own.get(name, limit) for name, limit in DEFAULTS.items()}


def usage(tx: Tx, project_id: str) -> Usage:
    """What a project has."""
    used = _USED.first(tx, project=project_id)
    assert used is not None
    count = _BACKUPS.first(tx, project=project_id)
    assert count is not None
    return Usage(used.instances, int(used.volumes), count.asked, count.every - count.asked, int(used.ram))


def has_backups(tx: Tx, project_id: str, most: int, *, asked: bool) -> bool:
    """Whether a project has so many backups that somebody asked for, or that were made by themselves.

    It takes as long as counting to ``most``, however many there are or were.
    """
    found = 0
    for query in (_OF_USERS,) if asked else _OF_OTHERS:
        row = query.first(tx, project=project_id, user=USER, most=most - found)
        assert row is not None
        found += row[0]
    return found >= most


def with_usage(tx: Tx, project_id: str) -> tuple[dict[str, int], Usage]:
    """A project's limits, and what it has."""
    return limits(tx, project_id), usage(tx, project_id)


def set_limits(tx: Tx, project_id: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Write limits of a project; less than is in use only keeps it from more. Returns all of them."""
    if not lock_project(tx, project_id):
        raise Invalid(f"Project {project_id} is not a valid project.")
    for name, limit in wanted.items():
        key = PREFIX + name
        tx.execute(sa.delete(quotas).where(quotas.c.project_id == project_id, quotas.c.resource == key))
        tx.execute(sa.insert(quotas).values(project_id=project_id, resource=key, hard_limit=limit))
    return limits(tx, project_id)


def grant(tx: Tx, project_id: str, **more: int) -> None:
    """Whether the project may have so much more of these; 413 names what it may not.

    Not for backups (:func:`has_backups`). Locks the project first, in a statement of its own: two requests at
    the limit are counted one by one.
    """
    if not lock_project(tx, project_id):
        raise Invalid(f"Project {project_id} is not there any more.")
    # Not all that there is: nobody waits for a count of backups that nothing is decided by.
    limit, used = limits(tx, project_id), _USED.first(tx, project=project_id)
    over = []
    for name, count in more.items():
        most = limit[name] if limit[name] >= 0 else UNLIMITED
        if count > 0 and getattr(used, name) + count > most:
            over.append(f"{name} (limit {limit[name]}, in use {getattr(used, name)}, asked {count})")
    if over:
        raise TooLarge(f"Quota exceeded for resources: {', '.join(over)}.")
