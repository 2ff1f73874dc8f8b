"""An agent with a right credential that says anything at all: no 5xx, and what is refused changes nothing."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import secrets
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from agents_site import HOST, Site, facts

from unstuck.core.agents import Answer, Claim, Heartbeat, Holdings, Register, Report
from unstuck.core.server.data import Fence, Gone, Observation, Running, Step, Thing, Trouble
from unstuck.store import agents, asks, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.holdings import tell
from unstuck.store.overview import inventory, overview
from unstuck.store.readable import find_unreadable
from unstuck.store.rows import load_server
from unstuck.store.schema import metadata

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 1.5, 1e308, "", "x" * 5000, "\0",
    "é\u202e\x1b[31m", "../../etc/passwd", [], [[]] * 3, {}, {"type": "Running"},
)  # fmt: skip
RAW = (
    b"", b"null", b"[]", b"{", b'"', b"\xff\xfe", b'{"incarnation": 1e400}', b'{"text": "\\ud800"}',
    b"[" * 5000, b'{"a":' * 5000, b"{}" * 2, b'{"incarnation": 1, "incarnation": 2}',
)  # fmt: skip
TABLES = [table.name for table in metadata.sorted_tables if table.name != "clock"]


def everything(tx: Tx) -> list[str]:
    """Every row of every table, read as plainly as possible: thousands of requests are judged by it."""
    cursor = tx.cursor()
    if tx.postgresql:
        cursor.execute(" UNION ALL ".join(f"SELECT '{name}', x::text FROM {name} x" for name in TABLES))
        return sorted(map(repr, cursor.fetchall()))
    found = []
    for name in TABLES:
        cursor.execute(f"SELECT * FROM {name}")
        found += [f"{name} {row}" for row in cursor.fetchall()]
    return sorted(found)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a body, from the outside in."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def changed(body: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    whole = copy.deepcopy(body)
    inner = whole
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return whole


Mutation = Callable[[Any], bytes]


def mutations(valid: Any) -> Iterator[Mutation]:
    """What may be done to a valid body: any value at any place, anything left out, anything at all."""
    for at, new in itertools.product(places(valid), VALUES):
        yield lambda body, at=at, new=new: json.dumps(changed(body, at, new)).encode()
    yield lambda body: json.dumps({**body, "unknown": {"a": [1]}}).encode()
    for key in valid:
        yield lambda body, key=key: json.dumps({name: body[name] for name in body if name != key}).encode()
    for raw in RAW:
        yield lambda _, raw=raw: raw


class Hostile:
    """One host's agent, and a server that is placed on it and asked about."""

    def __init__(self, site: Site, client: httpx2.AsyncClient) -> None:
        self.site = site
        self.client = client
        self.server_id = ""
        self.incarnation = 0
        self.fence = Fence(1, 1)
        self.ask_id = ""

    async def begin(self) -> None:
        await self.join()  # a host has no room before it has said what it has
        self.server_id = await self.site.create()
        assert await self.site.store.run(servers.place, self.server_id, HOST, "nonce")
        await self.register()

    async def join(self) -> None:
        """A new incarnation: what was said before, in whatever sequence, is of another."""
        after = -1
        start = secrets.token_hex(8)
        for _ in range(2):
            answer = await self.client.post("register", content=encode(Register(start, facts(), after)))
            assert answer.status_code == 200, answer.text
            after = answer.json()["incarnation"]
        self.incarnation = after

    async def register(self) -> None:
        """So, with the server's fence and a new question."""
        await self.join()

        def look(tx: Tx) -> Fence:
            loaded = load_server(tx, self.server_id)
            assert loaded is not None
            assert loaded.server.place is not None
            return loaded.server.place.fence

        self.fence = await self.site.store.run_read(look)
        self.ask_id = str(uuid.uuid4())
        await self.site.store.run(
            asks.ask_host,
            ask_id=self.ask_id,
            server_id=self.server_id,
            kind="console",
            lines=10,
            seconds=60.0,
        )

    def valid(self) -> dict[str, Any]:
        trouble = Trouble("code", "reason", "remedy", final=False)
        seen = Observation(1, Running(1), Thing.PRESENT, Step.WAITING, trouble)
        gone = msgspec.structs.replace(seen, guest=Gone(2, "why"), trouble=None)
        return {
            "register": Register(secrets.token_hex(8), facts(), self.incarnation),
            "heartbeat": Heartbeat(self.incarnation, 5, ("stray",)),
            "claims": Claim(self.incarnation, self.server_id, self.fence),
            "reports": Report(self.incarnation, 6, self.server_id, self.fence, seen, "disk"),
            "reports ": Report(self.incarnation, 7, self.server_id, self.fence, gone),
            f"answers/{self.ask_id}": Answer(self.incarnation, "text"),
        }

    async def state(self) -> list[str]:
        return await self.site.store.run_read(everything)

    async def send(self, path: str, data: bytes) -> int:
        """One request; it is judged by what the store holds before and after it."""
        before = await self.state()
        answer = await self.client.post(path.strip(), content=data)
        assert answer.status_code < 500, (path, data[:300], answer.text)
        if answer.status_code >= 400:
            assert before == await self.state(), (path, data[:300], answer.text)
            assert answer.json()["error"]["code"] == answer.status_code
        return answer.status_code


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def hostile_site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    found: Store = request.getfixturevalue("store" if request.param == "sqlite" else "postgres_store")
    return Site(found, tmp_path)


