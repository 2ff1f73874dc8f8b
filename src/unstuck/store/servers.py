"""Servers: accept what users want, grant places, finish deletes. One function is one transaction."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict as Conflict
from unstuck.core.errors import NotFound as NotFound
from unstuck.core.server.control import AWAITED_RETRY, PLACE_RETRY, Outcome, away
from unstuck.core.server.data import (
    Failure,
    Flavor,
    ImageRole,
    Machine,
    OperationKind,
    Power,
    Server,
    Spec,
    Step,
)
from unstuck.core.server.status import shelf_state, status
from unstuck.core.time import Now
from unstuck.store import readable
from unstuck.store.clock import generation
from unstuck.store.engine import Tx
from unstuck.store.generation import may_change, may_place
from unstuck.store.prepared import Prepared
from unstuck.store.rows import (
    bump_world,
    close_operation,
    drop_capture,
    judge,
    load_server,
    lock_host,
)
from unstuck.store.schema.compute import hosts, operations, placements, servers
from unstuck.store.schema.database import instances
from unstuck.store.schema.network import ports
from unstuck.store.sessions import awaited, has_told
from unstuck.store.tx import in_turn

OPERATION_DEADLINE = {
    OperationKind.CREATE: 600.0,
    OperationKind.STOP: 60.0,
    OperationKind.START: 300.0,
    OperationKind.REBOOT: 120.0,
    OperationKind.PAUSE: 60.0,
    OperationKind.UNPAUSE: 60.0,
    OperationKind.SUSPEND: 300.0,
    OperationKind.RESUME: 300.0,
    OperationKind.REBUILD: 600.0,
    OperationKind.RESIZE: 300.0,
    OperationKind.REVERT: 300.0,
    OperationKind.SHELVE: 60.0,
    OperationKind.UNSHELVE: 300.0,
    OperationKind.IMAGE: 600.0,
    OperationKind.DELETE: 300.0,
}
"""Seconds until an operation counts as overdue; for stop, shelve, soft reboot, the guest's time to obey."""


REBOOT_OVERRIDES = frozenset(
    {
        OperationKind.REBOOT,
        OperationKind.PAUSE,
        OperationKind.UNPAUSE,
        OperationKind.SUSPEND,
        OperationKind.RESUME,
    }
)

LEASE = 30.0
"""Seconds that a host's word counts."""

