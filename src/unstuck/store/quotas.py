"""Quotas: limits per project; what is in use is counted, never kept (there is nothing to leak)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Forbidden, Invalid
from unstuck.core.server.data import Flavor, Former
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import quota_defaults, quotas, servers
from unstuck.store.schema.identity import projects


class Usage(msgspec.Struct, frozen=True):
    instances: int
    cores: int
    ram: int


DEFAULTS: Final[dict[str, int]] = {
    "instances": 100, "cores": 200, "ram": 512 * 1024, "metadata_items": 128, "key_pairs": 100,
    "server_groups": 0, "server_group_members": 0,
    "injected_files": 0, "injected_file_content_bytes": 0, "injected_file_path_bytes": 0,
    "fixed_ips": -1, "floating_ips": 0, "security_groups": 1, "security_group_rules": 0,
}  # fmt: skip
"""What a project may have unless somebody says otherwise; -1: as much as it likes.

Counted here are instances, cores, ram, metadata_items and key_pairs. The others are limits on what is not
there at all: they can be written and read as the compute API wants it, and allow nothing.
"""

UNLIMITED: Final = 1 << 62


class _Size(msgspec.Struct, frozen=True):
    vcpus: int
    ram: int


_size = msgspec.json.Decoder(_Size)
_former = msgspec.json.Decoder(Former)
_NOTHING = _Size(0, 0)
# Grouped, so that there is a row per flavor and not per server; JSON is read here, not in two dialects.
_USED = Prepared(
    sa.select(servers.c.flavor, servers.c.before, sa.func.count().label("instances"))
    .where(servers.c.project_id == sa.bindparam("project"), sa.not_(servers.c.removed))
    .group_by(servers.c.flavor, servers.c.before)
)
_LOCK = Prepared(sa.select(projects.c.id).where(projects.c.id == sa.bindparam("project")).with_for_update())
_CHANGED_DEFAULTS = Prepared(sa.select(quota_defaults.c.resource, quota_defaults.c.hard_limit))
_CHANGED = Prepared(
    sa.select(quotas.c.resource, quotas.c.hard_limit).where(quotas.c.project_id == sa.bindparam("project"))
)


def default_limits(tx: Tx) -> dict[str, int]:
    """The limits of a project for which nothing else was said."""
    return DEFAULTS | {row.resource: row.hard_limit for row in _CHANGED_DEFAULTS.all(tx)}


def limits(tx: Tx, project_id: str) -> dict[str, int]:
    """A project's limits by resource; -1 is no limit."""
    rows = _CHANGED.all(tx, project=project_id)
    own = {row.resource: row.hard_limit for row in rows if row.resource in DEFAULTS}
    return default_limits(tx) | own


def limit_of(tx: Tx, project_id: str, resource: str) -> int:
    """One limit as a number to compare with."""
    return _number(limits(tx, project_id)[resource])


def _number(limit: int) -> int:
    return UNLIMITED if limit < 0 else limit


def usage(tx: Tx, project_id: str) -> Usage:
    """What a project's servers take up (removed ones do not count). One whose resize can still be taken back
    counts with the larger of both flavors, so that taking it back never fails."""
    instances = cores = ram = 0
    for row in _USED.all(tx, project=project_id):
        size = readable.read(_size, row.flavor, _NOTHING)
        former = (
            Flavor(0, 0, 0)
            if row.before is None
            else readable.read(_former, row.before, readable.FORMER).size
        )
        instances += row.instances
        cores += row.instances * max(size.vcpus, former.vcpus)
        ram += row.instances * max(size.ram, former.ram_mb)
    return Usage(instances, cores, ram)


def with_usage(tx: Tx, project_id: str) -> tuple[dict[str, int], Usage]:
    """A project's limits, and what it has."""
    return limits(tx, project_id), usage(tx, project_id)


def lock_project(tx: Tx, project_id: str) -> bool:
    """One request at a time counts and inserts: a statement of its own, before the count.

    False where there is no such project (any more).
    """
    return _LOCK.first(tx, project=project_id) is not None


