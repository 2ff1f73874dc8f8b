"""Consoles over the control plane's own server: handshakes, subprotocols, limits, and who has to go first."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from api_cloud import ADMIN_HASH, DEMO_HASH, PASSWORDS
from tests.compute_fakes import FakeHost
from tests.compute_site import Site
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from unstuck.api import console as api_console
from unstuck.api.app import SERVICES, all_routes, create_app
from unstuck.api.connections import Gate, Rank, behind, sockets_behind
from unstuck.api.console import digest
from unstuck.api.console.meet import consoles as consoles_of
from unstuck.api.context import Settings
from unstuck.api.identity.auth import Authenticator
from unstuck.api.sockets import all_sockets
from unstuck.api.upgraded import SETTINGS
from unstuck.core.console import MESSAGE_MAX
from unstuck.core.server.data import Flavor, Spec
from unstuck.store import consoles, identity, servers
from unstuck.store.engine import Store
from unstuck.store.schema.compute import asks, hosts

SECRET = "the host's secret"
TABLES = [*SERVICES, "unstuck.api.agents"]


class Served:
    """A real server in a thread, a server (guest) that is ACTIVE, and its host's credential."""

    def __init__(self, store: Store, folder: Path) -> None:
        store.transact(
            identity.bootstrap, admin_password_hash=ADMIN_HASH, demo_password_hash=DEMO_HASH,
            token_key=b"k" * 32, ids=lambda: uuid.uuid4().hex,
        )  # fmt: skip
        self.store = store
        site = Site(store)
        self.host: FakeHost = site.host
        hashed = hashlib.sha256(SECRET.encode()).hexdigest()
        store.transact(lambda tx: tx.execute(sa.update(hosts).values(secret_hash=hashed)))
        self.project = site.project("demo")
        self.server_id = self._server(site)
        self.gate = Gate()
        app = create_app(
            store, Settings(state_dir=folder), routes=all_routes(TABLES), sockets=all_sockets(TABLES),
            extra={"identity": Authenticator(PASSWORDS)},
        )  # fmt: skip
        self.consoles = consoles_of(app.app.extra)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*listener.getsockname())
        config = uvicorn.Config(
            app, loop="uvloop", http=behind(self.gate), ws=sockets_behind(self.gate), lifespan="off",
            log_config=None, access_log=False, timeout_graceful_shutdown=1, **SETTINGS,
        )  # fmt: skip
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [listener]})
        self.thread.start()
        self.listener = listener

    def _server(self, site: Site) -> str:
        server_id = str(uuid.uuid4())
        new = servers.NewServer(
            id=server_id, name="web", description=None, image_id="image", flavor_id="1", flavor={},
            key_name=None, metadata={}, tags=(), requested_zone=None, config_drive=True,
            disk_config="MANUAL", reservation_id="r", launch_index=0, access_ipv4="", access_ipv6="",
            spec=Spec("web", "web", self.project, "nova", Flavor(1, 64, 1), ()),
        )  # fmt: skip
        caller = servers.Caller("req-1", "user", self.project)
        self.store.transact(servers.insert_server, new, caller)
        site.settle()
        return server_id

    def url(self, token: str = "") -> str:
        token = token or self.token()
        return f"ws://{self.address}/console?token={token}"

    def token(self) -> str:
        made = uuid.uuid4().hex
        self.store.transact(
            consoles.make_token, self.server_id, self.project, token_hash=digest(made), user_id="user"
        )
        return made

    def close(self) -> None:
        self.consoles.close()
        self.uvicorn.should_exit = True
        self.thread.join(20.0)
        assert not self.thread.is_alive()
        self.listener.close()


@pytest.fixture
def served(store: Store, tmp_path: Path) -> Iterator[Served]:
    made = Served(store, tmp_path)
    yield made
    made.close()


