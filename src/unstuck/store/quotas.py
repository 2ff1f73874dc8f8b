"""Quotas: simple limits per project; what is in use is counted, never kept (there is nothing to leak)."""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Forbidden
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import servers
from unstuck.store.schema.identity import projects


class Usage(msgspec.Struct, frozen=True):
    instances: int
    cores: int
    ram: int


LIMITS: Final = Usage(instances=100, cores=200, ram=512 * 1024)


class _Size(msgspec.Struct, frozen=True):
    vcpus: int
    ram: int


_size = msgspec.json.Decoder(_Size)
_NOTHING = _Size(0, 0)
# Grouped, so that there is a row per flavor and not per server; JSON is read here, not in two dialects.
_USED = Prepared(
    sa.select(servers.c.flavor, sa.func.count().label("instances"))
    .where(servers.c.project_id == sa.bindparam("project"), sa.not_(servers.c.removed))
    .group_by(servers.c.flavor)
)
_LOCK = Prepared(sa.select(projects.c.id).where(projects.c.id == sa.bindparam("project")).with_for_update())


def usage(tx: Tx, project_id: str) -> Usage:
    """What a project's servers take up (removed ones do not count)."""
    instances = cores = ram = 0
    for row in _USED.all(tx, project=project_id):
        size = readable.read(_size, row.flavor, _NOTHING)
        instances += row.instances
        cores += row.instances * size.vcpus
        ram += row.instances * size.ram
    return Usage(instances, cores, ram)


def lock_project(tx: Tx, project_id: str) -> None:
    """One request at a time counts and inserts: a statement of its own, before the count."""
    _LOCK.first(tx, project=project_id)


def grant(tx: Tx, project_id: str, *, least: int, most: int, vcpus: int, ram_mb: int) -> int:
    """How many servers of a flavor, ``least`` to ``most``, fit into the quota; raises :class:`Forbidden`."""
    lock_project(tx, project_id)
    used = usage(tx, project_id)
    room = {
        "instances": LIMITS.instances - used.instances,
        "cores": (LIMITS.cores - used.cores) // max(vcpus, 1),
        "ram": (LIMITS.ram - used.ram) // max(ram_mb, 1),
    }
    fits = min(most, *room.values())
    if fits >= least:
        return fits
    asked = {"instances": least, "cores": least * vcpus, "ram": least * ram_mb}
    over = [name for name in ("instances", "cores", "ram") if room[name] < least]
    raise Forbidden(
        f"Quota exceeded for {', '.join(over)}: "
        f"Requested {', '.join(str(asked[name]) for name in over)}, "
        f"but already used {', '.join(str(getattr(used, name)) for name in over)} "
        f"of {', '.join(str(getattr(LIMITS, name)) for name in over)} {', '.join(over)}"
    )
