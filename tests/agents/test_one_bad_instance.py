"""1 of 50 instances is poisoned in the store: 49 settle, with the real loops, agent and driver, and guests
whose words go through the routes."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
import sqlalchemy as sa
from agents_site import Site, facts
from tests.store.instance_play import caller, furnish

from unstuck.control.instances import InstanceController
from unstuck.core.agents import HostFacts, World
from unstuck.core.instance.status import status
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.instance.wire import GuestRegister, GuestReport, Who
from unstuck.core.server.data import Thing, Want
from unstuck.runtime.metrics import Metrics
from unstuck.store import database_quotas, instances
from unstuck.store.engine import Tx
from unstuck.store.instance_lists import list_instances
from unstuck.store.instances import AskedInstance, NewIds
from unstuck.store.schema.compute import hosts, servers
from unstuck.store.schema.database import instances as table

MANY = 50
DEADLINE = 90.0


def server_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def create(tx: Tx) -> None:
    furnish(tx)
    database_quotas.set_limits(tx, "p", {"instances": -1, "volumes": -1})
    for number in range(MANY):
        name = f"db-{number}"
        ids = NewIds(name, server_id(number), f"port-{number}", f"g-{number}")
        asked = AskedInstance(name=name, flavor_id="1", volume_gb=1)
        instances.create_instance(tx, asked, ids, caller())


class Guests:
    """The guests of all servers, as their host passes them on: each says hello and sees what is wanted."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.numbers = itertools.count(1)
        self.known: dict[str, int] = {}

    async def speak_forever(self) -> None:
        async with self.site.raw() as client:
            while True:
                for want in await self._wants(client):
                    await self._speak(client, want)
                await asyncio.sleep(0.05)

    async def _wants(self, client: object) -> list[Want]:
        incarnation = await self.site.store.run_read(
            lambda tx: tx.execute(sa.select(hosts.c.incarnation)).scalar_one()
        )
        self.incarnation = incarnation
        answer = await client.get(f"world?incarnation={incarnation}&since=-1&wait=0")  # type: ignore[attr-defined]
        return list(msgspec.json.decode(answer.content, type=World).wants) if answer.is_success else []

    async def _speak(self, client: object, want: Want) -> None:
        if want.database is None or not want.disk_recorded:
            return
        key, database = want.server_id, want.database
        who = Who(incarnation=self.incarnation, server_id=key, fence=want.fence)
        if key not in self.known:
            body = msgspec.json.encode(GuestRegister(who, f"start-{key[-4:]}", 1))
            answer = await client.post("guests/register", content=body)  # type: ignore[attr-defined]
            if answer.is_success:
                self.known[key] = answer.json()["incarnation"]
            return
        view = DatabaseView(
            generation=database.generation, data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY,
            applied=True, restart=database.restart,
        )  # fmt: skip
        who = msgspec.structs.replace(who, guest=self.known[key])
        body = msgspec.json.encode(GuestReport(who, next(self.numbers), True, view))
        await client.post("guests/reports", content=body)  # type: ignore[attr-defined]


def shown(tx: Tx) -> dict[str, str]:
    page = list_instances(tx, "p", limit=1000)
    return {item.id: status(item.facts, page.now).status for item in page.items}


def poison(tx: Tx, column: str) -> None:
    bad = '{"torn": '
    if column == "spec":
        tx.execute(sa.update(servers).where(servers.c.id == server_id(7)).values(spec=bad))
    else:
        tx.execute(sa.update(table).where(table.c.id == "db-7").values({column: bad}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "column", ["spec", *(pytest.param(column, marks=pytest.mark.slow) for column in ("pending", "origin"))]
)
def test_one_of_50_instances_is_poisoned_and_49_are_active_and_restarted(
    site: Site, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    large = HostFacts("h", "machine", "boot", 64, 1 << 20, 10_000, "none", "instant", "1")
    monkeypatch.setattr("agents_site.facts", lambda: large)
    assert facts() != large
    good = {f"db-{number}" for number in range(MANY)} - {"db-7"}

    async def until(wanted: str) -> None:
        async with asyncio.timeout(DEADLINE):
            while True:
                found = await site.store.run_read(shown)
                if {found[name] for name in good} == {wanted}:
                    return
                await asyncio.sleep(0.05)

    async def main() -> None:
        await site.store.run(create)
        await site.store.run(poison, column)
        port = site.control_port()
        metrics = Metrics()
        loop = InstanceController(port, site.store, site.notifier.wake, tick=0.05, watch=metrics)
        plane, agent = site.control(port), site.agent()
        port.spawn("instances", loop.instances_forever())
        guests = asyncio.create_task(Guests(site).speak_forever())
        await until("ACTIVE")
        for name in good:
            await site.store.run(instances.restart_instance, name, "p", caller())
        await until("ACTIVE")
        restarts = sa.select(table.c.restart).where(table.c.id.in_(sorted(good)))
        assert set(await site.store.run_read(lambda tx: tx.execute(restarts).scalars().all())) == {1}
        # And the bad one can be deleted, whatever is wrong with it.
        await site.store.run(instances.delete_instance, "db-7", "p", caller(), force=True)
        async with asyncio.timeout(DEADLINE):
            while not await site.store.run_read(gone):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        guests.cancel()
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())


def gone(tx: Tx) -> bool:
    return bool(tx.execute(sa.select(table.c.removed).where(table.c.id == "db-7")).scalar_one())
