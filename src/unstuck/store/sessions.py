"""Whether hosts have said what they hold since the store was opened: it may be a copy that nobody noticed.

Where the control plane's own record was put back together with the store, only hosts can tell. What is
decided before they have spoken must not have any effect on a host: it can still be taken back.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.core.generation import PATIENCE, Awaited, awaited_until
from unstuck.store.clock import clock_row
from unstuck.store.prepared import Prepared
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import hosts
from unstuck.store.tx import Tx

_BEGIN = Prepared(sa.update(clock).values(session=sa.bindparam("current"), session_since=clock.c.lease))
_SILENT = Prepared(
    sa.select(hosts.c.hostname, hosts.c.seen)
    .where(
        hosts.c.enabled,
        sa.not_(hosts.c.forced_down),
        sa.or_(hosts.c.told_session.is_(None), hosts.c.told_session != sa.bindparam("current")),
    )
    .order_by(hosts.c.hostname)
)
_TOLD = Prepared(sa.select(hosts.c.told_session).where(hosts.c.id == sa.bindparam("host")))


def begin_session(tx: Tx) -> None:
    """Write down since when this session lasts, by the clock's last tick; once per session."""
    if clock_row(tx).session != tx.session:
        _BEGIN.run(tx, current=tx.session)


def awaited(tx: Tx) -> Awaited | None:
    """The hosts that have not said what they hold in this session and are still waited for.

    Nobody waits for longer than a host may be silent before it is away: one that died together with the
    control plane must not hold up a cloud.
    """
    row, now = clock_row(tx), tx.now.lease
    began = row.session_since if row.session == tx.session else now
    if now >= began + PATIENCE:
        return None
    silent = [
        (host.hostname, awaited_until(host.seen, began)) for host in _SILENT.all(tx, current=tx.session)
    ]
    waiting = [(name, until) for name, until in silent if now < until]
    if not waiting:
        return None
    return Awaited(tuple(name for name, _ in waiting), max(until for _, until in waiting))


def has_told(tx: Tx, host_id: str) -> bool:
    """The host has said in this session what it holds: only then it is given anything."""
    return bool(_TOLD.scalar(tx, host=host_id) == tx.session)