_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)
_INSERT_SERVER = Prepared(sa.insert(servers))
_INSERT_OPERATION = Prepared(sa.insert(operations))
_INSERT_PLACEMENT = Prepared(sa.insert(placements))
_WANT = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        power=sa.bindparam("on_off"),
        intent=sa.bindparam("number"),
        edge=sa.bindparam("least_edge"),
        edge_soft=sa.bindparam("ask_first"),
        updated_wall=sa.bindparam("wall"),
    )
)
_DUE = Prepared(
    sa.select(servers.c.id)
    .where(sa.not_(servers.c.settled), servers.c.next_look <= sa.bindparam("now"))
    .order_by(servers.c.next_look)
    .limit(sa.bindparam("most"))
)
_TO_PLACE = Prepared(
    sa.select(
        servers.c.spec,
        servers.c.epoch,
        servers.c.deleted,
        servers.c.failure,
        sa.exists().where(ports.c.server_id == servers.c.id).label("network"),
    )
    .where(servers.c.id == sa.bindparam("server"))
    .with_for_update()
)
# Tells the host as well, of which the caller holds the row.
_GRANT = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        epoch=sa.bindparam("number"),
        world_version=sa.select(hosts.c.version).where(hosts.c.id == sa.bindparam("host")).scalar_subquery(),
    )
)
_USED = Prepared(
    sa.select(
        sa.func.coalesce(sa.func.sum(placements.c.vcpus), 0).label("vcpus"),
        sa.func.coalesce(sa.func.sum(placements.c.ram_mb), 0).label("ram_mb"),
        sa.func.coalesce(sa.func.sum(placements.c.disk_gb), 0).label("disk_gb"),
    ).where(placements.c.host_id == sa.bindparam("host"))
)
_CAPACITY = Prepared(
    sa.select(
        hosts.c.vcpus,
        hosts.c.ram_mb,
        hosts.c.disk_gb,
        hosts.c.enabled,
        hosts.c.forced_down,
        hosts.c.no_networks,
    ).where(hosts.c.id == sa.bindparam("host"))
)
# Host by host through the index: what lies on hosts that cannot be chosen is not summed up.
_ram = (
    sa.select(sa.func.coalesce(sa.func.sum(placements.c.ram_mb), 0))
    .where(placements.c.host_id == hosts.c.id)
    .scalar_subquery()
)
_FACTS = Prepared(sa.select(hosts.c.facts).where(hosts.c.id == sa.bindparam("host")))
_SET_SPEC = Prepared(
    sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(spec=sa.bindparam("made_of"))
)
_NEEDS = Prepared(
    sa.select(
        servers.c.requested_zone,
        servers.c.spec,
        sa.exists().where(ports.c.server_id == servers.c.id).label("network"),
    ).where(servers.c.id == sa.bindparam("server"))
)
_HOSTS_BY_ROOM = Prepared(
    sa.select(hosts.c.id, hosts.c.hostname, hosts.c.no_networks, hosts.c.facts)
    .where(
        hosts.c.enabled,
        sa.not_(hosts.c.forced_down),
        hosts.c.incarnation > 0,
        hosts.c.told_session == sa.bindparam("session"),
        hosts.c.seen > sa.bindparam("heard_since"),
    )
    .order_by((hosts.c.ram_mb - _ram).desc(), hosts.c.id)
)
# Where a tombstone of its own stands, what it left behind is removed first: two grants of one server to
# one host would be told to it as one.
_IS_HERE = Prepared(
    sa.select(placements.c.epoch).where(
        placements.c.server_id == sa.bindparam("server"), placements.c.host_id == sa.bindparam("host")
    )
)
_BURY = Prepared(
    sa.update(placements)
    .where(placements.c.server_id == sa.bindparam("server"), placements.c.state == "live")
    .values(state="tombstone")
)
_FREE_ROOM = Prepared(
    sa.delete(placements).where(
        placements.c.server_id == sa.bindparam("server"), placements.c.state == "live"
    )
)
# Not while another host, which it left, may still have something of it; one that was struck off is fenced.
_ELSEWHERE = (
    sa.select(placements.c.server_id)
    .join(hosts, hosts.c.id == placements.c.host_id)
    .where(placements.c.server_id == ports.c.server_id, hosts.c.struck_wall.is_(None))
)
_FREE_ADDRESSES = Prepared(
    sa.delete(ports).where(ports.c.server_id == sa.bindparam("server"), sa.not_(sa.exists(_ELSEWHERE)))
)
_REMOVED = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        removed=True,
        removed_wall=sa.bindparam("wall"),
        lease_incarnation=None,
        work_deadline=None,
        settled=True,
        next_look=None,
    )
)
# A database instance that waits for its server to be gone has its next look now.
_LOOK_AT_INSTANCE = Prepared(
    sa.update(instances)
    .where(instances.c.server_id == sa.bindparam("server"), sa.not_(instances.c.settled))
    .values(next_look=sa.bindparam("now"))
)
_ALL_DONE = Prepared(
    sa.update(operations)
    .where(operations.c.resource_id == sa.bindparam("server"), operations.c.state == "open")
    .values(state="done", finished_wall=sa.bindparam("wall"))
)


class Caller(msgspec.Struct, frozen=True):
    """Who asks: goes into the operation row. An administrator passes by locks."""

    request_id: str
    user_id: str
    project_id: str
    admin: bool = False