@pytest.mark.parametrize("which", range(6))
def test_whatever_an_agent_says_it_is_served_or_refused(hostile_site: Site, which: int) -> None:
    async def main() -> None:
        async with hostile_site.raw() as client:
            agent = Hostile(hostile_site, client)
            await agent.begin()
            _, valid = list(agent.valid().items())[which]
            unreadable = await hostile_site.store.run_read(find_unreadable)
            accepted = count = 0
            for mutate in mutations(msgspec.to_builtins(valid)):
                path, valid = list(agent.valid().items())[which]
                count += 1
                if await agent.send(path, mutate(msgspec.to_builtins(valid))) < 300:
                    accepted += 1
                    await hostile_site.store.run_read(overview)
                    await hostile_site.store.run_read(inventory)
                    assert await hostile_site.store.run_read(find_unreadable) == unreadable
                    await agent.register()
            assert 0 < accepted < count / 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "query",
    [
        f"{name}={value}"
        for name in ("incarnation", "since", "wait")
        for value in ("", "x", "-1", str(2**63), str(2**70), "1e400", "nan", "inf", "-inf", "%00", "1&wait=0")
    ],
)
def test_a_poll_for_anything_is_served_or_refused(site: Site, query: str) -> None:
    async def main() -> None:
        async with site.raw() as client:
            agent = Hostile(site, client)
            await agent.begin()
            before = await agent.state()
            base = {"incarnation": str(agent.incarnation), "since": "-1", "wait": "0"}
            name = query.partition("=")[0]
            rest = "&".join(f"{key}={value}" for key, value in base.items() if key != name)
            async with asyncio.timeout(20):
                answer = await client.get(f"world?{query}&{rest}")
            assert answer.status_code < 500
            if answer.status_code >= 400:
                assert before == await agent.state()

    asyncio.run(main())


@pytest.mark.parametrize(
    "path",
    ["", "..", "x/y", "answers/", "answers/%00", "images/..%2f..", "images/%ff", "images/" + "x" * 5000],
)
def test_any_path_behind_a_host_is_served_or_refused(site: Site, path: str) -> None:
    async def main() -> None:
        async with site.raw() as client:
            for method in ("GET", "POST", "PUT", "DELETE"):
                answer = await client.request(method, f"/agents/v1/hosts/{HOST}/{path}", content=b"{}")
                assert 400 <= answer.status_code < 500

    asyncio.run(main())


def test_a_host_cannot_speak_of_servers_of_another(site: Site) -> None:
    """Its own credential, another's server: refused, and nothing changes."""
    other = str(uuid.uuid4())
    site.store.transact(
        agents.add_host, host_id=other, hostname="o", secret_hash="0" * 64, machine_id="other"
    )
    site.store.transact(tell, other, Holdings(0, 0, ()))

    async def main() -> None:
        async with site.raw() as client:
            agent = Hostile(site, client)
            await agent.begin()
            for after in (-1, 0):
                await site.store.run(agents.register, other, Register("start", facts("other"), after))
            theirs = await site.create()
            assert await site.store.run(servers.place, theirs, other, "nonce")
            for path in ("claims", "reports"):
                body = msgspec.structs.replace(agent.valid()[path], server_id=theirs)
                assert await agent.send(path, encode(body)) == 410

    asyncio.run(main())
