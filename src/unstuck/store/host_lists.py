"""Hosts as administrators see them; what they carry is summed up from placements."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.agents import HostFacts
from unstuck.core.errors import NotFound
from unstuck.core.server.control import AWAY
from unstuck.core.time import Now
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import hosts, placements, servers


class Guest(msgspec.Struct, frozen=True):
    """A server on a host."""

    id: str
    name: str


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One host. Sizes in MiB and GiB; ``seen`` is lease time."""

    id: str
    hostname: str
    enabled: bool
    disabled_reason: str | None
    forced_down: bool
    vcpus: int
    ram_mb: int
    disk_gb: int
    incarnation: int
    seen: float
    seen_wall: float
    created_wall: float
    facts: HostFacts | None
    unknown: tuple[str, ...]
    used_vcpus: int = 0
    used_ram_mb: int = 0
    used_disk_gb: int = 0
    guests: tuple[Guest, ...] = ()

    def up(self, now: Now) -> bool:
        """It has had its say within the last minute."""
        return not self.forced_down and self.incarnation > 0 and now.lease < self.seen + AWAY


class Hosts(msgspec.Struct, frozen=True):
    rows: tuple[HostRow, ...]
    now: Now


_facts: msgspec.json.Decoder[HostFacts | None] = msgspec.json.Decoder(HostFacts)
_unknown = msgspec.json.Decoder(tuple[str, ...])
_COLUMNS = sa.select(
    hosts.c.id, hosts.c.hostname, hosts.c.enabled, hosts.c.disabled_reason, hosts.c.forced_down,
    hosts.c.vcpus, hosts.c.ram_mb, hosts.c.disk_gb, hosts.c.incarnation,
    hosts.c.seen, hosts.c.seen_wall, hosts.c.created_wall,
    hosts.c.facts, hosts.c.unknown,
).where(hosts.c.struck_wall.is_(None)).order_by(hosts.c.hostname)  # fmt: skip
_USED = sa.select(
    placements.c.host_id,
    sa.func.sum(placements.c.vcpus).label("used_vcpus"),
    sa.func.sum(placements.c.ram_mb).label("used_ram_mb"),
    sa.func.sum(placements.c.disk_gb).label("used_disk_gb"),
).group_by(placements.c.host_id)
_GUESTS = (
    sa.select(placements.c.host_id, servers.c.id, servers.c.name)
    .join(servers, servers.c.id == placements.c.server_id)
    .where(placements.c.state == "live")
    .order_by(servers.c.created_wall, servers.c.id)
)


def list_hosts(tx: Tx) -> Hosts:
    """All hosts with what they carry: three statements however many."""
    used: dict[str, dict[str, Any]] = {
        row.host_id: {key: int(row._mapping[key]) for key in ("used_vcpus", "used_ram_mb", "used_disk_gb")}
        for row in tx.execute(_USED)
    }
    guests: dict[str, list[Guest]] = {}
    for row in tx.execute(_GUESTS):
        guests.setdefault(row.host_id, []).append(Guest(row.id, row.name))
    rows = tuple(
        _host(row, used.get(row.id, {}), tuple(guests.get(row.id, ()))) for row in tx.execute(_COLUMNS)
    )
    return Hosts(rows, tx.now)


def _host(row: Any, used: dict[str, Any], guests: tuple[Guest, ...]) -> HostRow:
    values = dict(row._mapping)
    # A host that was let in and never registered has said nothing of itself.
    values["facts"] = readable.read(_facts, row.facts, None) if row.incarnation > 0 else None
    values["unknown"] = readable.read(_unknown, row.unknown, ())
    return HostRow(**values, **used, guests=guests)


def enable_host(tx: Tx, host_id: str, *, enabled: bool, reason: str | None) -> Hosts:
    """Whether new servers may come to a host. What runs there is not touched."""
    done = tx.execute(
        sa.update(hosts).where(hosts.c.id == host_id).values(enabled=enabled, disabled_reason=reason)
    )
    if done.rowcount != 1:
        raise NotFound(f"Service {host_id} could not be found.")
    found = list_hosts(tx)
    return Hosts(tuple(row for row in found.rows if row.id == host_id), found.now)
