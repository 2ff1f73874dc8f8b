"""Shelving: a server that is off, and may give up its CPUs and memory, but never its disk.

Nothing is copied: the disk stays on its host, and the server comes back there.
One function is one transaction.
"""

from __future__ import annotations

import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid
from unstuck.core.server.data import Flavor, OperationKind, Power, Server, Shelf, Spec
from unstuck.store.engine import Tx
from unstuck.store.rows import judge, made_of, set_room
from unstuck.store.schema.compute import servers
from unstuck.store.server_lists import within_project
from unstuck.store.servers import (
    Caller,
    change_intent,
    has_room,
    load_for_change,
    note_done,
    refuse_unless,
)


def shelve_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """The user wants it off, and out of the way."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "shelve", frozenset({"active", "stopped", "paused", "suspended"}))
    _shelve(tx, server_id, Shelf.KEPT, Power.OFF)
    change_intent(tx, server, OperationKind.SHELVE, caller, power=Power.OFF, edge=server.edge, soft=False)
    return server.place.host_id if server.place else None


def offload_server(tx: Tx, server_id: str, caller: Caller) -> str | None:
    """CPUs and memory of a shelved server are for others now; the disk stays where it is."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "shelveOffload", frozenset({"shelved"}))
    size = _spec(tx, server).flavor
    set_room(tx, server_id, Flavor(0, 0, size.disk_gb))
    _shelve(tx, server_id, Shelf.OFFLOADED, Power.OFF)
    note_done(tx, server, OperationKind.OFFLOAD, caller)
    judge(tx, server_id)
    return None


def unshelve_server(
    tx: Tx, server_id: str, caller: Caller, *, zone: bool = False, host: str | None = None
) -> str | None:
    """The user wants it on. 409 where its host, which has its disk, has no room for it now.

    ``zone``: one was named, ``host``: this one; the compute API allows that only for what was offloaded.
    """
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "unshelve", frozenset({"shelved", "shelved_offloaded"}))
    assert server.place is not None
    assert server.host is not None
    if server.shelved is Shelf.KEPT and (zone or host is not None):
        raise Conflict(
            f"Instance {server_id} is shelved and not offloaded: no availability zone or host can be chosen."
        )
    if host is not None and host != server.host.hostname:
        raise Invalid(
            f"host: the disk of instance {server_id} is on host {server.host.hostname}, only there."
        )
    if server.shelved is Shelf.OFFLOADED:
        size = _spec(tx, server).flavor
        if not has_room(tx, server.place.host_id, Flavor(0, 0, size.disk_gb), size):
            raise Conflict(
                f"No valid host was found. Host {server.host.hostname}, which has the disk of instance "
                f"{server_id}, has no room for it now; it stays shelved, try again."
            )
        set_room(tx, server_id, size)
    _shelve(tx, server_id, None, Power.OFF)
    change_intent(
        tx, server, OperationKind.UNSHELVE, caller, power=Power.ON, edge=server.intent + 1, soft=False
    )
    return server.place.host_id


def _shelve(tx: Tx, server_id: str, shelf: Shelf | None, power: Power) -> None:
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server_id)
        .values(shelved=None if shelf is None else shelf.value, power=power.value, updated_wall=tx.now.wall)
    )


def _spec(tx: Tx, server: Server) -> Spec:
    spec = made_of(tx, server.id)
    if spec is None:
        raise Conflict(f"Instance {server.id}: its record cannot be read in the store; delete it.")
    return spec


shelve_own = within_project(shelve_server)
offload_own = within_project(offload_server)
unshelve_own = within_project(unshelve_server)
