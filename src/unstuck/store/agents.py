"""What host agents ask of the store. Every write is fenced by incarnation, sequence and grant (law 5)."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.agents import PROTOCOL, Ask, Claim, Heartbeat, Register, Registered, Report, Terms, World
from unstuck.core.console import SERIAL
from unstuck.core.generation import Mark, Relation, relation
from unstuck.core.server.control import IMAGE_FAILED, STALL, Outcome
from unstuck.core.server.data import (
    Fence,
    Flavor,
    Observation,
    Off,
    OperationKind,
    Paused,
    Power,
    Running,
    Server,
    Spec,
    Step,
    Thing,
    Unclear,
    Want,
)
from unstuck.store import readable
from unstuck.store.archive_moments import note_silence
from unstuck.store.asks import GUEST
from unstuck.store.clock import clock_row, generation
from unstuck.store.engine import Tx
from unstuck.store.generation import Behind, notice, recovery, rise
from unstuck.store.instance_want import database_want
from unstuck.store.prepared import Prepared
from unstuck.store.rows import REPLACED, bump_world, close_operation, judge, load_server, lock_host
from unstuck.store.schema.compute import asks, hosts, operations, placements, servers
from unstuck.store.schema.network import ports
from unstuck.store.servers import LEASE, finish_delete_locked

HEARTBEAT = 5.0
RESIZE_PATIENCE = 60.0
"""Seconds for a guest that gets another flavor to power itself off."""
_ASKED_FIRST = (OperationKind.STOP, OperationKind.REBOOT, OperationKind.SHELVE)
_STILL = (OperationKind.PAUSE, OperationKind.SUSPEND)

_spec = msgspec.json.Decoder(Spec)
_NO_SPEC = Spec("", "", "", "", Flavor(0, 0, 0), ())


class Superseded(Exception):
    """A newer incarnation of this agent has registered: the caller must end (409)."""


class UnknownHost(Exception):
    """No host has this credential (401)."""


class Stale(Exception):
    """The grant or the report is older than what the store has; the caller forgets it (410)."""


def terms(tx: Tx) -> Terms:
    return Terms(*generation(tx), tx.session)


def add_host(tx: Tx, *, host_id: str, hostname: str, secret_hash: str, machine_id: str) -> None:
    """Let a host in. Repeating it with the same credential changes nothing."""
    if tx.execute(sa.select(hosts.c.id).where(hosts.c.id == host_id)).first() is not None:
        return
    now = tx.now
    tx.execute(
        sa.insert(hosts).values(
            id=host_id,
            hostname=hostname,
            secret_hash=secret_hash,
            machine_id=machine_id,
            created_wall=now.wall,
            enabled=True,
            forced_down=False,
            vcpus=0,
            ram_mb=0,
            disk_gb=0,
            facts="{}",
            no_networks="",
            unknown="[]",
            version=0,
            incarnation=0,
            sequence=0,
            seen=now.lease,
            seen_wall=now.wall,
            told=0,
        )
    )


def authenticate_host(tx: Tx, host_id: str, secret_hash: str) -> None:
    """Raises :class:`UnknownHost` unless the credential is this host's."""
    query = sa.select(hosts.c.id).where(
        hosts.c.id == host_id, hosts.c.secret_hash == secret_hash, hosts.c.struck_wall.is_(None)
    )
    if tx.execute(query).first() is None:
        raise UnknownHost(host_id)


_REGISTRATION = Prepared(
    sa.select(hosts.c.incarnation, hosts.c.start_token).where(
        hosts.c.id == sa.bindparam("host"), hosts.c.struck_wall.is_(None)
    )
)
_END_LEASES = Prepared(
    sa.update(servers)
    .where(
        servers.c.id.in_(
            sa.select(placements.c.server_id).where(placements.c.host_id == sa.bindparam("host"))
        ),
        servers.c.lease_incarnation.is_not(None),
    )
    .values(lease_incarnation=None, work_deadline=None)
)
_REGISTER = Prepared(
    sa.update(hosts)
    .where(hosts.c.id == sa.bindparam("host"))
    .values(
        facts=sa.bindparam("facts_now"),
        no_networks=sa.bindparam("why_no_networks"),
        vcpus=sa.bindparam("cpus"),
        ram_mb=sa.bindparam("memory"),
        disk_gb=sa.bindparam("disk"),
        seen=sa.bindparam("lease_now"),
        seen_wall=sa.bindparam("wall_now"),
        incarnation=sa.bindparam("number"),
        start_token=sa.bindparam("start"),
        sequence=0,
    )
)


