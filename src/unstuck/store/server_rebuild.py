"""Rebuild: the one action besides delete that gives a server's data up. One function is one transaction.

The disk gets another name, the present one joins those that it replaces, and nothing is recorded of the
new one yet. So the host makes it beside the old one, and removes that when the store knows the new one:
whoever dies when, either the old disk is there or the new one is, and never a guest on an empty in-between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict
from unstuck.core.server.data import OperationKind, Power, Server, Spec, Step
from unstuck.core.server.status import status
from unstuck.store import quotas, readable
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import placements, servers
from unstuck.store.server_create import images_for, keys_for
from unstuck.store.server_lists import Shown, check_owner, show_server
from unstuck.store.servers import Caller, change_intent, load_for_change, refuse_unless

_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild asks for; UNSET leaves as it is. ``columns`` only describe the server."""

    image_id: str
    columns: dict[str, Any] = {}
    name: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    key_name: str | msgspec.UnsetType | None = msgspec.UNSET
    user_data: str | msgspec.UnsetType | None = msgspec.UNSET
    hostname: str | msgspec.UnsetType = msgspec.UNSET


class Rebuilding(msgspec.Struct, frozen=True):
    """The server as it is shown then, its user data, and the host to notify."""

    shown: Shown
    user_data: str | None
    host_id: str


def rebuild_server(
    tx: Tx, server_id: str, project_id: str | None, asked: Rebuild, nonce: str, caller: Caller
) -> Rebuilding:
    """The user wants a new disk, made of this image; ports and addresses stay.

    ``nonce`` is fresh and names the disk. A server that was stopped stays so. Raises ``Conflict``,
    ``Invalid``, ``NotFound``.
    """
    check_owner(tx, server_id, project_id)
    user_data: list[str | None] = []

    def changes(tx: Tx, server: Server) -> dict[str, Any]:
        spec = _made_of(tx, server, asked, caller)
        user_data.append(spec.user_data)
        return {**asked.columns, **_columns(asked, spec)}

    host_id = replace_disk(tx, server_id, changes, nonce, caller)
    return Rebuilding(show_server(tx, server_id, project_id), user_data[-1], host_id)


def replace_disk(
    tx: Tx, server_id: str, changes: Callable[[Tx, Server], dict[str, Any]], nonce: str, caller: Caller
) -> str:
    """Want a new disk of this name, with these ``changes`` of the row; returns the host to notify."""
    server = load_for_change(tx, server_id, caller)
    refuse_unless(server, tx, "rebuild", frozenset({"active", "stopped", "error"}))
    if server.place is None:
        raise Conflict(f"Cannot 'rebuild' instance {server.id}: it was never placed on a host")
    power = Power.OFF if status(server, tx.now).vm_state == "stopped" else Power.ON
    values = {
        **changes(tx, server),
        "disk_id": None,
        "replaced": msgspec.json.encode(_replaced(server)).decode(),
    }
    tx.execute(
        sa.update(placements)
        .where(placements.c.server_id == server.id, placements.c.state == "live")
        .values(nonce=nonce)
    )
    tx.execute(sa.update(servers).where(servers.c.id == server.id).values(values))
    edge = server.intent + 1
    change_intent(tx, server, OperationKind.REBUILD, caller, power=power, edge=edge, soft=False)
    return server.place.host_id


def _columns(asked: Rebuild, spec: Spec) -> dict[str, Any]:
    found = {
        "image_id": asked.image_id,
        "spec": msgspec.json.encode(spec).decode(),
        "name": spec.name,
        "meta": msgspec.json.encode(spec.metadata).decode(),
        "user_data": spec.user_data,
    }
    if not isinstance(asked.key_name, msgspec.UnsetType):
        found["key_name"] = asked.key_name
    return found


def _replaced(server: Server) -> tuple[str, ...]:
    """The disks that may be there: the present one, and what an unfinished rebuild has left.

    A host that rests on a recorded disk has removed what that replaced.
    """
    assert server.place is not None
    seen = server.seen
    rests = seen is not None and seen.step is Step.AT_REST and seen.intent >= server.intent
    before = () if rests and server.disk_recorded else server.replaced
    return (*before, server.place.nonce)


def _made_of(tx: Tx, server: Server, asked: Rebuild, caller: Caller) -> Spec:
    row = tx.execute(sa.select(servers.c.spec, servers.c.project_id).where(servers.c.id == server.id)).one()
    spec = readable.read(_spec, row.spec, None)
    if spec is None:
        raise Conflict(f"Instance {server.id}: its record cannot be read in the store; delete it.")
    images = images_for(tx, asked.image_id, spec.flavor, row.project_id, admin=caller.admin)
    changes: dict[str, Any] = {"images": images}
    for name in ("name", "metadata", "user_data", "hostname"):
        if getattr(asked, name) is not msgspec.UNSET:
            changes[name] = getattr(asked, name)
    if not isinstance(asked.metadata, msgspec.UnsetType):
        quotas.check_metadata_count(tx, row.project_id, len(asked.metadata))
    if not isinstance(asked.key_name, msgspec.UnsetType):
        changes["keys"] = keys_for(tx, asked.key_name, caller.user_id)
    return msgspec.structs.replace(spec, **changes)
