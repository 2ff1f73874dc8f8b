"""Questions to a host that only it can answer, with a deadline; nobody waits for ever."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import asks, console_tokens, placements

GUEST = "guest"
"""The kind of what the host passes on to the agent in the server's guest; its argument is for that."""

_SWEEP = Prepared(sa.delete(asks).where(asks.c.deadline < sa.bindparam("now")))
_SWEEP_TOKENS = Prepared(sa.delete(console_tokens).where(console_tokens.c.deadline < sa.bindparam("now")))


def ask_host(
    tx: Tx, *, ask_id: str, server_id: str, kind: str, lines: int | None, seconds: float
) -> str | None:
    """Put a question about a server to its host; returns the host's id, None when it has none."""
    return _put(tx, ask_id, server_id, kind, msgspec.json.encode(lines).decode(), seconds)


def ask_guest(tx: Tx, ask_id: str, server_id: str, argument: str, seconds: float) -> str | None:
    """Put a request to the agent in a server's guest; returns the host's id, None when it has none."""
    return _put(tx, ask_id, server_id, GUEST, argument, seconds)


def _put(tx: Tx, ask_id: str, server_id: str, kind: str, argument: str, seconds: float) -> str | None:
    host_id = tx.execute(
        sa.select(placements.c.host_id).where(
            placements.c.server_id == server_id, placements.c.state == "live"
        )
    ).scalar_one_or_none()
    if host_id is None:
        return None
    put_ask(tx, ask_id, str(host_id), server_id, kind, argument, seconds)
    return str(host_id)


def put_ask(
    tx: Tx, ask_id: str, host_id: str, server_id: str, kind: str, argument: str, seconds: float
) -> None:
    """Put a question to a host that is known."""
    tx.execute(
        sa.insert(asks).values(
            id=ask_id,
            host_id=host_id,
            server_id=server_id,
            kind=kind,
            argument=argument,
            since=tx.now.lease,
            deadline=tx.now.lease + seconds,
        )
    )


def read_answer(tx: Tx, ask_id: str) -> str | None:
    """The answer, once it is there."""
    return tx.execute(sa.select(asks.c.answer).where(asks.c.id == ask_id)).scalar_one_or_none()


def drop_ask(tx: Tx, ask_id: str) -> None:
    tx.execute(sa.delete(asks).where(asks.c.id == ask_id))


def sweep_asks(tx: Tx) -> int:
    """Drop questions whose asker has died, and tokens that nobody used: their deadline is over.

    Returns how many questions."""
    _SWEEP_TOKENS.run(tx, now=tx.now.lease)
    return _SWEEP.run(tx, now=tx.now.lease)