class NewServer(msgspec.Struct, frozen=True):
    """A create request that has been checked. ``spec.nics`` hold the ports allotted in this transaction."""

    id: str
    name: str
    description: str | None
    image_id: str
    flavor_id: str
    flavor: dict[str, object]
    key_name: str | None
    metadata: dict[str, str]
    tags: tuple[str, ...]
    requested_zone: str | None
    config_drive: bool
    disk_config: str
    reservation_id: str
    launch_index: int
    access_ipv4: str
    access_ipv6: str
    spec: Spec


def insert_server(tx: Tx, new: NewServer, caller: Caller) -> None:
    """Accept a server: this row *is* the work item (law 1). Its ports were inserted before it is read."""
    now = tx.now
    _INSERT_SERVER.run(
        tx,
        id=new.id,
        project_id=caller.project_id,
        user_id=caller.user_id,
        name=new.name,
        description=new.description,
        image_id=new.image_id,
        flavor_id=new.flavor_id,
        flavor=msgspec.json.encode(new.flavor).decode(),
        key_name=new.key_name,
        user_data=new.spec.user_data,
        meta=msgspec.json.encode(new.metadata).decode(),
        tags=msgspec.json.encode(new.tags).decode(),
        requested_zone=new.requested_zone,
        config_drive=new.config_drive,
        disk_config=new.disk_config,
        reservation_id=new.reservation_id,
        launch_index=new.launch_index,
        access_ipv4=new.access_ipv4,
        access_ipv6=new.access_ipv6,
        spec=msgspec.json.encode(new.spec).decode(),
        created=now.lease,
        created_wall=now.wall,
        updated_wall=now.wall,
        power="on",
        intent=1,
        edge=1,
        edge_soft=False,
        deleted=False,
        mark=0,
        replaced="[]",
        epoch=0,
        world_version=0,
        seen_at=now.lease,
        seen_incarnation=0,
        seen_sequence=0,
        removed=False,
        settled=False,
        next_look=now.lease,
    )
    _open(tx, new.id, OperationKind.CREATE, 1, soft=False, caller=caller, host=None)


def _open(
    tx: Tx,
    server_id: str,
    kind: OperationKind,
    edge: int,
    *,
    soft: bool,
    caller: Caller,
    host: str | None,
) -> None:
    """Write down what was asked; it stays open until the facts say that it is over."""
    now = tx.now
    _INSERT_OPERATION.run(
        tx,
        id=f"{server_id}.{kind.value}.{caller.request_id}",
        resource_kind="server",
        resource_id=server_id,
        kind=kind.value,
        edge=edge,
        soft=soft,
        state="open",
        reason="",
        request_id=caller.request_id,
        user_id=caller.user_id,
        project_id=caller.project_id,
        host=host,
        since=now.lease,
        started_wall=now.wall,
        deadline=now.lease + OPERATION_DEADLINE[kind],
    )


def note_done(tx: Tx, server: Server, kind: OperationKind, caller: Caller) -> None:
    """Write down what was asked and is over with this very transaction."""
    _INSERT_OPERATION.run(
        tx,
        id=f"{server.id}.{kind.value}.{caller.request_id}",
        resource_kind="server",
        resource_id=server.id,
        kind=kind.value,
        edge=server.edge,
        soft=False,
        state="done",
        reason="",
        request_id=caller.request_id,
        user_id=caller.user_id,
        project_id=caller.project_id,
        host=server.host.hostname if server.host else None,
        since=tx.now.lease,
        started_wall=tx.now.wall,
        finished_wall=tx.now.wall,
    )


def check_lock(server: Server, *, admin: bool) -> None:
    """409 for a member while it is locked, saying who can lift that (law 6)."""
    if server.locked is not None and not admin:
        who = "an administrator" if server.locked.by_admin else "its owner"
        raise Conflict(f"Instance {server.id} is locked by {who}: it has to be unlocked first")


