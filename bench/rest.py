"""What heartbeats, unchanged reports, looks for news, sweeps and creates cost beside many servers at rest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import sqlalchemy as sa
from tests.tiny_image import fake_tiny

from bench.databases import Database
from bench.figure import Figure, figure, spread
from bench.fill import clone
from bench.line import Line
from bench.site import Site, User, kill_hard, new_site, user
from unstuck.core.agents import PROTOCOL, Heartbeat, Register, Registered, Report, World
from unstuck.core.server.data import Observation, Running, Step, Thing
from unstuck.host.main import facts, read_identity
from unstuck.store import asks, clock, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.compute import servers as rows

FEW, MANY = 1_000, 100_000
FLAT = 1.5
"""The most that a hundred times as many servers may cost; measuring alone differs by a fifth."""
ROUNDS = 200
WARM = 20


def rest(database: Database) -> Iterator[Figure]:
    """The same calls beside a thousand and beside a hundred thousand servers, turn about."""
    with _cloud(database, FEW) as few, _cloud(database, MANY) as many:
        found = asyncio.run(_turn_about(few, many))
        for cloud in (few, many):
            kill_hard(cloud.control)
        found |= _sweeps(few.url, many.url)
    for name, (before, after) in found.items():
        low, high = median(before) * 1000, median(after) * 1000
        note = f"{low:.2f} ms, then {high:.2f} ms ({spread(after)}); fastest {min(after) / min(before):.2f}"
        yield figure(f"{database.name}: {name}, {MANY} over {FEW}", high / low, "x", FLAT, note)


@dataclass
class Resting:
    """A control plane without an agent, beside so many servers."""

    url: str
    site: Site
    client: User
    control: subprocess.Popen[bytes]


@contextlib.contextmanager
def _cloud(database: Database, count: int) -> Iterator[Resting]:
    with database.fresh() as url, new_site("instant", url) as site:
        control = site.control()
        agent, _ = site.agent()
        with user(site, fake_tiny(site.folder / "image")) as client:
            client.lift_limits()
            server = client.create("bench")
            client.until_active(server)
            kill_hard(agent)
            clone(url, server, count - 1)
            yield Resting(url, site, client, control)


Call = Callable[[], Awaitable[Any]]
Pair = tuple[list[float], list[float]]


async def _turn_about(few: Resting, many: Resting) -> dict[str, Pair]:
    """Times of each call in both clouds: one here, one there, so that both meet the same load."""
    calls = await _calls(few), await _calls(many)
    found: dict[str, Pair] = {}
    for name in calls[0]:
        found[name] = ([], [])
        for turn in range(WARM + ROUNDS):
            for seconds, there in zip(found[name], calls, strict=True):
                began = time.monotonic()
                await there[name]()
                if turn >= WARM:
                    seconds.append(time.monotonic() - began)
    return found


async def _calls(cloud: Resting) -> dict[str, Call]:
    site, client = cloud.site, cloud.client
    identity = read_identity(site.state.host)
    headers = {"authorization": f"Bearer {identity.secret}", "unstuck-protocol": str(PROTOCOL)}
    line, users = Line(site.state.read().port, headers), client.line()
    base = f"/agents/v1/hosts/{identity.host_id}"
    known = facts(site.state.host, identity.machine_id, "instant", "none", "1")
    now = await _register(line, base, Register("bench", known))
    got = await _register(line, base, Register("bench", known, now.incarnation))
    path = f"{base}/world?incarnation={got.incarnation}&since="
    world = msgspec.json.decode(await line.ask("GET", path + "-1"), type=World)
    (want,) = world.wants
    seen = Observation(want.intent, Running(want.edge), Thing.PRESENT, Step.AT_REST)
    number = itertools.count(1)

    def report() -> Report:
        return Report(got.incarnation, next(number), want.server_id, want.fence, seen)

    one = f"/compute/v2.1/servers/{want.server_id}"
    page = "/compute/v2.1/servers/detail?limit=20"
    return {
        "heartbeat": lambda: line.ask("POST", f"{base}/heartbeat", Heartbeat(got.incarnation, next(number))),
        "report": lambda: line.ask("POST", f"{base}/reports", report()),
        "look for news": lambda: line.ask("GET", f"{path}{world.version}"),
        "GET one server": lambda: users.ask("GET", one),
        "GET of a page": lambda: users.ask("GET", page),
        "POST /servers": lambda: users.ask(
            "POST", "/compute/v2.1/servers", client.request(f"b{next(number)}")
        ),
    }


async def _register(line: Line, base: str, ask: Register) -> Registered:
    return msgspec.json.decode(await line.ask("POST", f"{base}/register", ask), type=Registered)


def _sweeps(*urls: str) -> dict[str, Pair]:
    """A round of the control loop's transactions with nothing to do, without a control plane beside it."""
    found: Pair = ([], [])
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(Store(url))) for url in urls]
        for store in stores:
            store.transact(_put_off)
        for turn in range(WARM + ROUNDS):
            for seconds, store in zip(found, stores, strict=True):
                began = time.monotonic()
                store.transact(clock.tick, lease_seconds=servers.LEASE)
                store.transact(asks.sweep_asks)
                assert store.read(servers.due_servers, 100) == []
                if turn >= WARM:
                    seconds.append(time.monotonic() - began)
    return {"sweep": found}


def _put_off(tx: Tx) -> None:
    """What was created here waits for a host: it is not due while sweeps are measured."""
    later = {"next_look": rows.c.next_look + 3600.0}
    tx.execute(sa.update(rows).where(sa.not_(rows.c.settled)).values(later))