class Agent:
    """The host's end."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def asked(self) -> str:
        """The id of the open question for a stream."""
        read = self.served.store.read
        async with asyncio.timeout(20.0):
            while True:
                found = read(
                    lambda tx: tx.execute(sa.select(asks.c.id).where(asks.c.kind == "serial")).first()
                )
                if found is not None:
                    return str(found[0])
                await asyncio.sleep(0.01)

    def stream(self, ask_id: str, *, secret: str = SECRET, protocol: str = "1", incarnation: str = "") -> Any:
        host = self.served.host
        number = incarnation or str(host.incarnation)
        url = f"ws://{self.served.address}/agents/v1/hosts/{host.id}/consoles/{ask_id}?incarnation={number}"
        headers = {"authorization": f"Bearer {secret}", "unstuck-protocol": protocol}
        return connect(url, additional_headers=headers, proxy=None, compression=None)


@contextlib.asynccontextmanager
async def both(served: Served, **more: Any) -> AsyncIterator[tuple[ClientConnection, ClientConnection]]:
    """A console with both its ends."""
    agent = Agent(served)
    async with (
        connect(served.url(), proxy=None, **more) as user,
        agent.stream(await agent.asked()) as host,
    ):
        yield user, host


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40.0):
            await work()

    asyncio.run(bounded())


async def refused(opening: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as found:
        await opening
    return found.value.response.status_code, found.value.response.body.decode()


async def forever(socket: ClientConnection) -> AsyncIterator[str | bytes]:
    while True:
        yield await socket.recv()


async def ended(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as found:
        async for _ in forever(socket):
            pass
    assert found.value.rcvd is not None
    return found.value.rcvd.code, found.value.rcvd.reason


@pytest.mark.parametrize(
    ("offered", "agreed", "sends", "shows"),
    [
        (None, None, b"ls\r", b"file"),
        (None, None, "ls\r", b"file"),
        (["binary"], "binary", b"ls\r", b"file"),
        (["base64"], "base64", "bHMN", "ZmlsZQ=="),
        (["base64", "binary"], "base64", "bHMN", "ZmlsZQ=="),
        (["something"], None, b"ls\r", b"file"),
    ],
)
def test_each_client_in_its_own_subprotocol(
    served: Served, offered: Any, agreed: str | None, sends: str | bytes, shows: str | bytes
) -> None:
    async def work() -> None:
        async with both(served, subprotocols=offered) as (user, host):
            assert user.subprotocol == agreed
            await user.send(sends)
            assert await host.recv() == b"ls\r"
            await host.send(b"file")
            assert await user.recv() == shows
            assert served.store.read(lambda tx: tx.execute(sa.select(asks)).all()) == []
            assert served.gate.count(Rank.USER) == 1
            assert served.gate.count(Rank.AGENT) == 1
            await host.close(1000, "the serial port was closed")
            assert await ended(user) == (1000, "the serial port was closed")

    run(work)


def test_the_user_who_leaves_ends_the_hosts_stream(served: Served) -> None:
    async def work() -> None:
        async with both(served) as (user, host):
            await user.close()
            assert await ended(host) == (1000, "the user has left")

    run(work)


def test_what_is_no_base64_and_what_is_too_long_ends_the_console(served: Served) -> None:
    async def work() -> None:
        async with both(served, subprotocols=["base64"]) as (user, _):
            await user.send("no base64!")
            assert (await ended(user))[0] == 1008
        async with both(served) as (user, _):
            await user.send(b"x" * (MESSAGE_MAX + 1))
            assert (await ended(user))[0] == 1009

    run(work)


def test_a_wrong_address_is_refused_before_anything_is_asked(served: Served) -> None:
    async def work() -> None:
        address = served.address
        for url in (
            f"ws://{address}/console", served.url("wrong"), served.url("x" * 5000), f"ws://{address}/console?token=",
        ):  # fmt: skip
            status, said = await refused(connect(url, proxy=None))
            assert (status, "opens no console" in said) == (403, True)
        assert (await refused(connect(f"ws://{address}/nothing", proxy=None)))[0] == 404
        assert (await refused(connect(f"ws://{address}/compute/v2.1/servers", proxy=None)))[0] == 404
        assert served.store.read(lambda tx: tx.execute(sa.select(asks)).all()) == []
        assert served.gate.count(Rank.USER) == 0

    run(work)


def test_only_a_page_of_this_cloud_opens_it_and_a_stranger_uses_nothing_up(served: Served) -> None:
    async def work() -> None:
        token = served.token()
        strange = connect(served.url(token), proxy=None, origin="http://elsewhere.example")  # type: ignore[arg-type]
        assert (await refused(strange))[0] == 403
        agent = Agent(served)
        ours = f"http://{served.address}"
        async with (
            connect(served.url(token), proxy=None, origin=ours) as user,  # type: ignore[arg-type]
            agent.stream(await agent.asked()) as host,
        ):
            await user.send(b"x")
            assert await host.recv() == b"x"

    run(work)


def test_a_stream_needs_the_hosts_credential_and_somebody_who_waits(served: Served) -> None:
    async def work() -> None:
        agent = Agent(served)
        assert (await refused(agent.stream("nobody")))[0] == 404
        async with connect(served.url(), proxy=None) as user:
            ask_id = await agent.asked()
            assert (await refused(agent.stream(ask_id, secret="wrong")))[0] == 401
            assert (await refused(agent.stream(ask_id, protocol="99")))[0] == 400
            assert (await refused(agent.stream(ask_id, incarnation="x")))[0] == 400
            served.host.register()  # another agent has followed
            assert (await refused(agent.stream(ask_id, incarnation="1")))[0] == 409
            async with agent.stream(ask_id) as host:
                assert (await refused(agent.stream(ask_id)))[0] == 404  # one has come already
                await host.send(b"here")
                assert await user.recv() == b"here"

    run(work)


def test_the_reason_of_the_host_is_said_to_the_user(served: Served) -> None:
    async def work() -> None:
        served.host.serial = '{"serial": false, "reason": "4 consoles of it are open"}'
        async with connect(served.url(), proxy=None) as user:
            await Agent(served).asked()
            await asyncio.to_thread(served.host.wants)
            assert await ended(user) == (1011, "4 consoles of it are open")

    run(work)


def test_a_host_that_does_not_come_is_waited_for_no_longer_than_said(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_console, "COMING", 0.3)

    async def work() -> None:
        async with connect(served.url(), proxy=None) as user:
            code, said = await ended(user)
            assert (code, "did not answer" in said) == (1011, True)
        assert served.store.read(lambda tx: tx.execute(sa.select(asks)).all()) == []

    run(work)


def test_a_process_that_ends_says_so(served: Served) -> None:
    async def work() -> None:
        async with both(served) as (user, host):
            served.uvicorn.should_exit = True  # the order in which the control plane does it
            asyncio.get_running_loop().call_later(0.1, served.consoles.close)
            codes = {(await ended(user))[0], (await ended(host))[0]}
            assert codes <= {1001, 1012}

    run(work)


def test_no_connection_is_left_in_the_gate(served: Served) -> None:
    async def work() -> None:
        async with both(served) as (user, _):
            await user.send(b"x")
        await refused(connect(served.url("wrong"), proxy=None))

    run(work)
    over = time.monotonic() + 20.0
    while served.gate.count():
        assert time.monotonic() < over
        time.sleep(0.02)


def test_a_handshake_that_is_none_is_answered_and_closed(served: Served) -> None:
    def ask(head: bytes) -> bytes:
        host, _, port = served.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=20.0) as connection:
            connection.sendall(head)
            out = b""
            while piece := connection.recv(65536):
                out += piece
            return out

    base = b"GET /console HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    for more, status in (
        (b"\r\n", b" 400 "),
        (key.replace(b"13", b"1") + b"\r\n", b" 400 "),
        (key + b"\r\n" + b"\0" * 70_000, b" 403 "),  # who sends before the answer is heard no further
    ):
        assert status in ask(base + more).partition(b"\r\n")[0]
