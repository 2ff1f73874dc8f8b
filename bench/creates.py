"""Fifty users create servers at once; guests are files."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

from tests.tiny_image import fake_tiny

from bench.databases import Database
from bench.figure import Figure, figure, times
from bench.site import Site, User, cpu_seconds, new_site, user

AT_ONCE = 50
EACH = 6
PATIENCE = 60.0


def creates(database: Database) -> Iterator[Figure]:
    """Each of fifty connections creates the next server as soon as the last was accepted."""
    with database.fresh() as url, new_site("instant", url) as site:
        control = site.control()
        agent, _ = site.agent()
        with user(site, fake_tiny(site.folder / "image")) as client:
            client.lift_limits()
            client.until_active(client.create("warm"))
            before = cpu_seconds(control), cpu_seconds(agent)
            posts, accepted, active = asyncio.run(_run(client))
            used = cpu_seconds(control) - before[0], cpu_seconds(agent) - before[1]
            _check(site, client)
    count = AT_ONCE * EACH
    note = f"{count} servers; CPU of each: control plane {used[0] / count * 1000:.1f} ms, "
    note += f"agent {used[1] / count * 1000:.1f} ms"
    name = f"{database.name}, 50 at once:"
    yield figure(f"{name} accepted", count / accepted, "creates/s", 50, least=True)
    yield figure(f"{name} accepted and ACTIVE", count / active, "creates/s", 50, note, least=True)
    yield times(f"{name} POST /servers", posts)


async def _run(client: User) -> tuple[list[float], float, float]:
    """The time of each POST, of all of them, and until all servers are ACTIVE."""
    posts: list[float] = []

    async def one(number: int) -> None:
        line = client.line()
        for turn in range(EACH):
            began = time.monotonic()
            await line.ask("POST", "/compute/v2.1/servers", client.request(f"bench-{number}-{turn}"))
            posts.append(time.monotonic() - began)
        line.close()

    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
    accepted = time.monotonic() - began
    await until_built(client, 0.1)
    return posts, accepted, time.monotonic() - began


async def until_built(client: User, poll: float) -> None:
    """Until no server is in BUILD any more; raises :class:`TimeoutError`."""
    line = client.line()
    async with asyncio.timeout(PATIENCE):
        for wait in itertools.repeat(poll):
            if b'"id"' not in await line.ask("GET", "/compute/v2.1/servers?status=BUILD&limit=1"):
                break
            await asyncio.sleep(wait)
    line.close()


def _check(site: Site, client: User) -> None:
    """What was promised is there."""
    found = client.cloud.get("/compute/v2.1/servers/detail?status=ACTIVE")["servers"]
    assert len(found) == 1 + AT_ONCE * EACH
    addresses = {item["addr"] for server in found for nics in server["addresses"].values() for item in nics}
    assert len(addresses) == len(found)
    assert len(list(site.state.host.glob("servers/*/guest.json"))) == len(found)