def load_for_change(tx: Tx, server_id: str, caller: Caller) -> Server:
    """A server that its row's lock holds; 409 while it is locked against this caller."""
    server = load_locked(tx, server_id)
    check_lock(server, admin=caller.admin)
    return server


def load_locked(tx: Tx, server_id: str) -> Server:
    """Lock host, then server (that order everywhere), and read again what was read before the lock."""
    for _ in range(3):
        first = load_server(tx, server_id)
        if first is None or first.server.removed:
            raise NotFound(f"Instance {server_id} could not be found.")
        if first.server.place is not None:
            lock_host(tx, first.server.place.host_id)
        second = load_server(tx, server_id, lock=True)
        assert second is not None
        if second.server.removed:
            raise NotFound(f"Instance {server_id} could not be found.")
        if second.server.place is not None and first.server.place is None:
            continue
        return second.server
    raise Conflict(f"Instance {server_id} is changing; try again.")


def refuse_unless(
    server: Server, tx: Tx, verb: str, allowed: frozenset[str], *, open_ok: bool = False
) -> None:
    shown = status(server, tx.now)
    if server.deleted:
        raise Conflict(f"Cannot '{verb}' instance {server.id} while it is in task_state deleting")
    # An operator's mark does not take a server off its shelf.
    state = shelf_state(server) or shown.vm_state
    if state not in allowed:
        raise Conflict(f"Cannot '{verb}' instance {server.id} while it is in vm_state {state}")
    if not open_ok and server.operation is not None:
        task = shown.task_state or server.operation.kind.value
        raise Conflict(f"Cannot '{verb}' instance {server.id} while it is in task_state {task}")


def change_intent(
    tx: Tx, server: Server, kind: OperationKind, caller: Caller, *, power: Power, edge: int, soft: bool
) -> None:
    if server.place is not None:
        may_change(tx, server.place.host_id)
    if server.operation is not None:
        close_operation(tx, server.operation.id, Outcome("superseded", f"overridden by {kind.value}"))
    host = server.host.hostname if server.host else None
    _open(tx, server.id, kind, edge, soft=soft, caller=caller, host=host)
    _WANT.run(
        tx,
        server=server.id,
        on_off=power.value,
        number=server.intent + 1,
        least_edge=edge,
        ask_first=soft,
        wall=tx.now.wall,
    )
    if server.place is not None:
        bump_world(tx, server.place.host_id, server.id)
    judge(tx, server.id)


def stop_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants it off. Returns the host to notify. Raises :class:`Conflict`, :class:`NotFound`."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "stop", frozenset({"active", "error"}), open_ok=_may_be_stopped(server))
    if server.place is None:
        raise Conflict(f"Cannot 'stop' instance {server.id}: it was never placed on a host")
    change_intent(tx, server, OperationKind.STOP, caller, power=Power.OFF, edge=server.edge, soft=False)
    return server.place.host_id


def _may_be_stopped(server: Server) -> bool:
    """A stop overrides what is under way, except where it would leave something else behind than a stop."""
    kept = (OperationKind.RESIZE, OperationKind.SHELVE, OperationKind.IMAGE)
    return server.operation is None or server.operation.kind not in kept


def start_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants it on: a new guest process, hence a new edge."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "start", frozenset({"stopped"}))
    change_intent(tx, server, OperationKind.START, caller, power=Power.ON, edge=server.intent + 1, soft=False)
    return server.place.host_id if server.place else None


def reboot_server(tx: Tx, server_id: str, caller: Caller, *, soft: bool) -> str | None:
    """A new guest process; ``soft`` asks the guest to end the old one by itself first."""
    server = load_for_change(tx, server_id, caller)
    allowed = {"active"} if soft else {"active", "stopped", "paused", "suspended", "error"}
    # As the compute API has it, a hard reboot may override some of what is under way.
    overrides = server.operation is not None and server.operation.kind in REBOOT_OVERRIDES
    refuse_unless(server, tx, "reboot", frozenset(allowed), open_ok=overrides and not soft)
    if server.place is None:
        raise Conflict(f"Cannot 'reboot' instance {server.id}: it was never placed on a host")
    change_intent(tx, server, OperationKind.REBOOT, caller, power=Power.ON, edge=server.intent + 1, soft=soft)
    return server.place.host_id


