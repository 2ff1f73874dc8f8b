"""A host that is full: who waits says why, comes up when there is room, and nothing is ever oversubscribed.

Twenty requests at once through the API, and several controllers at once, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from api_cloud import ADMIN_HASH, DEMO_HASH, Cloud, app_over
from tests.compute_fakes import FakeHost, network
from tests.compute_site import bootable
from tests.store.conftest import any_store as any_store

from unstuck.api.app import SERVICES
from unstuck.api.context import Settings
from unstuck.control.loop import Controller
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.store import flavors, identity
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.compute import placements

SERVERS = "/compute/v2.1/servers"
ROOM, EACH = 7, 64
"""Servers of so many MiB for which the host has room."""
CREATES = 20
CONTROLLERS = 3
DEADLINE = 60.0


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Iterator[Cloud]:
    """A cloud whose one host has room for seven, and a member."""
    any_store.transact(
        identity.bootstrap, admin_password_hash=ADMIN_HASH, demo_password_hash=DEMO_HASH,
        token_key=b"k" * 32, ids=lambda: uuid.uuid4().hex,
    )  # fmt: skip
    any_store.transact(flavors.ensure_default_flavors)
    network(any_store)
    with asyncio.Runner() as loop:
        app = app_over(any_store, Settings(state_dir=tmp_path), SERVICES)
        yield Cloud(app, any_store, loop).login("demo", "demo-secret", "demo")


def taken(tx: Tx) -> int:
    return int(tx.execute(sa.select(sa.func.coalesce(sa.func.sum(placements.c.ram_mb), 0))).scalar_one())


class Crowd:
    """Clients, controllers and a host, all at work in one loop; the store's own threads make them meet."""

    def __init__(self, cloud: Cloud, tmp_path: Path) -> None:
        self.cloud = cloud
        self.store = cloud.store
        self.host = FakeHost(self.store, ram_mb=ROOM * EACH)
        image = self.store.transact(bootable)
        self.body = {"server": {"name": "web", "imageRef": image, "flavorRef": "1", "networks": "none"}}
        transport = httpx2.ASGITransport(cloud.app)
        headers = {"x-auth-token": cloud.token, "openstack-api-version": "compute 2.96"}
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://cloud:81", headers=headers)
        self.port = AsyncPort(Barriers("", tmp_path))
        self.most = 0
        """The most memory that was ever taken on the host."""

    async def create(self) -> str:
        answer = await self.client.post(SERVERS, json=self.body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["server"]["id"])

    async def statuses(self) -> dict[str, str]:
        found = (await self.client.get(f"{SERVERS}/detail")).json()["servers"]
        return {item["id"]: item["status"] for item in found}

    async def work(self) -> None:
        """The host does what it is told, again and again; whenever it looks, it is not overfull."""
        while True:
            self.most = max(self.most, await self.store.run_read(taken))
            await asyncio.to_thread(self.host.beat)
            await asyncio.to_thread(self.host.work)
            await asyncio.sleep(0.02)

    async def until(self, count: int, status: str, without: Sequence[str] = ()) -> dict[str, str]:
        """Until so many have this status, and none of some others is there any more."""
        async with asyncio.timeout(DEADLINE):
            while True:
                found = await self.statuses()
                there = sum(1 for shown in found.values() if shown == status)
                if there == count and not found.keys() & set(without):
                    return found
                await asyncio.sleep(0.05)

    async def explain(self, server_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"/unstuck/v1/explain/server/{server_id}")).json()
        return found

    async def play(self) -> None:
        control = {}
        for number in range(CONTROLLERS):
            controller = Controller(self.port, self.store, self.cloud.app.app.notifier.wake, tick=0.2)
            control[f"tick {number}"] = controller.tick_forever()
            control[f"servers {number}"] = controller.servers_forever()
        plane = asyncio.ensure_future(self.port.run(control))
        host = asyncio.ensure_future(self.work())
        try:
            await self.scene()
        finally:
            host.cancel()
            self.port.end(0)
            await plane
            await self.client.aclose()

    async def scene(self) -> None:
        made = await asyncio.gather(*(self.create() for _ in range(CREATES)))
        assert len(set(made)) == CREATES
        found = await self.until(ROOM, "ACTIVE")
        waiting = [server_id for server_id, status in found.items() if status == "BUILD"]
        assert len(waiting) == CREATES - ROOM
        await self.says_why(waiting[0])
        left = CREATES
        while left > ROOM:
            gone = [server_id for server_id, status in found.items() if status == "ACTIVE"]
            answers = await asyncio.gather(*(self.client.delete(f"{SERVERS}/{one}") for one in gone))
            assert {answer.status_code for answer in answers} == {204}
            left -= len(gone)
            found = await self.until(min(ROOM, left), "ACTIVE", without=gone)
        assert (len(found), set(found.values())) == (left, {"ACTIVE"})
        assert (await self.store.run_read(taken), self.most) == (left * EACH, ROOM * EACH)

    async def says_why(self, server_id: str) -> None:
        shown = (await self.client.get(f"{SERVERS}/{server_id}")).json()["server"]
        assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("BUILD", "scheduling")
        told = await self.explain(server_id)
        assert "waits for a host with room for its flavor" in told["reason"]
        assert "fails, saying so" in told["next"]
        assert 0 < told["by_seconds"] <= 300


def test_a_full_host_is_never_overfull_and_whoever_waits_comes_up(cloud: Cloud, tmp_path: Path) -> None:
    cloud.loop.run(Crowd(cloud, tmp_path).play())
