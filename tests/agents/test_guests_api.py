"""Guest agents' routes over HTTP: what a host passes on is served or refused, and wakes who waits for it."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import sqlalchemy as sa
from agents_site import HOST, Site
from test_hostile_agent import Hostile, encode, mutations
from tests.store.instance_play import caller, furnish

from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.instance.wire import GuestRegister, GuestReport, Who
from unstuck.core.server.data import Thing, Trouble
from unstuck.store import instances, servers
from unstuck.store.engine import Store
from unstuck.store.instance_rows import load_instance
from unstuck.store.instances import AskedInstance, NewIds
from unstuck.store.readable import find_unreadable
from unstuck.store.schema.compute import asks

IDS = NewIds("instance", "server", "port", "generation")
VIEW = DatabaseView(
    generation="generation", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY, applied=True,
    facts={"version": "15.14"}, trouble=Trouble("code", "reason", "remedy"), volume_size_mb=1000,
)  # fmt: skip


class HostileGuest(Hostile):
    """A guest that has its host say anything at all."""

    async def begin(self) -> None:
        await self.join()
        self.server_id = IDS.server
        await self.site.store.run(furnish)
        asked = AskedInstance(name="db", flavor_id="3", volume_gb=1)
        await self.site.store.run(instances.create_instance, asked, IDS, caller())
        assert await self.site.store.run(servers.place, self.server_id, HOST, "nonce")
        await self.register()

    def who(self, guest: int = 0) -> Who:
        return Who(incarnation=self.incarnation, server_id=self.server_id, fence=self.fence, guest=guest)

    def valid(self) -> dict[str, Any]:
        return {
            "guests/register": GuestRegister(self.who(), secrets.token_hex(8), 1, "1.0", 7),
            "guests/reports": GuestReport(self.who(2**40), 8, True, VIEW),
        }


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def hostile_site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    found: Store = request.getfixturevalue("store" if request.param == "sqlite" else "postgres_store")
    return Site(found, tmp_path)


@pytest.mark.parametrize("which", range(2))
def test_whatever_a_guest_says_it_is_served_or_refused(hostile_site: Site, which: int) -> None:
    async def main() -> None:
        async with hostile_site.raw() as client:
            agent = HostileGuest(hostile_site, client)
            await agent.begin()
            _, valid = list(agent.valid().items())[which]
            accepted = count = 0
            for mutate in mutations(msgspec.to_builtins(valid)):
                path, valid = list(agent.valid().items())[which]
                count += 1
                if await agent.send(path, mutate(msgspec.to_builtins(valid))) < 300:
                    accepted += 1
                    assert await hostile_site.store.run_read(find_unreadable) == []
                    await agent.register()
            assert 0 < accepted < count / 2

    asyncio.run(main())


async def told(client: httpx2.AsyncClient, path: str, body: Any) -> httpx2.Response:
    return await client.post(path, content=encode(body))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"generation": "x" * 65}, "view.generation"),
        ({"facts": {str(number): "" for number in range(33)}}, "view.facts"),
        ({"facts": {"x" * 65: ""}}, "view.facts"),
        ({"facts": {"version": "x" * 257}}, "view.facts.version"),
        ({"trouble": Trouble("x" * 65, "", "")}, "view.trouble.code"),
        ({"trouble": Trouble("", "x" * 2001, "")}, "view.trouble.reason"),
        ({"done": -1}, "view.done"),
        ({"restart": 2**54}, "view.restart"),
    ],
)
def test_what_is_too_large_is_refused_by_its_field(site: Site, change: dict[str, Any], field: str) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = HostileGuest(site, client)
            await agent.begin()
            body = GuestReport(agent.who(), 8, True, msgspec.structs.replace(VIEW, **change))
            answer = await told(client, "guests/reports", body)
            assert answer.status_code == 400
            assert f"`{field}`" in answer.json()["error"]["message"]

    asyncio.run(main())


def test_a_guest_of_another_protocol_is_refused_with_that_reason(site: Site) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = HostileGuest(site, client)
            await agent.begin()
            answer = await told(client, "guests/register", GuestRegister(agent.who(), "start", 99))
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "guest-protocol")

    asyncio.run(main())


def test_a_superseded_guest_hears_so_and_its_host_stays(site: Site) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = HostileGuest(site, client)
            await agent.begin()
            for start in ("a", "b"):
                answer = await told(client, "guests/register", GuestRegister(agent.who(), start, 1))
                assert answer.status_code == 200
            assert answer.json() == {"incarnation": 2}
            for path, body in (
                ("guests/register", GuestRegister(agent.who(), "a", 1)),
                ("guests/reports", GuestReport(agent.who(1), 8, True, VIEW)),
            ):
                answer = await told(client, path, body)
                assert (answer.status_code, answer.json()["error"]["type"]) == (410, "guest-superseded")
            assert await agent.send("guests/reports", encode(GuestReport(agent.who(2), 9, True, VIEW))) == 204

    asyncio.run(main())


def test_a_report_that_records_the_data_wakes_the_host_s_poll(site: Site) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = HostileGuest(site, client)
            await agent.begin()
            await told(client, "guests/register", GuestRegister(agent.who(), "a", 1))
            path = f"world?incarnation={agent.incarnation}&since=-1&wait=0"
            first = (await client.get(path)).json()
            assert first["wants"][0]["database"]["data_recorded"] is False
            # The question that every host is asked here would end the poll at once.
            await site.store.run(lambda tx: tx.execute(asks_gone()))
            news = asyncio.create_task(
                client.get(f"world?incarnation={agent.incarnation}&since={first['version']}&wait=20")
            )
            await asyncio.sleep(0)
            await told(client, "guests/reports", GuestReport(agent.who(1), 8, True, VIEW))
            async with asyncio.timeout(4):  # sooner than a poll looks by itself
                second = (await news).json()
            assert second["wants"][0]["database"]["data_recorded"] is True

    asyncio.run(main())


def asks_gone() -> Any:
    return sa.delete(asks)


def test_a_host_cannot_speak_for_another_s_guest(site: Site) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = HostileGuest(site, client)
            await agent.begin()
            plain = await site.create()
            assert await site.store.run(servers.place, plain, HOST, "n2")
            for server_id in (plain, "nobody's"):
                who = msgspec.structs.replace(agent.who(), server_id=server_id)
                assert await agent.send("guests/register", encode(GuestRegister(who, "a", 1))) == 410
                assert await agent.send("guests/reports", encode(GuestReport(who, 8, True, VIEW))) == 410
            loaded = site.store.read(load_instance, IDS.instance)
            assert loaded is not None
            assert loaded.instance.guest == 0

    asyncio.run(main())
