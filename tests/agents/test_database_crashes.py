"""PostgreSQL crashes again and again while servers are created, stopped and deleted: nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa
from agents_site import Site, insert
from tests.postgres import Postgres

from unstuck.core.errors import NotFound
from unstuck.core.server.status import status
from unstuck.store import servers as actions
from unstuck.store.engine import Store, StoreUnavailable, Tx
from unstuck.store.rows import load_servers
from unstuck.store.schema.compute import operations, placements, servers
from unstuck.store.schema.network import ports

CRASHES = 4
EACH = 8
DEADLINE = 90.0


def shown(tx: Tx) -> dict[str, str]:
    ids = list(tx.execute(sa.select(servers.c.id)).scalars())
    return {key: status(server, tx.now).vm_state for key, server in load_servers(tx, ids).items()}


def on_the_way(tx: Tx) -> int:
    waiting = sa.select(sa.func.count()).select_from(servers).where(sa.not_(servers.c.settled))
    opened = sa.select(sa.func.count()).select_from(operations).where(operations.c.state == "open")
    return int(tx.execute(waiting).scalar_one() + tx.execute(opened).scalar_one())


def taken(tx: Tx) -> tuple[set[str], set[str]]:
    """Servers with an address, servers with a place."""
    return (
        set(tx.execute(sa.select(ports.c.server_id)).scalars()),
        set(tx.execute(sa.select(placements.c.server_id)).scalars()),
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_no_acknowledged_request_is_lost_and_all_settle(
    postgres_store: Store, postgres_server: Postgres, tmp_path: Path, seed: int
) -> None:
    site, dice = Site(postgres_store, tmp_path), random.Random(seed)
    wanted: dict[str, str] = {}

    async def user() -> None:
        """What was acknowledged counts; what was answered with an outage may or may not be there."""
        server_id = str(uuid.uuid4())
        try:
            await site.store.run(insert, server_id, site.user())
            wanted[server_id] = "active"
            site.notifier.wake("control")
            await asyncio.sleep(dice.random())
            if dice.random() < 0.5:
                with contextlib.suppress(NotFound):  # done, and the answer was lost
                    await again(lambda: site.store.run(actions.delete_server, server_id, site.user()))
                wanted[server_id] = "deleted"
        except StoreUnavailable:
            wanted.setdefault(server_id, "unknown")

    async def again(call) -> None:  # type: ignore[no-untyped-def]
        while True:
            try:
                await call()
                return
            except StoreUnavailable:
                await asyncio.sleep(0.1)

    async def main() -> None:
        port = site.control_port()
        plane, agent = site.control(port), site.agent()
        for _ in range(CRASHES):
            users = [asyncio.ensure_future(user()) for _ in range(EACH)]
            await asyncio.sleep(dice.random() * 0.5)
            await asyncio.to_thread(postgres_server.stop, signal.SIGQUIT)
            await asyncio.sleep(dice.random() * 0.5)
            await asyncio.to_thread(postgres_server.start)
            await asyncio.gather(*users)
        assert not plane.done()
        assert not agent.task.done()
        async with asyncio.timeout(DEADLINE):
            while await site.store.run_read(on_the_way):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found = await site.store.run_read(shown)
        for server_id, state in wanted.items():
            assert state == "unknown" or found.get(server_id) == state
        assert set(found.values()) <= {"active", "deleted"}
        living = {server_id for server_id, state in found.items() if state == "active"}
        assert await site.store.run_read(taken) == (living, living)
        assert {path.name for path in (site.folder / "servers").iterdir()} == living
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())
