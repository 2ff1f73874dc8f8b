"""The figures that operators watch. What is on its way is read through indexes that hold nothing else, so
that a scrape costs the same whatever rests beside it; what is at rest is counted apart."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.server.control import AWAY
from unstuck.core.time import Now
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import OPEN, TOMBSTONE, asks, hosts, operations, placements, servers
from unstuck.store.schema.database import backups, instances
from unstuck.store.schema.images import images
from unstuck.store.schema.schedules import backup_schedules, backup_verifications


class Moving(msgspec.Struct, frozen=True):
    """What of one kind is not settled. Ages in seconds of lease time; ``overdue``: past its next look or
    its deadline."""

    count: int = 0
    overdue: int = 0
    oldest_seconds: float = 0.0


class Figures(msgspec.Struct, frozen=True):
    moving: dict[str, Moving]
    tombstones: Moving
    hosts: dict[str, int]
    since_tick: float
    """Seconds since any control loop advanced the store's clock."""
    generation: int


class Resting(msgspec.Struct, frozen=True):
    """Servers at rest by what their user wants and whether they failed."""

    on: int = 0
    off: int = 0
    failed: int = 0


def _sums(
    since: sa.ColumnElement[Any], due: sa.ColumnElement[Any], *more: sa.ColumnElement[Any]
) -> sa.Select[Any]:
    late = sa.func.sum(sa.case((due < sa.bindparam("now"), 1), else_=0))
    return sa.select(
        *more, sa.func.count().label("rows"), late.label("late"), sa.func.min(since).label("first")
    )


_KIND = sa.case(
    (servers.c.deleted, "server_deleting"),
    (servers.c.launched_wall.is_(None), "server_building"),
    else_="server_changing",
).label("kind")
# A server is unsettled since the request that is still open, or else since what was last seen.
_SERVERS = Prepared(
    _sums(sa.func.coalesce(operations.c.since, servers.c.seen_at), servers.c.next_look, _KIND)
    .select_from(servers.outerjoin(operations, sa.and_(operations.c.resource_id == servers.c.id, OPEN)))
    .where(sa.not_(servers.c.settled))
    .group_by(_KIND)
)


def moving(wall: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """Instances that are not settled. One that stands still in the trash waits for nobody."""
    in_trash = sa.and_(instances.c.deleted, sa.func.coalesce(instances.c.trash_until_wall, 0.0) > wall)
    return sa.and_(sa.not_(instances.c.settled), sa.not_(in_trash))


OPENED = sa.and_(operations.c.resource_id == instances.c.id, OPEN)
# Since what was asked for last and is not over; a deleted one since its last news.
UNSETTLED_SINCE = sa.func.coalesce(operations.c.since, instances.c.seen_at)
_OTHERS = {
    "instance": Prepared(
        _sums(UNSETTLED_SINCE, instances.c.next_look)
        .select_from(instances.outerjoin(operations, OPENED))
        .where(moving(sa.bindparam("wall", type_=sa.Double)))
    ),
    "operation": Prepared(
        _sums(operations.c.since, operations.c.deadline).select_from(operations).where(OPEN)
    ),
    "image_upload": Prepared(
        _sums(images.c.upload_since, images.c.upload_until)
        .select_from(images)
        .where(images.c.upload_until > 0)  # which an index answers; IS NOT NULL is a scan on SQLite
    ),
    "backup": Prepared(
        _sums(backups.c.since, backups.c.next_look).select_from(backups).where(backups.c.ended == sa.null())
    ),
    "backup_removal": Prepared(
        _sums(backups.c.since, backups.c.next_look)
        .select_from(backups)
        .where(sa.not_(backups.c.settled), backups.c.ended != sa.null())
    ),
    "verification": Prepared(
        _sums(backup_verifications.c.created, backup_verifications.c.next_look)
        .select_from(backup_verifications)
        .where(sa.not_(backup_verifications.c.settled))
    ),
    # A run that has come and that nobody has dealt with; in wall time, which is what its user means.
    "schedule_run": Prepared(
        sa.select(
            sa.func.count().label("rows"),
            sa.func.count().label("late"),
            (
                sa.bindparam("now")
                - sa.bindparam("wall", type_=sa.Double)
                + sa.func.min(backup_schedules.c.planned)
            ).label("first"),
        ).where(
            sa.not_(backup_schedules.c.settled),
            backup_schedules.c.planned < sa.bindparam("wall", type_=sa.Double),
        )
    ),
    "ask": Prepared(_sums(asks.c.since, asks.c.deadline).select_from(asks)),
}
_TOMBSTONES = Prepared(
    sa.select(sa.func.count().label("rows"), sa.func.min(placements.c.granted).label("first")).where(
        TOMBSTONE
    )
)
_HOSTS = Prepared(sa.select(hosts.c.enabled, hosts.c.incarnation, hosts.c.seen))
_CLOCK = Prepared(sa.select(clock.c.wall, clock.c.generation))
_COUNT = sa.select(sa.func.count()).select_from(servers)
_AT_REST = sa.and_(servers.c.settled, sa.not_(servers.c.removed))
_LIVE = Prepared(_COUNT.where(sa.not_(servers.c.removed)))
_MOVING = Prepared(_COUNT.where(sa.not_(servers.c.settled)))
_FAILED = Prepared(_COUNT.where(_AT_REST, servers.c.failure.is_not(None)))
_OFF = Prepared(
    _COUNT.where(_AT_REST, servers.c.failure.is_(None), servers.c.power == sa.literal_column("'off'"))
)
SERVER_KINDS = ("server_building", "server_changing", "server_deleting")


def _moving(row: Any, now: Now) -> Moving:
    first = now.lease if row.first is None else row.first
    return Moving(row.rows, int(row.late or 0), max(now.lease - first, 0.0))


def figures(tx: Tx) -> Figures:
    """Everything that is on its way, and every host's state: ten statements."""
    now = tx.now
    found = dict.fromkeys(SERVER_KINDS, Moving())
    for row in _SERVERS.all(tx, now=now.lease):
        found[row.kind] = _moving(row, now)
    for kind, query in _OTHERS.items():
        found[kind] = _moving(query.first(tx, now=now.lease, wall=now.wall), now)
    tombstones = _TOMBSTONES.first(tx)
    ticked = _CLOCK.first(tx)
    assert tombstones is not None and ticked is not None  # noqa: PT018
    states = {"up": 0, "down": 0, "disabled": 0}
    for row in _HOSTS.all(tx):
        up = row.incarnation > 0 and now.lease < row.seen + AWAY
        states["down" if not up else "up" if row.enabled else "disabled"] += 1
    first = now.lease if tombstones.first is None else tombstones.first
    return Figures(
        moving=found, hosts=states, generation=ticked.generation,
        tombstones=Moving(tombstones.rows, 0, max(now.lease - first, 0.0)),
        since_tick=max(now.wall - ticked.wall, 0.0),
    )  # fmt: skip


def resting(tx: Tx) -> Resting:
    """Servers at rest. Reads one index, but all of it: not for every scrape."""
    live, moving, failed, off = (query.scalar(tx) for query in (_LIVE, _MOVING, _FAILED, _OFF))
    return Resting(on=live - moving - failed - off, off=off, failed=failed)
