"""A control plane in this process, real agents over HTTP, guests that are files."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from pathlib import Path
from typing import Any

import httpx2

from unstuck.api.agents import ROUTES
from unstuck.api.app import create_app
from unstuck.api.context import Settings
from unstuck.api.dispatch import Dispatcher
from unstuck.api.notify import Notifier
from unstuck.control.loop import Controller
from unstuck.core.agents import Holdings, HostFacts
from unstuck.core.server.data import Flavor, Spec
from unstuck.core.server.status import status
from unstuck.host.agent import Agent
from unstuck.host.client import HttpControl, Rejected
from unstuck.host.control import Superseded
from unstuck.host.drivers.folder import write_identity
from unstuck.host.drivers.instant import InstantDriver
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import EXIT_REJECTED, EXIT_SUPERSEDED, AsyncPort
from unstuck.store import agents, networks, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.holdings import tell
from unstuck.store.rows import load_server

HOST = "11111111-2222-4333-8444-555555555555"
SECRET = "the host's secret"
DEADLINE = 20.0


def facts(machine_id: str = "machine") -> HostFacts:
    return HostFacts("h", machine_id, "boot", 4, 4096, 100, "none", "instant", "1")


def insert(tx: Tx, server_id: str, user: servers.Caller) -> None:
    new = servers.NewServer(
        id=server_id, name="web", description=None, image_id="image", flavor_id="1", flavor={}, key_name=None,
        metadata={}, tags=(), requested_zone=None, config_drive=True, disk_config="MANUAL",
        reservation_id="r", launch_index=0, access_ipv4="", access_ipv6="",
        spec=Spec("web", "web", "project", "nova", Flavor(1, 64, 1), ()),
    )  # fmt: skip
    servers.insert_server(tx, new, user)
    networks.allot_port(
        tx, port_id=str(uuid.uuid4()), server_id=server_id, project_id="project", network_id=None
    )


class Site:
    """Everything in one loop; ``agent`` starts an agent as its process would."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.store = store
        self.tmp_path = tmp_path
        self.notifier = Notifier()
        self.app: Dispatcher = create_app(
            store, Settings(state_dir=tmp_path), notifier=self.notifier, routes=ROUTES
        )
        self.folder = tmp_path / "host"
        write_identity(self.folder, HOST)
        store.transact(networks.ensure_default_network, project_id="project", cidr="10.0.0.0/24")
        secret_hash = hashlib.sha256(SECRET.encode()).hexdigest()
        store.transact(
            agents.add_host, host_id=HOST, hostname="h", secret_hash=secret_hash, machine_id="machine"
        )
        store.transact(tell, HOST, Holdings(0, 0, ()))  # it holds nothing, so it may be given something

    def client(self, secret: str = SECRET, host: str = HOST, **more: Any) -> HttpControl:
        transport = httpx2.ASGITransport(self.app)
        return HttpControl("http://cloud", host, secret, transport=transport, **more)

    def raw(self, **headers: str) -> httpx2.AsyncClient:
        base = {"authorization": f"Bearer {SECRET}", "unstuck-protocol": "1"}
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app), headers={**base, **headers},
            base_url=f"http://cloud/agents/v1/hosts/{HOST}/",
        )  # fmt: skip

    def user(self) -> servers.Caller:
        return servers.Caller(f"req-{uuid.uuid4()}", "user", "project")

    async def create(self) -> str:
        server_id = str(uuid.uuid4())
        await self.store.run(insert, server_id, self.user())
        self.notifier.wake("control")
        return server_id

    async def status(self, server_id: str) -> str:
        def read(tx: Tx) -> str:
            loaded = load_server(tx, server_id)
            if loaded is None or loaded.server.removed:
                return "gone"
            return str(status(loaded.server, tx.now).vm_state)

        return await self.store.run_read(read)

    async def until(self, server_id: str, wanted: str) -> None:
        """Wait for a state; reports wake us, so this does not depend on how fast the machine is."""
        async with asyncio.timeout(DEADLINE):
            while await self.status(server_id) != wanted:  # noqa: ASYNC110 (reports set no event)
                await asyncio.sleep(0.01)

    def control_port(self) -> AsyncPort:
        return AsyncPort(Barriers("", self.tmp_path))

    def control(self, port: AsyncPort) -> asyncio.Task[int]:
        controller = Controller(port, self.store, self.notifier.wake, tick=0.05)
        works = {"tick": controller.tick_forever(), "servers": controller.servers_forever()}
        return asyncio.ensure_future(port.run(works))

    def agent(self) -> RunningAgent:
        return RunningAgent(self)


class RunningAgent:
    """One agent process, without the process."""

    def __init__(self, site: Site) -> None:
        self.port = AsyncPort(
            Barriers("", site.tmp_path), {Superseded: EXIT_SUPERSEDED, Rejected: EXIT_REJECTED}
        )
        self.control = site.client(wait=2.0)
        driver = InstantDriver(site.folder, HOST, on_event=self.port.wake)
        self.agent = Agent(self.port, self.control, driver, facts(), secrets.token_hex(8))
        self.task = asyncio.ensure_future(self.port.run({"agent": self.agent.run()}))

    async def end(self) -> int:
        self.port.end(0)
        code = await self.task
        await self.control.close()
        return code