def register(tx: Tx, host_id: str, ask: Register) -> Registered:
    """A new incarnation, by compare-and-swap; it ends all leases of earlier ones in this transaction.

    Found by the simulator (seed 812): without the swap a late copy of an earlier agent's registration
    made a new incarnation that nobody was, and the living agent gave way to it.
    """
    notice_host(tx, host_id, ask.mark)
    lock_host(tx, host_id)
    row = _REGISTRATION.first(tx, host=host_id)
    if row is None:
        raise UnknownHost(host_id)
    lost = 0 if ask.mark is None else ask.mark.incarnation
    granted = row.start_token == ask.start and lost <= row.incarnation
    number = row.incarnation
    if not granted and ask.after == row.incarnation:
        # Above every number that was ever given, also by a store that has forgotten it.
        granted, number = True, max(row.incarnation, lost) + 1
        note_silence(tx, host_id)
        _END_LEASES.run(tx, host=host_id)
        _REGISTER.run(
            tx,
            host=host_id,
            facts_now=msgspec.json.encode(ask.facts).decode(),
            why_no_networks=ask.facts.no_networks,
            cpus=ask.facts.vcpus,
            memory=ask.facts.ram_mb,
            disk=ask.facts.disk_gb,
            lease_now=tx.now.lease,
            wall_now=tx.now.wall,
            number=number,
            start=ask.start,
        )
    return Registered(
        number, granted=granted, heartbeat=HEARTBEAT, lease=LEASE, terms=terms(tx), protocol=PROTOCOL
    )


_BEAT = Prepared(
    sa.update(hosts)
    .where(
        hosts.c.id == sa.bindparam("host"),
        hosts.c.incarnation == sa.bindparam("by"),
        hosts.c.sequence < sa.bindparam("number"),
    )
    .values(
        seen=sa.bindparam("lease_now"),
        seen_wall=sa.bindparam("wall_now"),
        sequence=sa.bindparam("number"),
        unknown=sa.bindparam("found"),
        skew=sa.bindparam("differs", type_=sa.Double),
    )
)
_HOST_MARK = Prepared(
    sa.select(hosts.c.version, hosts.c.incarnation).where(hosts.c.id == sa.bindparam("host"))
)


def notice_host(tx: Tx, host_id: str, heard: Mark | None) -> None:
    """Raise the generation if the host has heard the store go further than it is. Before any other lock."""
    if heard is None or notice(tx, heard, f"host {host_id}"):
        return
    row, store = _HOST_MARK.first(tx, host=host_id), clock_row(tx)
    if row is None:
        return
    mine = Mark(store.generation, store.generation_id, store.tick, row.version, row.incarnation)
    if relation(mine, heard) is not Relation.FITS:
        rise(tx, f"host {host_id} heard of version {heard.version} and incarnation {heard.incarnation} of it")


def heartbeat(tx: Tx, host_id: str, beat: Heartbeat) -> Terms:
    """One write renews every lease of the host: they are judged by its row. A late one changes nothing."""
    notice_host(tx, host_id, beat.mark)
    now = tx.now
    done = _BEAT.run(
        tx,
        host=host_id,
        by=beat.incarnation,
        number=beat.sequence,
        lease_now=now.lease,
        wall_now=now.wall,
        found=msgspec.json.encode(beat.unknown).decode(),
        differs=None if beat.wall is None else beat.wall - now.wall,
    )
    if done != 1:
        check_incarnation(tx, host_id, beat.incarnation)
    return terms(tx)


_INCARNATION = Prepared(sa.select(hosts.c.incarnation).where(hosts.c.id == sa.bindparam("host")))
_HOLD_INCARNATION = Prepared(
    sa.select(hosts.c.incarnation).where(hosts.c.id == sa.bindparam("host")).with_for_update(read=True)
)


def check_incarnation(tx: Tx, host_id: str, incarnation: int, *, hold: bool = False) -> None:
    """Raises :class:`Superseded`; :class:`Behind` for a number that the store has never given, or lost.

    ``hold``: no other incarnation registers before this transaction ends. Without it a claim and a
    registration at once left a lease to an agent that was superseded (a barrier test on PostgreSQL).
    """
    query = _HOLD_INCARNATION if hold else _INCARNATION
    current = query.scalar(tx, host=host_id)
    if current is None:
        raise UnknownHost(host_id)
    if current < incarnation:
        raise Behind(
            f"host {host_id} has incarnation {incarnation}, and the store has heard of {current} only"
        )
    if current != incarnation:
        raise Superseded(f"incarnation {incarnation} of host {host_id} was superseded by {current}")