def delete_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """Delete always wins (law 6): accepted in every state, remembered, overriding any operation.

    A second delete changes nothing. Returns the host to notify, if one has to clean up.
    """
    server = load_for_change(tx, server_id, caller)
    host_id = server.place.host_id if server.place else None
    if server.deleted:
        return host_id
    if server.operation is not None:
        close_operation(tx, server.operation.id, Outcome("superseded", "the server was deleted"))
    host = server.host.hostname if server.host else None
    server = drop_capture(tx, server)
    _open(tx, server.id, OperationKind.DELETE, server.edge, soft=False, caller=caller, host=host)
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server.id)
        .values(
            deleted=True,
            deleted_wall=tx.now.wall,
            intent=server.intent + 1,
            updated_wall=tx.now.wall,
        )
    )
    if server.disputed is not None:
        judge(tx, server.id)  # held: nothing is done to it before an operator has settled the dispute
        return None
    if host_id is not None:
        bump_world(tx, host_id, server.id)
        if away(server, tx.now):
            finish_delete_locked(tx, server, tombstone=True)
    elif may_place(tx, server.created):
        finish_delete_locked(tx, server, tombstone=False)
    judge(tx, server.id)
    return host_id


def due_servers(tx: Tx, limit: int) -> list[str]:
    """Ids of servers whose next look is due, the longest overdue first."""
    return _DUE.scalars(tx, now=tx.now.lease, most=limit)


class ServerFacts(msgspec.Struct, frozen=True):
    """What the control loop decides on: a server, the hosts that could take it, and the time."""

    server: Server
    hosts: tuple[str, ...]
    now: Now


def server_facts(tx: Tx, server_id: str) -> ServerFacts | None:
    """A server, and the hosts that could take it, the emptiest first (enabled and not silent)."""
    loaded = load_server(tx, server_id)
    if loaded is None:
        return None
    if loaded.server.place is not None or loaded.server.deleted or not may_place(tx, loaded.server.created):
        return ServerFacts(loaded.server, (), tx.now)
    # An administrator may have chosen the host: "zone:host".
    needs = _NEEDS.first(tx, server=server_id)
    assert needs is not None
    chosen = (needs.requested_zone or "").partition(":")[2]
    free = _HOSTS_BY_ROOM.all(tx, heard_since=tx.now.lease - LEASE, session=tx.session)
    fitting = [
        host for host in free if chosen in ("", host.hostname) and not (needs.network and host.no_networks)
    ]
    return ServerFacts(loaded.server, _by_machine(needs.spec, fitting), tx.now)


def _by_machine(text: str, fitting: list[Any]) -> tuple[str, ...]:
    """Of the hosts with room those that can run it, and containers before machines. All of them where its
    spec cannot be read: that is decided where it is placed."""
    spec = readable.read(_spec, text, None)
    if spec is None:
        return tuple(host.id for host in fitting)
    found = [(host.id, chosen_machine(spec, machines_of(host.facts))) for host in fitting]
    able = [(host_id, machine) for host_id, machine in found if machine is not None]
    return tuple(host_id for host_id, _ in sorted(able, key=lambda one: one[1] is not Machine.CONTAINER))


def _host(_server_id: str, host_id: str, _nonce: str) -> str:
    return f"host {host_id}"


