"""A server that was given an address which a host turns out to use gives way, before it is placed.

It cannot have been started: nothing is placed before every host has said what it holds.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.server.data import Failure, OperationKind, Spec
from unstuck.store.networks import NoMoreAddresses, free_number, subnet_of, text_of
from unstuck.store.prepared import Prepared
from unstuck.store.rows import judge, load_server
from unstuck.store.schema.compute import operations, placements, servers
from unstuck.store.schema.network import ports
from unstuck.store.tx import Tx

ADDRESS_TAKEN = "address-taken"

_GRANTED = Prepared(sa.select(placements.c.epoch).where(placements.c.server_id == sa.bindparam("server")))
_OF_SERVER = Prepared(
    sa.select(servers.c.spec, servers.c.user_id, servers.c.project_id).where(
        servers.c.id == sa.bindparam("server")
    )
)
_MOVE_PORT = Prepared(
    sa.update(ports)
    .where(ports.c.id == sa.bindparam("port"))
    .values(address=sa.bindparam("new_address"), number=sa.bindparam("new_number"))
)
_DROP_PORT = Prepared(sa.delete(ports).where(ports.c.id == sa.bindparam("port")))
_SET_SPEC = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(spec=sa.bindparam("made_of"), updated_wall=sa.bindparam("wall"))
)
_FAIL = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"), servers.c.failure.is_(None))
    .values(failure=sa.bindparam("why"))
)
_NOTE = Prepared(sa.insert(operations))
_NOTES = Prepared(
    sa.select(operations.c.reason)
    .where(
        operations.c.resource_id == sa.bindparam("server"),
        operations.c.kind == OperationKind.READDRESS.value,
    )
    .order_by(operations.c.started_wall)
)


def give_way(tx: Tx, port: Any) -> bool:
    """Free the address of ``port`` (a row) for the guest that uses it; the caller holds the network's row.

    The port's server gets another one; where its user had asked for this one, or none is left, it fails
    with that reason. False: it was given to a host already, so that a guest may use the address there.
    """
    loaded = load_server(tx, port.server_id, lock=True)
    if loaded is None or _GRANTED.first(tx, server=port.server_id) is not None:
        return False
    if loaded.server.deleted:
        _DROP_PORT.run(tx, port=port.id)
        return True
    number = None if port.asked else _another(tx, port.network_id)
    if number is None:
        _DROP_PORT.run(tx, port=port.id)
        _set_address(tx, port, None)
        _fail(tx, port)
    else:
        address = text_of(number)
        _MOVE_PORT.run(tx, port=port.id, new_address=address, new_number=number)
        _set_address(tx, port, address)
        _note(tx, port, address)
    judge(tx, port.server_id)
    return True


def readdressed(tx: Tx, server_id: str) -> list[str]:
    """What a server was given other addresses for, in words."""
    return _NOTES.scalars(tx, server=server_id)


def _another(tx: Tx, network_id: str) -> int | None:
    try:
        return free_number(tx, subnet_of(tx, network_id))
    except NoMoreAddresses:
        return None


def _set_address(tx: Tx, port: Any, address: str | None) -> None:
    """What the server is made of says the same as its ports do. One that cannot be read is never placed."""
    row = _OF_SERVER.first(tx, server=port.server_id)
    assert row is not None
    try:
        spec = msgspec.json.decode(row.spec, type=Spec)
    except msgspec.DecodeError:
        return
    nics = tuple(
        msgspec.structs.replace(nic, address=address or "") if nic.port_id == port.id else nic
        for nic in spec.nics
        if address is not None or nic.port_id != port.id
    )
    made_of = msgspec.json.encode(msgspec.structs.replace(spec, nics=nics)).decode()
    _SET_SPEC.run(tx, server=port.server_id, made_of=made_of, wall=tx.now.wall)


def _fail(tx: Tx, port: Any) -> None:
    reason = (
        f"the store was set back, and the address {port.address} that the server was to have is in use by a "
        "guest that the store had lost"
    )
    remedy = "delete the server; create it again with another address, or without naming one"
    failure = Failure(ADDRESS_TAKEN, reason, remedy, tx.now.wall)
    _FAIL.run(tx, server=port.server_id, why=msgspec.json.encode(failure).decode())


def _note(tx: Tx, port: Any, address: str) -> None:
    """For the instance's actions: nobody asked for it, so it has its own words and no request of a user."""
    owner, now = _OF_SERVER.first(tx, server=port.server_id), tx.now
    assert owner is not None
    _NOTE.run(
        tx, id=f"{port.server_id}.{OperationKind.READDRESS.value}.{port.id}.{port.number}"[:128],
        resource_kind="server", resource_id=port.server_id, kind=OperationKind.READDRESS.value, edge=0,
        soft=False, state="done", request_id=f"req-{port.id}-{port.number}"[:64], user_id=owner.user_id,
        project_id=owner.project_id, host=None, since=now.lease, started_wall=now.wall,
        finished_wall=now.wall,
        reason=f"the store was set back: {port.address} is in use by a guest that it had lost, so the server "
        f"has {address} instead",
    )  # fmt: skip