_WANTS = Prepared(
    sa.select(
        servers.c.id,
        servers.c.spec,
        servers.c.power,
        servers.c.intent,
        servers.c.edge,
        servers.c.edge_soft,
        servers.c.mark,
        servers.c.deleted,
        servers.c.disputed,
        servers.c.disk_id,
        servers.c.replaced,
        servers.c.capture,
        servers.c.world_version,
        placements.c.generation,
        placements.c.epoch,
        placements.c.nonce,
        placements.c.state,
        operations.c.kind,
        operations.c.since,
        operations.c.deadline,
    )
    .join(placements, placements.c.server_id == servers.c.id)
    .outerjoin(operations, sa.and_(operations.c.resource_id == servers.c.id, operations.c.state == "open"))
    .where(placements.c.host_id == sa.bindparam("host"), servers.c.world_version > sa.bindparam("since"))
)
_IDS = Prepared(sa.select(placements.c.server_id).where(placements.c.host_id == sa.bindparam("host")))
_ASKS = Prepared(
    sa.select(asks.c.id, asks.c.server_id, asks.c.kind, asks.c.argument, asks.c.deadline).where(
        asks.c.host_id == sa.bindparam("host"), asks.c.answer.is_(None)
    )
)
_VERSION = Prepared(sa.select(hosts.c.version).where(hosts.c.id == sa.bindparam("host")))
_CLAIM = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"), sa.not_(servers.c.settled))
    .values(lease_incarnation=sa.bindparam("owner"), work_deadline=sa.bindparam("limit"))
)
_STATE = Prepared(
    sa.select(placements.c.state).where(
        placements.c.server_id == sa.bindparam("server"),
        placements.c.host_id == sa.bindparam("host"),
        placements.c.generation == sa.bindparam("in_generation"),
        placements.c.epoch == sa.bindparam("at_epoch"),
    )
)
_OBSERVE = Prepared(
    sa.update(servers)
    .where(
        servers.c.id == sa.bindparam("server"),
        sa.or_(
            servers.c.seen_incarnation < sa.bindparam("by"),
            sa.and_(
                servers.c.seen_incarnation == sa.bindparam("by"),
                servers.c.seen_sequence < sa.bindparam("number"),
            ),
        ),
    )
    .values(
        seen=sa.bindparam("observation"),
        seen_at=sa.bindparam("lease_now"),
        seen_wall=sa.bindparam("wall_now"),
        updated_wall=sa.bindparam("wall_now"),
        seen_incarnation=sa.bindparam("by"),
        seen_sequence=sa.bindparam("number"),
        disk_id=sa.func.coalesce(servers.c.disk_id, sa.bindparam("disk", type_=sa.String)),
        launched_wall=sa.func.coalesce(servers.c.launched_wall, sa.bindparam("launched", type_=sa.Double)),
        lease_incarnation=sa.bindparam("owner"),
        work_deadline=sa.bindparam("limit"),
    )
)


def world_version(tx: Tx, host_id: str, incarnation: int) -> tuple[int, bool]:
    """The version of a host's world, and whether a question waits for it. Raises :class:`Superseded`."""
    check_incarnation(tx, host_id, incarnation)
    version = _version(tx, host_id)
    return version, _ASKS.first(tx, host=host_id) is not None


def _version(tx: Tx, host_id: str) -> int:
    return int(_VERSION.scalar(tx, host=host_id))


_TOLD = Prepared(sa.select(hosts.c.told).where(hosts.c.id == sa.bindparam("host")))


def world(tx: Tx, host_id: str, incarnation: int, since: int, history: str = "") -> World:
    """What changed for the host since ``since``; everything, where that is not of this history.

    Raises :class:`Behind` where the host has to say first what it holds: what the store wants of it may
    be older than what runs there.
    """
    check_incarnation(tx, host_id, incarnation)
    version = _version(tx, host_id)
    now_terms = terms(tx)
    if history and history != now_terms.history:
        since = -1
    if since > version:
        raise Behind(f"host {host_id} has heard of version {since} of its world, the store is at {version}")
    if recovery(tx) is not None and _TOLD.scalar(tx, host=host_id) < now_terms.generation:
        raise Behind(f"the store was set back; host {host_id} has to say first what it holds")
    rows = _WANTS.all(tx, host=host_id, since=since)
    questions = _ASKS.all(tx, host=host_id)
    return World(
        version=version,
        ids=tuple(_IDS.scalars(tx, host=host_id)),
        wants=tuple(want for row in rows if (want := _want(tx, row)) is not None),
        asks=tuple(_ask(q, tx.now.lease) for q in questions),
        terms=now_terms,
    )


