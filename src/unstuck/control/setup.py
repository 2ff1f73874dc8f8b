"""What a cloud begins with: clock, first users, flavors, the default network, the local host."""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path

import msgspec
import sqlalchemy as sa
import structlog

from unstuck.runtime.marks import MarkFile
from unstuck.runtime.state import LocalHost, State
from unstuck.store import agents, identity, networks
from unstuck.store.clock import init_clock
from unstuck.store.datastores import ensure_datastores
from unstuck.store.engine import Store, Tx
from unstuck.store.flavors import ensure_default_flavors
from unstuck.store.generation import notice, notice_origin
from unstuck.store.instance_create import ensure_service_project
from unstuck.store.instance_want import tell_guests_anew
from unstuck.store.schema.identity import identity_state

log = structlog.get_logger(__name__)


def has_users(tx: Tx) -> bool:
    """Whether this cloud was set up before: passwords are hashed for a new one only, it takes its time."""
    return tx.execute(sa.select(identity_state.c.id)).first() is not None


def set_up(store: Store, state: State, *, network: str) -> None:
    """Make the store complete; what is there already stays as it is. Blocking."""
    store.transact(init_clock, generation_id=secrets.token_hex(16))
    # Before anything is decided on it: it may be a copy that somebody has put back.
    if store.transact(notice, MarkFile(state.store_mark).mark, "the control plane's own record"):
        log.warning("the store was set back: recovery mode; see `unstuck doctor`")
    store.transact(notice_origin)
    if not store.read(has_users):
        _first_users(store, state)
    store.transact(first_rows, cidr=network)
    store.transact(tell_guests_anew)
    local = read_local_host(state.local_host)
    if local is not None:
        store.transact(
            agents.add_host, host_id=local.host_id, hostname=local.hostname,
            secret_hash=local.secret_hash, machine_id=local.machine_id,
        )  # fmt: skip


def _first_users(store: Store, state: State) -> None:
    from unstuck.api.identity.passwords import hash_password

    store.transact(
        identity.bootstrap,
        admin_password_hash=hash_password(state.password("admin")),
        demo_password_hash=hash_password(state.password("demo")),
        token_key=secrets.token_bytes(32),
        ids=lambda: uuid.uuid4().hex,
    )


def first_rows(tx: Tx, *, cidr: str) -> None:
    """Flavors and the default network, which belongs to the administrators' project; what databases need."""
    ensure_default_flavors(tx)
    ensure_datastores(tx)
    ensure_service_project(tx)
    projects = {item.name: item.id for item in identity.list_projects(tx)}
    if "admin" in projects:
        networks.ensure_default_network(tx, project_id=projects["admin"], cidr=cidr)


def read_local_host(path: Path) -> LocalHost | None:
    """The host that lives in the same state folder; a control plane may be without one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalHost)
    except FileNotFoundError:
        return None
