"""What users may change of a server without touching its guest, and their actions within their project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict
from unstuck.core.server.data import Spec
from unstuck.store import quotas, readable
from unstuck.store import servers as actions
from unstuck.store.asks import ask_host
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import servers
from unstuck.store.server_lists import Shown, check_owner, find_server, show_server, within_project

MAX_TAGS = 50
_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)
_meta = msgspec.json.Decoder(dict[str, str])
_LOCK = Prepared(sa.select(servers.c.spec).where(servers.c.id == sa.bindparam("server")).with_for_update())


def update_server(
    tx: Tx, server_id: str, project_id: str | None, values: dict[str, Any], hostname: str | None
) -> Shown:
    """Change what describes a server. ``values`` are columns."""
    check_owner(tx, server_id, project_id)
    if hostname is not None:
        spec = readable.read(_spec, _LOCK.scalar(tx, server=server_id), None)
        if spec is None:
            raise Conflict(f"Instance {server_id}: its record cannot be read in the store; delete it.")
        made_of = msgspec.structs.replace(spec, hostname=hostname)
        values = {**values, "spec": msgspec.json.encode(made_of).decode()}
    if values:  # a request that names nothing is answered, and changes nothing
        _write(tx, server_id, values)
    return show_server(tx, server_id, project_id)


def _write(tx: Tx, server_id: str, values: dict[str, Any]) -> None:
    stamped = {**values, "updated_wall": tx.now.wall}
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(stamped))


def change_metadata(
    tx: Tx, server_id: str, project_id: str | None, change: Callable[[dict[str, str]], dict[str, str]]
) -> dict[str, str]:
    """Replace a server's metadata by ``change`` of it; returns what it is then."""
    check_owner(tx, server_id, project_id)
    _LOCK.first(tx, server=server_id)
    item = find_server(tx, server_id, project_id)
    if item.facts.deleted:
        raise Conflict(f"Cannot change the metadata of instance {server_id}: it is being deleted.")
    actions.check_lock(item.facts, admin=project_id is None)
    made = change(_meta.decode(item.meta))
    quotas.check_metadata_count(tx, item.project_id, len(made))
    _write(tx, server_id, {"meta": msgspec.json.encode(made).decode()})
    return made


def change_tags(
    tx: Tx,
    server_id: str,
    project_id: str | None,
    change: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> tuple[str, ...]:
    """Replace a server's tags by ``change`` of them."""
    check_owner(tx, server_id, project_id)
    _LOCK.first(tx, server=server_id)
    item = find_server(tx, server_id, project_id)
    if item.facts.deleted:
        raise Conflict(f"Cannot change the tags of instance {server_id}: it is being deleted.")
    made = change(item.tags)
    _write(tx, server_id, {"tags": msgspec.json.encode(made).decode()})
    return made


stop_own = within_project(actions.stop_server)
start_own = within_project(actions.start_server)
reboot_own = within_project(actions.reboot_server)
delete_own = within_project(actions.delete_server)


def ask_console(
    tx: Tx, server_id: str, project_id: str | None, *, ask_id: str, lines: int | None, seconds: float
) -> tuple[Shown, str]:
    """Ask a server's host for the end of its console log; returns the host to wake."""
    shown = show_server(tx, server_id, project_id)
    host_id = ask_host(tx, ask_id=ask_id, server_id=server_id, kind="console", lines=lines, seconds=seconds)
    if host_id is None:
        raise Conflict(f"Instance {server_id} is not ready: it has no host yet.")
    return shown, host_id