def set_limits(tx: Tx, project_id: str, wanted: Mapping[str, int], *, force: bool) -> dict[str, int]:
    """Write a project's limits; ``force`` allows less than is in use. Returns all of its limits."""
    if not lock_project(tx, project_id):
        raise Invalid(f"Project ID {project_id} is not a valid project.")
    if not force:
        used = msgspec.structs.asdict(usage(tx, project_id))
        for resource, limit in wanted.items():
            if 0 <= limit < used.get(resource, 0):
                raise Invalid(
                    f"Quota limit {limit} for {resource} must be greater than or equal to already used and "
                    f"reserved {used[resource]}."
                )
    tx.execute(
        sa.delete(quotas).where(quotas.c.project_id == project_id, quotas.c.resource.in_(list(wanted)))
    )
    if wanted:
        rows = [
            {"project_id": project_id, "resource": key, "hard_limit": value} for key, value in wanted.items()
        ]
        tx.execute(sa.insert(quotas), rows)
    return limits(tx, project_id)


def drop_limits(tx: Tx, project_id: str) -> None:
    """Let a project have the default limits again; again is no error."""
    lock_project(tx, project_id)
    tx.execute(
        sa.delete(quotas).where(quotas.c.project_id == project_id, quotas.c.resource.in_(list(DEFAULTS)))
    )


def set_default_limits(tx: Tx, wanted: Mapping[str, int]) -> dict[str, int]:
    """Write the limits of all projects for which nothing else was said. Returns all of them.

    Nobody is locked out: a create that counts at the same moment decides by the limits before or after.
    """
    for resource, limit in wanted.items():
        changed = (
            sa.update(quota_defaults).where(quota_defaults.c.resource == resource).values(hard_limit=limit)
        )
        if tx.execute(changed).rowcount == 0:
            tx.execute(sa.insert(quota_defaults).values(resource=resource, hard_limit=limit))
    return default_limits(tx)


def grant(tx: Tx, project_id: str, *, least: int, most: int, vcpus: int, ram_mb: int) -> int:
    """How many servers of a flavor, ``least`` to ``most``, fit into the quota; raises :class:`Forbidden`."""
    if not lock_project(tx, project_id):
        raise Forbidden(f"Project {project_id} is not there any more.")
    limit, used = with_usage(tx, project_id)
    room = {
        "instances": _number(limit["instances"]) - used.instances,
        "cores": (_number(limit["cores"]) - used.cores) // max(vcpus, 1),
        "ram": (_number(limit["ram"]) - used.ram) // max(ram_mb, 1),
    }
    fits = min(most, *room.values())
    if fits >= least:
        return fits
    asked = {"instances": least, "cores": least * vcpus, "ram": least * ram_mb}
    raise _refusal([name for name in ("instances", "cores", "ram") if room[name] < least], asked, used, limit)


def check_growth(tx: Tx, project_id: str, *, vcpus: int, ram_mb: int) -> None:
    """403 where a server of the project, of which the caller holds the row, may not grow by so much."""
    limit, used = with_usage(tx, project_id)
    asked = {"cores": vcpus, "ram": ram_mb}
    over = [
        name for name, more in asked.items() if more > 0 and getattr(used, name) + more > _number(limit[name])
    ]
    if over:
        raise _refusal(over, asked, used, limit)


def _refusal(over: list[str], asked: dict[str, int], used: Usage, limit: dict[str, int]) -> Forbidden:
    return Forbidden(
        f"Quota exceeded for {', '.join(over)}: "
        f"Requested {', '.join(str(asked[name]) for name in over)}, "
        f"but already used {', '.join(str(getattr(used, name)) for name in over)} "
        f"of {', '.join(str(limit[name]) for name in over)} {', '.join(over)}"
    )


def check_metadata_count(tx: Tx, project_id: str, count: int) -> None:
    """403 when a server would have more metadata than its project allows."""
    if count == 0:
        return
    most = limit_of(tx, project_id, "metadata_items")
    if count > most:
        raise Forbidden(f"Maximum number of metadata items exceeds {most}")
