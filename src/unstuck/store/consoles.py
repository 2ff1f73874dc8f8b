"""Tokens that open a server's console: random, stored as their digest, good for one use and for a short time.

A token belongs to the grant that the server had when it was made. What has another place since (or none,
because it is deleted) is not opened by it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from unstuck.core.console import SERIAL, SerialAsk
from unstuck.core.errors import Conflict
from unstuck.core.server.data import Fence
from unstuck.store.asks import put_ask
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import console_tokens, placements, servers
from unstuck.store.server_lists import Shown, show_server

TOKEN_SECONDS: Final = 600.0
"""Of lease time, from the request for a URL to its use."""
TOKENS_PER_SERVER: Final = 16
"""Unused ones at a time; a further one takes the place of the oldest."""


class Opened(msgspec.Struct, frozen=True):
    """What a token opens, and for whom it was made."""

    server_id: str
    host_id: str
    project_id: str
    user_id: str
    fence: Fence


def ask_serial(
    tx: Tx, server_id: str, project_id: str | None, *, ask_id: str, seconds: float
) -> tuple[Shown, str]:
    """Ask a server's host whether its serial port can be opened; returns the host to wake.

    404 where it is not this project's, 409 where it has no host, or lives in one of our own images.
    """
    shown = show_server(tx, server_id, project_id)
    grant = _grant(tx, server_id)
    if grant is None:
        raise Conflict(f"Instance {server_id} is not ready: it has no host.")
    host_id, fence = grant
    put_ask(tx, ask_id, host_id, server_id, SERIAL, _argument(fence), seconds)
    return shown, host_id


def make_token(tx: Tx, server_id: str, project_id: str | None, *, token_hash: str, user_id: str) -> None:
    """Let whoever has the token open the server's console once, within :data:`TOKEN_SECONDS`.

    404 and 409 as :func:`ask_serial`.
    """
    shown = show_server(tx, server_id, project_id)
    grant = _grant(tx, server_id)
    if grant is None:
        raise Conflict(f"Instance {server_id} is not ready: it has no host.")
    _, fence = grant
    table = console_tokens
    unused = sa.select(table.c.token_hash).where(table.c.server_id == server_id)
    older = list(tx.execute(unused.order_by(table.c.deadline.desc())).scalars())[TOKENS_PER_SERVER - 1 :]
    tx.execute(sa.delete(table).where(table.c.token_hash.in_(older)))
    tx.execute(
        sa.insert(table).values(
            token_hash=token_hash,
            server_id=server_id,
            generation=fence.generation,
            epoch=fence.epoch,
            project_id=shown.item.project_id,
            user_id=user_id,
            deadline=tx.now.lease + TOKEN_SECONDS,
        )
    )


def take_token(tx: Tx, token_hash: str) -> Opened | None:
    """Use a token up; None where it opens nothing. Of two that use it at once one gets it."""
    table = console_tokens
    row = tx.execute(sa.select(table).where(table.c.token_hash == token_hash)).first()
    if row is None or tx.execute(sa.delete(table).where(table.c.token_hash == token_hash)).rowcount != 1:
        return None
    grant = _grant(tx, row.server_id)
    fence = Fence(row.generation, row.epoch)
    if row.deadline < tx.now.lease or grant is None or grant[1] != fence:
        return None
    return Opened(row.server_id, grant[0], row.project_id, row.user_id, fence)


def ask_stream(tx: Tx, ask_id: str, opened: Opened, seconds: float) -> bool:
    """Ask the host to bring the server's serial port here; False where the grant has ended meanwhile."""
    if _grant(tx, opened.server_id) != (opened.host_id, opened.fence):
        return False
    argument = _argument(opened.fence, to_open=True)
    put_ask(tx, ask_id, opened.host_id, opened.server_id, SERIAL, argument, seconds)
    return True


def _argument(fence: Fence, *, to_open: bool = False) -> str:
    return msgspec.json.encode(SerialAsk(fence, open=to_open)).decode()


def _grant(tx: Tx, server_id: str) -> tuple[str, Fence] | None:
    """Host and fence of what is placed and not being deleted."""
    row = tx.execute(
        sa.select(placements.c.host_id, placements.c.generation, placements.c.epoch)
        .join(servers, servers.c.id == placements.c.server_id)
        .where(placements.c.server_id == server_id, placements.c.state == "live", sa.not_(servers.c.deleted))
    ).first()
    return None if row is None else (row.host_id, Fence(row.generation, row.epoch))