@in_turn(_host)
def place(tx: Tx, server_id: str, host_id: str, nonce: str) -> bool:
    """Grant the server to the host, if there is room; false when there is none, or somebody was faster."""
    lock_host(tx, host_id)
    row = _TO_PLACE.first(tx, server=server_id)
    if row is None or row.deleted or row.failure is not None:
        return False
    loaded = load_server(tx, server_id)
    if (
        loaded is None
        or loaded.server.place is not None
        or not may_place(tx, loaded.server.created)
        or not has_told(tx, host_id)
        or _IS_HERE.first(tx, server=server_id, host=host_id)
    ):
        return False
    try:
        spec = msgspec.json.decode(row.spec, type=Spec)
    except msgspec.DecodeError:
        remedy = "delete the server and create it again; or put its spec back from a backup of the store"
        reason = "what the server is to be made of cannot be read in the store"
        fail_server(tx, server_id, "record-unreadable", reason, remedy)
        return True  # decided: another host could not read it either
    machine = _machine_on(tx, host_id, spec)
    flavor = spec.flavor
    if machine is None or not _can_take(tx, host_id, flavor, network=row.network):
        return False
    if machine is not spec.machine:
        made_of = msgspec.json.encode(msgspec.structs.replace(spec, machine=machine)).decode()
        _SET_SPEC.run(tx, server=server_id, made_of=made_of)
    _INSERT_PLACEMENT.run(
        tx,
        server_id=server_id,
        generation=generation(tx)[0],
        epoch=row.epoch + 1,
        host_id=host_id,
        nonce=nonce,
        state="live",
        vcpus=flavor.vcpus,
        ram_mb=flavor.ram_mb,
        disk_gb=flavor.disk_gb,
        granted=tx.now.lease,
    )
    _GRANT.run(tx, server=server_id, host=host_id, number=row.epoch + 1)
    judge(tx, server_id, locked=True)
    return True


def _machine_on(tx: Tx, host_id: str, spec: Spec) -> Machine | None:
    """What the host would run it in; None where it cannot."""
    facts = _FACTS.scalar(tx, host=host_id)
    return None if facts is None else chosen_machine(spec, machines_of(facts))


def chosen_machine(spec: Spec, machines: tuple[str, ...]) -> Machine | None:
    """A database's system runs in a container where there are containers, else in a machine, if the image
    has a kernel. People's own images run in machines only."""
    if spec.data and Machine.CONTAINER.value in machines:
        return Machine.CONTAINER
    bootable = not spec.data or any(image.role is ImageRole.KERNEL for image in spec.images)
    return Machine.VM if bootable and Machine.VM.value in machines else None


class _Machines(msgspec.Struct, frozen=True):
    machines: tuple[str, ...] = (Machine.VM.value,)


_machines = msgspec.json.Decoder(_Machines)


@functools.lru_cache(256)
def machines_of(facts: str) -> tuple[str, ...]:
    """What a host runs guests in, from its facts; of an agent that does not say, machines."""
    return readable.read(_machines, facts, _Machines()).machines


VCPU_OVERCOMMIT = 16
"""Virtual CPUs that one CPU of a host may carry (the compute service's customary ratio)."""


def has_room(tx: Tx, host_id: str, had: Flavor, wanted: Flavor) -> bool:
    """Whether a server that has room on this host may have more. The caller holds the host's row.

    Of what does not grow nothing is asked: a host that has shrunk does not keep anybody from taking less.
    """
    used, host = _USED.first(tx, host=host_id), _CAPACITY.first(tx, host=host_id)
    assert used is not None
    assert host is not None
    return bool(
        (wanted.vcpus <= had.vcpus or used.vcpus - had.vcpus + wanted.vcpus <= host.vcpus * VCPU_OVERCOMMIT)
        and (wanted.ram_mb <= had.ram_mb or used.ram_mb - had.ram_mb + wanted.ram_mb <= host.ram_mb)
        and (wanted.disk_gb <= had.disk_gb or used.disk_gb - had.disk_gb + wanted.disk_gb <= host.disk_gb)
    )