def _ask(row: Any, now: float) -> Ask:
    if row.kind in (GUEST, SERIAL):
        left = max(row.deadline - now, 0.0)
        return Ask(row.id, row.server_id, row.kind, None, argument=row.argument, seconds=left)
    return Ask(row.id, row.server_id, row.kind, msgspec.json.decode(row.argument, type=int | None))


def _want(tx: Tx, row: Any) -> Want | None:
    """What is wanted of one server. None: its spec cannot be read, so its host goes on with what it knows.

    To stop or to remove it needs no spec, so that these always get through.
    """
    lease, patience = tx.now.lease, 0.0
    # The delete of what is in dispute is held until an operator has settled it.
    gone = (row.deleted and row.disputed is None) or row.state == "tombstone"
    spec = readable.read(_spec, row.spec, _NO_SPEC)
    if spec is _NO_SPEC and not gone and row.power != Power.OFF:
        return None
    if row.deadline is not None and row.kind in _ASKED_FIRST:
        patience = max(row.deadline - lease, 0.0)
    elif row.kind in (OperationKind.RESIZE, OperationKind.REVERT):
        patience = max(row.since + RESIZE_PATIENCE - lease, 0.0)
    return Want(
        server_id=row.id,
        fence=Fence(row.generation, row.epoch),
        nonce=row.nonce,
        version=row.world_version,
        intent=row.intent,
        power=Power(row.power),
        edge=row.edge,
        soft=row.edge_soft,
        patience=patience,
        gone=gone,
        disk_recorded=row.disk_id is not None,
        spec=spec,
        mark=row.mark,
        replaced=() if row.replaced == "[]" else readable.read(REPLACED, row.replaced, ()),
        capture=row.capture or "",
        database=database_want(tx, row.id, spec) if spec.data and not gone else None,
    )


def claim(tx: Tx, host_id: str, ask: Claim) -> None:
    """Running work gets its owner and its deadline (law 2). Raises :class:`Stale`, :class:`Superseded`."""
    check_incarnation(tx, host_id, ask.incarnation, hold=True)
    state = placement_state(tx, host_id, ask.server_id, ask.fence)
    if state == "tombstone":
        return
    if _CLAIM.run(tx, server=ask.server_id, owner=ask.incarnation, limit=tx.now.lease + STALL):
        judge(tx, ask.server_id, locked=True)


def placement_state(tx: Tx, host_id: str, server_id: str, fence: Fence) -> str:
    """``live`` or ``tombstone``; raises :class:`Stale` for a grant that the host does not have."""
    """``live`` or ``tombstone``. Raises :class:`Stale` where the server is not the host's at this grant."""
    state = _STATE.scalar(
        tx, server=server_id, host=host_id, in_generation=fence.generation, at_epoch=fence.epoch
    )
    if state is None:
        raise Stale(f"server {server_id} is not granted to host {host_id} at {fence}")
    return str(state)


def report(tx: Tx, host_id: str, ask: Report) -> None:
    """Take what a host sees of one server. Late, repeated and reordered reports change nothing.

    Raises :class:`Superseded` and :class:`Stale`.
    """
    seen = ask.observation
    if isinstance(seen.guest, Off) or seen.step is Step.REMOVED or _ends_something(seen):
        lock_host(tx, host_id)  # these decide on more than the server's own row
    check_incarnation(tx, host_id, ask.incarnation, hold=True)
    if placement_state(tx, host_id, ask.server_id, ask.fence) == "tombstone":
        if seen.step is Step.REMOVED:
            _clear_tombstone(tx, host_id, ask)
        return
    loaded = load_server(tx, ask.server_id, lock=True)
    assert loaded is not None
    if not _write_observation(tx, loaded.server, ask):
        return
    if isinstance(seen.guest, Off):
        _respect_power_off(tx, host_id, loaded.server, seen)
    if seen.step is Step.REMOVED and loaded.server.deleted:
        finish_delete_locked(tx, loaded.server, tombstone=False)
        return
    judge(tx, ask.server_id, locked=True)


