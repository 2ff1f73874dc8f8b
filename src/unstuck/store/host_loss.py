"""A host that an operator gives up: declared lost, struck off, and let in again.

Each is somebody's explicit act; silence alone never leads here. Nothing on the host is touched by it:
what lies there stays named by its placement, so that the host, should it come back, takes up what is
still wanted and cleans up what is not.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Forbidden, NotFound
from unstuck.core.server.data import Failure, Server
from unstuck.store.agents import add_host
from unstuck.store.engine import Tx
from unstuck.store.rows import bump_world, judge, load_server, lock_host
from unstuck.store.schema.compute import hosts, join_tokens, placements, servers
from unstuck.store.schema.network import ports
from unstuck.store.servers import finish_delete_locked

HOST_LOST = "host-lost"


def force_down(tx: Tx, host_id: str, *, down: bool) -> None:
    """Declare a host lost, or take that back; raises :class:`NotFound`.

    What never had a disk there is placed anew: no guest of it can have run, because a guest is only
    started once its disk is recorded, and from now on that host's reports record nothing. So it keeps its
    address. The former host finds a tombstone when it is back, and removes what it had begun.
    """
    _lock(tx, host_id)
    tx.execute(sa.update(hosts).where(hosts.c.id == host_id).values(forced_down=down))
    for server_id in _placed(tx, host_id):
        server = _locked(tx, server_id)
        if down and _nothing_there(server):
            _place_anew(tx, host_id, server)
        judge(tx, server_id)


def strike_off(tx: Tx, host_id: str) -> None:
    """Give a lost host up with all that lies on it: its servers fail, saying so.

    Raises :class:`NotFound`, and :class:`Conflict` for a host that nobody has declared lost.
    """
    row = _lock(tx, host_id)
    if not row.forced_down:
        raise Conflict(
            f"Host {row.hostname} was not declared lost: fence it, then say so "
            f"(openstack compute service set --down {row.hostname} nova-compute), then delete its service."
        )
    now = tx.now
    for server_id in _placed(tx, host_id):
        server = _locked(tx, server_id)
        if server.deleted:
            finish_delete_locked(tx, server, tombstone=True)
        elif _nothing_there(server):
            _place_anew(tx, host_id, server)
        else:
            _give_up(tx, host_id, server, row.hostname)
        judge(tx, server_id)
    tx.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id)
        .values(
            struck_wall=now.wall,
            enabled=False,
            # Whoever joins in its place may have the name; and its agent, if one lives, is superseded.
            hostname=f"{row.hostname[:200]}.struck-{host_id[:8]}",
            incarnation=hosts.c.incarnation + 1,
            start_token=None,
        )
    )
    # Those of servers that are gone are free again: the operator has fenced what might still use them.
    tx.execute(
        sa.delete(ports).where(ports.c.server_id.in_(_gone_here(host_id)), _in_no_other_place(host_id))
    )


def make_token(tx: Tx, token_hash: str, seconds: float) -> None:
    """Allow one host to join, within ``seconds`` of wall time; forgets tokens that are over."""
    now = tx.now.wall
    tx.execute(sa.delete(join_tokens).where(join_tokens.c.expires_wall < now - 86400))
    tx.execute(sa.insert(join_tokens).values(token_hash=token_hash, expires_wall=now + seconds))


def join(tx: Tx, token_hash: str, *, host_id: str, hostname: str, secret_hash: str, machine_id: str) -> None:
    """Let a host in by a token, which serves one host once; the same host asking again changes nothing.

    A host that was struck off gets its servers back: what nobody has deleted runs on as it is there. Raises
    :class:`Forbidden` for a token that is no more, :class:`Conflict` for a name or an id that is taken.
    """
    used = tx.execute(
        sa.update(join_tokens)
        .where(
            join_tokens.c.token_hash == token_hash,
            join_tokens.c.expires_wall > tx.now.wall,
            sa.or_(join_tokens.c.host_id.is_(None), join_tokens.c.host_id == host_id),
        )
        .values(host_id=host_id)
    )
    if used.rowcount != 1:
        raise Forbidden("This join token was used already, or its time is over: make a new one.")
    row = tx.execute(sa.select(hosts).where(hosts.c.id == host_id)).first()
    namesake = sa.select(hosts.c.id).where(hosts.c.hostname == hostname, hosts.c.id != host_id)
    if tx.execute(namesake).first() is not None:
        raise Conflict(f"There is a host {hostname} already: join under another name (--name).")
    if row is None:
        add_host(tx, host_id=host_id, hostname=hostname, secret_hash=secret_hash, machine_id=machine_id)
    elif row.struck_wall is None and row.secret_hash != secret_hash:
        raise Conflict(f"Host {host_id} is a member already, with another credential.")
    elif row.struck_wall is not None:
        _let_in_again(tx, row, hostname=hostname, secret_hash=secret_hash, machine_id=machine_id)


def _let_in_again(tx: Tx, row: Any, *, hostname: str, secret_hash: str, machine_id: str) -> None:
    if row.machine_id != machine_id:
        raise Conflict(f"Host {row.id} was another machine: join with a state folder of its own.")
    lock_host(tx, row.id)
    tx.execute(
        sa.update(hosts)
        .where(hosts.c.id == row.id)
        .values(
            struck_wall=None, forced_down=False, enabled=True, hostname=hostname, secret_hash=secret_hash,
            seen=tx.now.lease, seen_wall=tx.now.wall,
        )
    )  # fmt: skip
    for server_id in tx.execute(
        sa.select(placements.c.server_id)
        .where(placements.c.host_id == row.id, placements.c.state == "tombstone")
        .order_by(placements.c.server_id)
    ).scalars():
        server = _locked(tx, server_id)
        lost = server.failure is not None and server.failure.code == HOST_LOST
        if lost and not server.deleted and server.place is None:
            _place_state(tx, row.id, server_id, "live")
            tx.execute(sa.update(servers).where(servers.c.id == server_id).values(failure=None))
        bump_world(tx, row.id, server_id)
        judge(tx, server_id)


def _lock(tx: Tx, host_id: str) -> Any:
    """The host, whose row is ours from here on."""
    lock_host(tx, host_id)
    row = tx.execute(
        sa.select(hosts.c.hostname, hosts.c.forced_down).where(
            hosts.c.id == host_id, hosts.c.struck_wall.is_(None)
        )
    ).first()
    if row is None:
        raise NotFound(f"Service {host_id} could not be found.")
    return row


def _placed(tx: Tx, host_id: str) -> list[str]:
    query = sa.select(placements.c.server_id).where(
        placements.c.host_id == host_id, placements.c.state == "live"
    )
    return list(tx.execute(query.order_by(placements.c.server_id)).scalars())


def _locked(tx: Tx, server_id: str) -> Server:
    loaded = load_server(tx, server_id, lock=True)
    assert loaded is not None
    return loaded.server


def _nothing_there(server: Server) -> bool:
    """No disk of it was ever recorded, so no guest of it ever ran.

    While it is rebuilt none is recorded either, but one was, and its old guest may run.
    """
    had_one = server.disk_recorded or server.replaced or server.launched_wall is not None
    return not (server.deleted or had_one)


def _place_anew(tx: Tx, host_id: str, server: Server) -> None:
    """As if it had just been accepted: what the lost host saw of it, and when, is no measure any more."""
    _place_state(tx, host_id, server.id, "tombstone")
    tx.execute(sa.update(servers).where(servers.c.id == server.id).values(created=tx.now.lease, **_UNSEEN))
    bump_world(tx, host_id, server.id)


_UNSEEN: dict[str, Any] = {
    "seen": None, "seen_incarnation": 0, "seen_sequence": 0, "lease_incarnation": None, "work_deadline": None,
}  # fmt: skip


def _give_up(tx: Tx, host_id: str, server: Server, hostname: str) -> None:
    failure = Failure(
        HOST_LOST,
        f"its host {hostname} was struck off by an operator, and its disk lies there",
        "delete the server and create it anew; if the host can be brought back, let it join again: then the "
        "server is there as it was",
        tx.now.wall,
    )
    _place_state(tx, host_id, server.id, "tombstone")
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server.id)
        .values(
            failure=msgspec.json.encode(failure).decode(), updated_wall=tx.now.wall,
            lease_incarnation=None, work_deadline=None,
        )
    )  # fmt: skip


def _place_state(tx: Tx, host_id: str, server_id: str, state: str) -> None:
    tx.execute(
        sa.update(placements)
        .where(placements.c.server_id == server_id, placements.c.host_id == host_id)
        .values(state=state)
    )


def _gone_here(host_id: str) -> sa.Select[tuple[str]]:
    return (
        sa.select(placements.c.server_id)
        .join(servers, servers.c.id == placements.c.server_id)
        .where(placements.c.host_id == host_id, servers.c.removed)
    )


def _in_no_other_place(host_id: str) -> sa.ColumnElement[bool]:
    """No other host that is a member may have something of the port's server."""
    other = (
        sa.select(placements.c.server_id)
        .join(hosts, hosts.c.id == placements.c.host_id)
        .where(
            placements.c.server_id == ports.c.server_id,
            placements.c.host_id != host_id,
            hosts.c.struck_wall.is_(None),
        )
    )
    return sa.not_(sa.exists(other))
