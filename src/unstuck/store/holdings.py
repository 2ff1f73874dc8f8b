"""What a host says it holds, compared with what the store knows; what the store had lost is adopted.

A host says it whenever the store may have been put back (a new session), before it hears what is wanted of
it. Where both agree nothing is written. Nothing here ever makes a host remove or end anything.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.agents import Holding, Holdings, Told
from unstuck.core.generation import Dispute
from unstuck.core.server.data import Observation, Power, Server, Step, Thing, Unclear
from unstuck.store.adoption import adopt_size, adopt_unknown, grant_again
from unstuck.store.agents import check_incarnation, notice_host, terms
from unstuck.store.generation import recovery, rise
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, judge, load_server, lock_host, release_room
from unstuck.store.schema.compute import hosts, placements, servers
from unstuck.store.tx import Tx

_ON_HOST = Prepared(
    sa.select(
        servers.c.id, servers.c.intent, servers.c.edge, servers.c.deleted, servers.c.disputed,
        servers.c.disk_id, servers.c.replaced, servers.c.seen_incarnation, servers.c.seen_sequence,
        placements.c.epoch, placements.c.nonce, placements.c.state,
    )
    .join(placements, placements.c.server_id == servers.c.id)
    .where(placements.c.host_id == sa.bindparam("host"))
)  # fmt: skip
_HAS_TOLD = Prepared(
    sa.update(hosts)
    .where(hosts.c.id == sa.bindparam("host"))
    .values(told=sa.bindparam("generation"), told_session=sa.bindparam("session"))
)
_DISPUTE = Prepared(
    sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(disputed=sa.bindparam("kind"))
)
_SEEN = Prepared(
    sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(seen=sa.bindparam("observation"))
)
_ADOPT_NONCE = Prepared(
    sa.update(placements)
    .where(placements.c.server_id == sa.bindparam("server"), placements.c.state == "live")
    .values(nonce=sa.bindparam("name"))
)
_NOT_FAILED = Prepared(sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(failure=None))
_UNSHELVE = Prepared(sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(shelved=None))
_ADOPT_INTENT = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        power=sa.bindparam("on_off"), intent=sa.bindparam("number"), edge=sa.bindparam("least_edge"),
    )
)  # fmt: skip


def tell(tx: Tx, host_id: str, given: Holdings) -> Told:
    """Take what a host holds. Raises :class:`Superseded`, :class:`Behind`, :class:`UnknownHost`."""
    notice_host(tx, host_id, given.mark)
    check_incarnation(tx, host_id, given.incarnation)
    if not given.complete:
        return Told(terms(tx), again=recovery(tx) is not None)
    held = {item.server_id: item for item in given.held}
    if recovery(tx) is None:
        found = _evidence(tx, host_id, held)
        if found is not None:
            rise(tx, f"host {host_id} {found}")
    lock_host(tx, host_id)
    if recovery(tx) is not None:
        _reconcile(tx, host_id, given, held)
    _HAS_TOLD.run(tx, host=host_id, generation=terms(tx).generation, session=tx.session)
    return Told(terms(tx))


def _rows(tx: Tx, host_id: str) -> dict[str, Any]:
    """By server, what the store gave to the host; a live placement counts before a tombstone."""
    rows: dict[str, Any] = {}
    for row in _ON_HOST.all(tx, host=host_id):
        if row.id not in rows or row.state == "live":
            rows[row.id] = row
    return rows


def _evidence(tx: Tx, host_id: str, held: dict[str, Holding]) -> str | None:
    """What shows that the store has lost something, in words; marks may have been lost with a host's disk."""
    rows = _rows(tx, host_id)
    for item in held.values():
        row = rows.get(item.server_id)
        if item.fence is None or (row is not None and _agrees(row, item)):
            continue
        if row is not None:
            return f"holds a later grant or start of {item.server_id} than the store knows"
        loaded = load_server(tx, item.server_id)
        if loaded is None or not loaded.server.removed:
            return f"holds {item.server_id}, which the store did not give to it"
    return None


