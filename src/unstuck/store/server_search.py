"""Lists of servers: what rows can decide is decided in SQL, what is derived is decided after it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Invalid
from unstuck.core.server.names import is_literal, name_filter
from unstuck.core.server.status import Status, status
from unstuck.core.time import Now
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import hosts, placements, servers
from unstuck.store.server_lists import COLUMNS, ServerItem, addresses_of, item_from

SORTABLE: Final[dict[str, sa.ColumnElement[Any]]] = {
    "created_at": servers.c.created_wall,
    "updated_at": servers.c.updated_wall,
    "launched_at": sa.func.coalesce(servers.c.launched_wall, 0.0),
    "terminated_at": sa.func.coalesce(servers.c.removed_wall, 0.0),
    "display_name": servers.c.name,
    "name": servers.c.name,
    "display_description": sa.func.coalesce(servers.c.description, ""),
    "uuid": servers.c.id,
    "user_id": servers.c.user_id,
    "project_id": servers.c.project_id,
    "image_ref": servers.c.image_id,
    "instance_type_id": servers.c.flavor_id,
    "key_name": sa.func.coalesce(servers.c.key_name, ""),
    "launch_index": servers.c.launch_index,
    "availability_zone": sa.func.coalesce(servers.c.requested_zone, ""),
    "access_ip_v4": servers.c.access_ipv4,
    "access_ip_v6": servers.c.access_ipv6,
    "host": sa.func.coalesce(hosts.c.hostname, ""),
    "node": sa.func.coalesce(hosts.c.hostname, ""),
}
EQUAL: Final[dict[str, sa.ColumnElement[Any]]] = {
    "image": servers.c.image_id,
    "flavor": servers.c.flavor_id,
    "key_name": servers.c.key_name,
    "uuid": servers.c.id,
    "reservation_id": servers.c.reservation_id,
    "user_id": servers.c.user_id,
    "host": hosts.c.hostname,
    "description": servers.c.description,
    "launch_index": servers.c.launch_index,
    "config_drive": servers.c.config_drive,
    "access_ip_v4": servers.c.access_ipv4,
    "access_ip_v6": servers.c.access_ipv6,
}

_SOURCE = servers.outerjoin(
    placements, sa.and_(placements.c.server_id == servers.c.id, placements.c.state == "live")
).outerjoin(hosts, hosts.c.id == placements.c.host_id)


def _named(columns: list[str]) -> Any:
    """A named tuple for rows: reading sixty columns by name takes a fifth of what SQLAlchemy's row takes."""
    return namedtuple("Row", columns)


_Row = _named([str(column.key) for column in COLUMNS.selected_columns])


class ServerFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list is narrowed to. ``removed``: None is both kinds. Sets are alternatives."""

    project_id: str | None
    removed: bool | None = False
    equal: dict[str, Any] = {}
    locked: bool | None = None
    name: str | None = None
    changed_since: float | None = None
    changed_before: float | None = None
    statuses: frozenset[str] | None = None
    vm_states: frozenset[str] | None = None
    task_state: str | None = None
    power_state: int | None = None
    zone: str | None = None
    address: str | None = None
    hostname: str | None = None
    tags: frozenset[str] | None = None
    tags_any: frozenset[str] | None = None
    not_tags: frozenset[str] | None = None
    not_tags_any: frozenset[str] | None = None
    sort: tuple[tuple[str, bool], ...] = (("created_at", True),)
    limit: int = 1000
    marker: str | None = None


class Found(msgspec.Struct, frozen=True):
    """A page of servers, whether more follow, and the time they were looked at."""

    items: tuple[ServerItem, ...]
    more: bool
    now: Now


def search_servers(tx: Tx, wanted: ServerFilter) -> Found:
    """The page of servers that a list shows; raises :class:`Invalid` for a marker that never was."""
    query = COLUMNS.where(*_conditions(wanted))
    order = [*((SORTABLE[key], down) for key, down in wanted.sort), (servers.c.id, wanted.sort[-1][1])]
    if wanted.marker is not None:
        query = query.where(_after(order, _marker(tx, wanted, order)))
    query = query.order_by(*(column.desc() if down else column.asc() for column, down in order))
    check = _derived(wanted, tx.now)
    if check is None:
        query = query.limit(wanted.limit + 1)
    rows = [_Row._make(row) for row in tx.execute(query).all()]
    addresses = addresses_of(tx, [row.id for row in rows])
    items = [item_from(row, addresses.get(row.id, ())) for row in rows]
    if check is not None:
        items = [item for item in items if check(item)]
    page = tuple(items[: wanted.limit])
    return Found(page, len(items) > len(page) and bool(page), tx.now)


def _conditions(wanted: ServerFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if wanted.project_id is not None:
        found.append(servers.c.project_id == wanted.project_id)
    if wanted.removed is not None:
        found.append(servers.c.removed if wanted.removed else sa.not_(servers.c.removed))
    if wanted.locked is not None:
        found.append(servers.c.locked_by.is_not(None) if wanted.locked else servers.c.locked_by.is_(None))
    found += [EQUAL[key] == value for key, value in wanted.equal.items()]
    if wanted.name and is_literal(wanted.name):
        found.append(servers.c.name.icontains(wanted.name, autoescape=True))
    changed = sa.case(
        (servers.c.removed_wall > servers.c.updated_wall, servers.c.removed_wall),
        else_=servers.c.updated_wall,
    )
    if wanted.changed_since is not None:
        found.append(changed >= wanted.changed_since)
    if wanted.changed_before is not None:
        found.append(changed <= wanted.changed_before)
    return found


def _marker(tx: Tx, wanted: ServerFilter, order: list[tuple[Any, bool]]) -> tuple[Any, ...]:
    columns = (column.label(f"c{index}") for index, (column, _) in enumerate(order))
    query = sa.select(*columns).select_from(_SOURCE).where(servers.c.id == wanted.marker)
    if wanted.project_id is not None:
        query = query.where(servers.c.project_id == wanted.project_id)
    row = tx.execute(query).first()
    if row is None:
        raise Invalid(f"marker [{wanted.marker}] not found")
    return tuple(row)


def _after(order: list[tuple[Any, bool]], values: tuple[Any, ...]) -> sa.ColumnElement[bool]:
    """Rows that sort behind ``values``: behind in the first column, or equal there and behind in the rest."""
    (column, down), *rest = order
    behind = column < values[0] if down else column > values[0]
    if not rest:
        return sa.and_(behind)
    return sa.or_(behind, sa.and_(column == values[0], _after(rest, values[1:])))


def _derived(wanted: ServerFilter, now: Now) -> Callable[[ServerItem], bool] | None:
    """The check of everything that no column says, or None where there is none."""
    checks = [*_by_status(wanted, now), *_by_row(wanted)]
    if not checks:
        return None
    return lambda item: all(check(item) for check in checks)


def _by_status(wanted: ServerFilter, now: Now) -> list[Callable[[ServerItem], bool]]:
    def has(test: Callable[[Status], bool]) -> Callable[[ServerItem], bool]:
        return lambda item: test(status(item.facts, now))

    checks: list[Callable[[ServerItem], bool]] = []
    statuses, states = wanted.statuses, wanted.vm_states
    if statuses is not None:
        checks.append(has(lambda shown: shown.status in statuses))
    if states is not None:
        checks.append(has(lambda shown: shown.vm_state in states))
    if wanted.task_state is not None:
        checks.append(has(lambda shown: (shown.task_state or "") == wanted.task_state))
    if wanted.power_state is not None:
        checks.append(has(lambda shown: int(shown.power_state) == wanted.power_state))
    return checks


def _by_row(wanted: ServerFilter) -> list[Callable[[ServerItem], bool]]:
    checks: list[Callable[[ServerItem], bool]] = []
    if wanted.name and not is_literal(wanted.name):
        matches = name_filter(wanted.name)
        checks.append(lambda item: matches(item.name))
    if wanted.address is not None:
        fits = name_filter(wanted.address)
        checks.append(lambda item: any(fits(found.address) for found in item.addresses))
    if wanted.hostname is not None:
        checks.append(lambda item: item.spec.hostname == wanted.hostname)
    if wanted.zone is not None:
        checks.append(lambda item: zone_of(item) == wanted.zone)
    if wanted.tags is not None:
        checks.append(lambda item, tags=wanted.tags: tags <= set(item.tags))  # type: ignore[misc]
    if wanted.tags_any is not None:
        checks.append(lambda item, tags=wanted.tags_any: bool(tags & set(item.tags)))  # type: ignore[misc]
    if wanted.not_tags is not None:
        checks.append(lambda item, tags=wanted.not_tags: not tags <= set(item.tags))  # type: ignore[misc]
    if wanted.not_tags_any is not None:
        checks.append(lambda item, tags=wanted.not_tags_any: not tags & set(item.tags))  # type: ignore[misc]
    return checks


ZONE: Final = "nova"
"""The one availability zone, by the name that clients expect."""


def zone_of(item: ServerItem) -> str:
    """The zone of its host, or the one asked for while it has none."""
    return ZONE if item.host else (item.requested_zone or "").partition(":")[0]