def _ends_something(seen: Observation) -> bool:
    """An operation fails by it, and with it the image that was to be made."""
    return seen.trouble is not None and (seen.trouble.final or seen.trouble.code == IMAGE_FAILED)


def _write_observation(tx: Tx, server: Server, ask: Report) -> bool:
    """Write it if it is newer than what is there, by (incarnation, sequence) as a pair."""
    now, seen = tx.now, ask.observation
    if isinstance(seen.guest, Unclear) and server.seen is not None:
        # Unknown is never a worse status (law 4): what was seen last stands, with the trouble beside it.
        last = server.seen
        seen = msgspec.structs.replace(seen, guest=last.guest, intent=last.intent, memory=last.memory)
    working = server.lease_incarnation is not None
    written = _OBSERVE.run(
        tx,
        server=ask.server_id,
        by=ask.incarnation,
        number=ask.sequence,
        observation=msgspec.json.encode(seen).decode(),
        lease_now=now.lease,
        wall_now=now.wall,
        disk=ask.disk_id if _is_wanted(server, ask.disk_id) else None,
        launched=now.wall if isinstance(seen.guest, Running | Paused | Off) else None,
        owner=ask.incarnation if working else None,
        limit=now.lease + STALL if working else None,
    )
    return written == 1


def _is_wanted(server: Server, disk_id: str | None) -> bool:
    """Whether a disk is the one that is wanted now: a late report may record one that a rebuild replaced."""
    return disk_id is not None and server.place is not None and disk_id.endswith(f".{server.place.nonce}")


def _respect_power_off(tx: Tx, host_id: str, server: Server, seen: Observation) -> None:
    """The guest powered itself off: that is what its user wants now, unless they said otherwise since."""
    assert isinstance(seen.guest, Off)
    obeys = server.power is not Power.OFF and seen.intent == server.intent and seen.guest.edge >= server.edge
    if not obeys or server.deleted or seen.disk is not Thing.PRESENT:
        return
    now = tx.now
    number = server.intent + 1
    if server.operation is not None and server.operation.kind in _STILL:
        close_operation(tx, server.operation.id, Outcome("failed", "the guest powered itself off first"))
    owner = tx.execute(
        sa.select(servers.c.user_id, servers.c.project_id).where(servers.c.id == server.id)
    ).one()
    tx.execute(
        sa.insert(operations).values(
            id=f"{server.id}.power-off.{number}",
            resource_kind="server",
            resource_id=server.id,
            kind=OperationKind.STOP.value,
            edge=server.edge,
            soft=False,
            state="done",
            reason="the guest powered itself off",
            request_id=f"req-{server.id}"[:36] + f"-{number}",
            user_id=owner.user_id,
            project_id=owner.project_id,
            host=server.host.hostname if server.host else None,
            since=now.lease,
            started_wall=now.wall,
            finished_wall=now.wall,
        )
    )
    tx.execute(
        sa.update(servers).where(servers.c.id == server.id).values(power=Power.OFF.value, intent=number)
    )
    bump_world(tx, host_id, server.id)


def _clear_tombstone(tx: Tx, host_id: str, ask: Report) -> None:
    """The host was seen without it: its addresses and its room are free again."""
    tx.execute(
        sa.delete(placements).where(
            placements.c.server_id == ask.server_id,
            placements.c.host_id == host_id,
            placements.c.generation == ask.fence.generation,
            placements.c.epoch == ask.fence.epoch,
            placements.c.state == "tombstone",
        )
    )
    rest = tx.execute(sa.select(placements.c.epoch).where(placements.c.server_id == ask.server_id)).first()
    gone = tx.execute(sa.select(servers.c.removed).where(servers.c.id == ask.server_id)).scalar_one()
    if rest is None and gone:  # one that waits to be placed anew keeps its address
        tx.execute(sa.delete(ports).where(ports.c.server_id == ask.server_id))


def answer_ask(tx: Tx, host_id: str, incarnation: int, ask_id: str, text: str) -> None:
    """Take the answer to a question; one that nobody waits for any more is dropped."""
    check_incarnation(tx, host_id, incarnation)
    tx.execute(
        sa.update(asks)
        .where(asks.c.id == ask_id, asks.c.host_id == host_id, asks.c.answer.is_(None))
        .values(answer=text)
    )