def _agrees(row: Any, item: Holding) -> bool:
    """The host has what the store gave it, and no more than that."""
    assert item.fence is not None
    if row.state == "tombstone" or (row.deleted and row.disputed is None):
        return True  # it is wanted gone, whatever is left of it
    if item.nonce != row.nonce and f'"{item.nonce}"' in row.replaced:
        return True  # a rebuild that the host has not begun: its grant still names the old disk
    named_alike = item.nonce == row.nonce or (row.disk_id is not None and item.fence.epoch <= row.epoch)
    return named_alike and item.edge <= row.intent


def _reconcile(tx: Tx, host_id: str, given: Holdings, held: dict[str, Holding]) -> None:
    rows = _rows(tx, host_id)
    for server_id, item in held.items():
        row = rows.get(server_id)
        if row is not None and _newer(row, given):
            continue
        if row is not None and (item.fence is None or _agrees(row, item)):
            if item.disk is Thing.ABSENT:
                _missing(tx, host_id, row)
        elif item.fence is not None:
            _adopt(tx, host_id, item)
    for server_id, row in rows.items():
        if server_id not in held and not _newer(row, given):
            _missing(tx, host_id, row)


def _newer(row: Any, given: Holdings) -> bool:
    """The host has reported this server since it looked at what it holds."""
    return bool((row.seen_incarnation, row.seen_sequence) > (given.incarnation, given.sequence))


def _missing(tx: Tx, host_id: str, row: Any) -> None:
    """The disk was made and is not there: shown, never made again, and settled by an operator."""
    if row.state != "live" or row.deleted or row.disk_id is None or row.disputed is not None:
        return
    _DISPUTE.run(tx, server=row.id, kind=Dispute.MISSING.value)
    # What was seen before the store was set back is not so any more; the host's own report comes next.
    seen = Observation(row.intent, Unclear("its host has no disk of it"), Thing.ABSENT, Step.WAITING)
    _SEEN.run(tx, server=row.id, observation=msgspec.json.encode(seen).decode())
    bump_world(tx, host_id, row.id)
    judge(tx, row.id)


def _adopt(tx: Tx, host_id: str, item: Holding) -> None:
    """The host knows more than the store: what it has is what counts."""
    loaded = load_server(tx, item.server_id, lock=True)
    if loaded is None:
        adopt_unknown(tx, host_id, item)
        return
    server = loaded.server
    if server.removed:
        return  # reported as unknown by the heartbeat, and left alone
    if server.place is None:
        # Also where its user has deleted it meanwhile: then this host is told to remove it.
        grant_again(tx, host_id, server.id, item, recorded=item.disk is not Thing.ABSENT)
        _NOT_FAILED.run(tx, server=server.id)
    elif server.place.host_id != host_id:
        return  # another host has it; reported by the heartbeat, and left alone
    elif server.place.nonce != item.nonce and (not server.disk_recorded or _rebuilt(server, item)):
        _ADOPT_NONCE.run(tx, server=server.id, name=item.nonce)
    _adopt_edge(tx, server, item)
    bump_world(tx, host_id, server.id)
    judge(tx, server.id)


def _rebuilt(server: Server, item: Holding) -> bool:
    """The store has lost a rebuild: the disk that is there is the one of a later request."""
    return item.disk is Thing.PRESENT and item.edge > server.intent


def _adopt_edge(tx: Tx, server: Server, item: Holding) -> None:
    """The guest was started by a request that the store has lost: no restart, and later ones get higher
    numbers."""
    if item.edge <= server.intent:
        return
    power = server.power if item.guest is Thing.ABSENT else Power.ON
    if power is Power.ON and server.shelved is not None:
        _UNSHELVE.run(tx, server=server.id)
        release_room(tx, server.id)  # it runs, so it has the room
    _ADOPT_INTENT.run(tx, server=server.id, on_off=power.value, number=item.edge, least_edge=item.edge)
    if item.spec is not None:
        adopt_size(tx, server.id, item.spec)
