"""How long servers were there, for usage reports: from their rows, whenever somebody asks."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import servers


class Life(msgspec.Struct, frozen=True):
    """A server from its creation to its end, in wall time."""

    id: str
    project_id: str
    name: str
    flavor: str
    vcpus: int
    ram_mb: int
    disk_gb: int
    started: float
    ended: float | None


class _Flavor(msgspec.Struct, frozen=True):
    vcpus: int
    ram: int
    disk: int
    original_name: str


_flavor = msgspec.json.Decoder(_Flavor)
_NOTHING = _Flavor(0, 0, 0, "unreadable")


def list_lives(
    tx: Tx, project_id: str | None, *, start: float | None, end: float | None
) -> tuple[list[Life], float]:
    """The servers that existed between two times (None: now), and the time now."""
    now = tx.now.wall
    query = sa.select(
        servers.c.id, servers.c.project_id, servers.c.name, servers.c.flavor, servers.c.created_wall,
        servers.c.removed_wall,
    ).where(
        servers.c.created_wall <= (now if end is None else end),
        sa.or_(servers.c.removed_wall.is_(None), servers.c.removed_wall >= (now if start is None else start)),
    ).order_by(servers.c.created_wall, servers.c.id)  # fmt: skip
    if project_id is not None:
        query = query.where(servers.c.project_id == project_id)
    lives = []
    for row in tx.execute(query):
        size = readable.read(_flavor, row.flavor, _NOTHING)
        lives.append(
            Life(row.id, row.project_id, row.name, size.original_name, size.vcpus, size.ram, size.disk,
                 row.created_wall, row.removed_wall)
        )  # fmt: skip
    return lives, now