def _can_take(tx: Tx, host_id: str, size: Flavor, *, network: bool) -> bool:
    """Capacity in use is derived from placements: there is no counter that can leak."""
    used = _USED.first(tx, host=host_id)
    host = _CAPACITY.first(tx, host=host_id)
    assert used is not None
    if host is None or not host.enabled or host.forced_down or (network and host.no_networks):
        return False
    return bool(
        used.vcpus + size.vcpus <= host.vcpus * VCPU_OVERCOMMIT
        and used.ram_mb + size.ram_mb <= host.ram_mb
        and used.disk_gb + size.disk_gb <= host.disk_gb
    )


def postpone(tx: Tx, server_id: str, seconds: float) -> None:
    """Nothing could be done now; look again in ``seconds`` of lease time."""
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server_id, sa.not_(servers.c.settled))
        .values(next_look=tx.now.lease + seconds)
    )


def wait_for_host(tx: Tx, server_id: str) -> None:
    """No host takes it now: look again soon, and sooner while all that is missing is a host's word."""
    postpone(tx, server_id, PLACE_RETRY if awaited(tx) is None else AWAITED_RETRY)


def fail_server(tx: Tx, server_id: str, code: str, reason: str, remedy: str) -> None:
    """Record that an unplaced server cannot be built; refused if it was placed or deleted meanwhile."""
    loaded = load_server(tx, server_id, lock=True)
    if loaded is None or loaded.server.place is not None or loaded.server.deleted:
        return
    if not may_place(tx, loaded.server.created):
        wait_for_host(tx, server_id)  # a host that has not spoken yet may hold it
        return
    failure = Failure(code, reason, remedy, tx.now.wall)
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server_id, servers.c.failure.is_(None))
        .values(failure=msgspec.json.encode(failure).decode(), updated_wall=tx.now.wall)
    )
    judge(tx, server_id)


def review_server(tx: Tx, server_id: str) -> None:
    """Judge a due server again: the facts may have aged, and its next look must lie ahead.

    Where what was seen of it cannot be read any more, its host is asked to tell it anew.
    """
    loaded = load_server(tx, server_id)
    if loaded is not None and "seen" in loaded.server.unreadable and loaded.server.place is not None:
        lock_host(tx, loaded.server.place.host_id)
        bump_world(tx, loaded.server.place.host_id, server_id)
    judge(tx, server_id)


def finish_delete(tx: Tx, server_id: str) -> None:
    """Finish a delete that no host has to take part in, or that its host is too long silent for."""
    loaded = load_server(tx, server_id)
    if loaded is None:
        return
    if loaded.server.place is not None:
        lock_host(tx, loaded.server.place.host_id)
    again = load_server(tx, server_id, lock=True)
    assert again is not None
    server = again.server
    if not server.deleted or server.removed:
        return
    if server.place is None and not may_place(tx, server.created):
        wait_for_host(tx, server_id)  # it may be on a host that has not spoken yet, and its address in use
        return
    seen_removed = server.seen is not None and server.seen.step is Step.REMOVED
    if server.place is not None and not seen_removed and not away(server, tx.now):
        judge(tx, server_id)
        return
    finish_delete_locked(tx, server, tombstone=server.place is not None and not seen_removed)
    judge(tx, server_id)


def finish_delete_locked(tx: Tx, server: Server, *, tombstone: bool) -> None:
    """The server is gone for its user. With a tombstone its addresses and its room stay taken until
    the host was seen without it. The caller holds the host's row."""
    if tombstone:
        _BURY.run(tx, server=server.id)
    else:
        _FREE_ROOM.run(tx, server=server.id)
        _FREE_ADDRESSES.run(tx, server=server.id)
    _REMOVED.run(tx, server=server.id, wall=tx.now.wall)
    _LOOK_AT_INSTANCE.run(tx, server=server.id, now=tx.now.lease)
    # By resource and not by id: the operation may be one of this very transaction.
    _ALL_DONE.run(tx, server=server.id, wall=tx.now.wall)
