"""1 of 200 servers is poisoned in the store: 199 settle, with the real loops, agent and driver."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import sqlalchemy as sa
from agents_site import Site, facts, insert

from unstuck.core.agents import HostFacts
from unstuck.core.server.status import status
from unstuck.store import servers as actions
from unstuck.store.engine import Tx
from unstuck.store.rows import load_servers
from unstuck.store.schema.compute import servers

MANY = 200
DEADLINE = 90.0


def create(tx: Tx, site: Site) -> list[str]:
    made = [str(uuid.uuid4()) for _ in range(MANY)]
    for server_id in made:
        insert(tx, server_id, site.user())
    return made


def states(tx: Tx, ids: list[str]) -> dict[str, str]:
    return {key: status(server, tx.now).vm_state for key, server in load_servers(tx, ids).items()}


def settled(tx: Tx, ids: list[str]) -> int:
    query = sa.select(sa.func.count()).where(servers.c.settled, servers.c.id.in_(ids))
    return tx.execute(query).scalar_one()


def poison(tx: Tx, server_id: str, column: str) -> None:
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values({column: '{"torn": '}))


@pytest.mark.parametrize(
    "column", ["spec", *(pytest.param(column, marks=pytest.mark.slow) for column in ("seen", "failure"))]
)
def test_one_of_200_is_poisoned_and_199_settle(
    site: Site, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    large = HostFacts("h", "machine", "boot", 64, 1 << 20, 10_000, "none", "instant", "1")
    monkeypatch.setattr("agents_site.facts", lambda: large)
    assert facts() != large

    async def main() -> None:
        ids = await site.store.run(create, site)
        bad, good = ids[77], [*ids[:77], *ids[78:]]
        await site.store.run(poison, bad, column)
        port = site.control_port()
        plane, agent = site.control(port), site.agent()
        async with asyncio.timeout(DEADLINE):
            while await site.store.run_read(settled, good) < len(good):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found = await site.store.run_read(states, ids)
        assert {found[item] for item in good} == {"active"}
        assert found[bad] == ("active" if column == "seen" else "error")
        # While they run, one more goes bad, and the next agent has to take all of them up again.
        await site.store.run(poison, good[0], "spec")
        assert await agent.end() == 0
        agent = site.agent()
        await site.store.run(actions.stop_server, good[1], site.user())
        await site.store.run(actions.stop_server, good[0], site.user())  # needs no spec
        await site.store.run(actions.delete_server, bad, site.user())
        await site.until(good[1], "stopped")
        await site.until(good[0], "stopped")
        await site.until(bad, "gone")
        assert not (site.folder / "servers" / bad).exists()
        await site.store.run(actions.delete_server, good[0], site.user())
        await site.until(good[0], "gone")
        assert not (site.folder / "servers" / good[0]).exists()
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())
