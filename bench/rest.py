"""What heartbeats, unchanged reports, looks for news, sweeps and creates cost beside many servers at rest."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import msgspec

from bench.databases import Database
from bench.figure import Figure, figure, spread
from bench.fill import clone
from bench.line import Line
from bench.site import Site, User, kill_hard, new_site, small_image, user
from unstuck.core.agents import PROTOCOL, Heartbeat, Register, Registered, Report, World
from unstuck.core.server.data import Observation, Running, Step, Thing
from unstuck.host.main import facts, read_identity
from unstuck.store import asks, clock, servers
from unstuck.store.engine import Store

FEW, MANY = 1_000, 100_000
FLAT = 1.5
"""The most that a hundred times as many servers may cost; measuring alone differs by a fifth."""
ROUNDS = 200


def rest(database: Database) -> Iterator[Figure]:
    """The same calls beside a thousand and beside a hundred thousand servers."""
    few, many = _costs(database, FEW), _costs(database, MANY)
    for name, seconds in many.items():
        before = median(few[name]) * 1000
        note = (
            f"{before:.2f} ms beside {FEW}, {median(seconds) * 1000:.2f} ms beside {MANY} ({spread(seconds)})"
        )
        yield figure(
            f"{database.name}: {name}, {MANY} over {FEW}", median(seconds) * 1000 / before, "x", FLAT, note
        )


def _costs(database: Database, count: int) -> dict[str, list[float]]:
    with database.fresh() as url, new_site("instant", url) as site:
        control = site.control()
        agent, _ = site.agent()
        with user(site, small_image(site.folder / "image")) as client:
            client.lift_limits()
            server = client.create("bench")
            client.until_active(server)
            kill_hard(agent)
            clone(url, server, count - 1)
            found = asyncio.run(_calls(site, client))
        kill_hard(control)
        return found | _sweep(url)


async def _calls(site: Site, client: User) -> dict[str, list[float]]:
    identity = read_identity(site.state.host)
    headers = {"authorization": f"Bearer {identity.secret}", "unstuck-protocol": str(PROTOCOL)}
    line = Line(site.state.read().port, headers)
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

    users = client.line()
    one = f"/compute/v2.1/servers/{want.server_id}"
    await line.ask("POST", f"{base}/reports", report())
    try:
        return {
            "heartbeat": await _times(
                lambda: line.ask("POST", f"{base}/heartbeat", Heartbeat(got.incarnation, next(number)))
            ),
            "report": await _times(lambda: line.ask("POST", f"{base}/reports", report())),
            "look for news": await _times(lambda: line.ask("GET", f"{path}{world.version}")),
            "GET one server": await _times(lambda: users.ask("GET", one)),
            "GET of a page": await _times(lambda: users.ask("GET", "/compute/v2.1/servers/detail?limit=20")),
            "POST /servers": await _times(
                lambda: users.ask("POST", "/compute/v2.1/servers", client.request(f"b{next(number)}")), 100
            ),
        }
    finally:
        line.close()
        users.close()


async def _register(line: Line, base: str, ask: Register) -> Registered:
    return msgspec.json.decode(await line.ask("POST", f"{base}/register", ask), type=Registered)


async def _times(work: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    seconds = []
    for turn in range(10 + rounds):
        began = time.monotonic()
        await work()
        if turn >= 10:
            seconds.append(time.monotonic() - began)
    return seconds


def _sweep(url: str) -> dict[str, list[float]]:
    """A round of the control loop's transactions with nothing to do, without a control plane beside it."""
    store = Store(url)
    seconds = []
    try:
        for server_id in store.read(servers.due_servers, 1000):
            store.transact(servers.postpone, server_id, 3600.0)
        for _ in range(ROUNDS):
            began = time.monotonic()
            store.transact(clock.tick, lease_seconds=servers.LEASE)
            store.transact(asks.sweep_asks)
            assert store.read(servers.due_servers, 100) == []
            seconds.append(time.monotonic() - began)
    finally:
        store.close()
    return {"sweep": seconds}
