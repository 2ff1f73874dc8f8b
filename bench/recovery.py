"""A hundred guests were started and never reported when their agent died; the next one finds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from tests.tiny_image import fake_tiny

from bench.creates import until_built
from bench.databases import Database
from bench.deaf import Deaf
from bench.figure import Figure, figure, spread
from bench.site import Site, User, kill_hard, new_site, until, user

GUESTS = 100
ROUNDS = 3


def hundred(database: Database) -> Iterator[Figure]:
    """From the next agent's answered registration until the API calls all of them ACTIVE."""
    seconds = []
    for _ in range(ROUNDS):
        with database.fresh() as url, new_site("instant", url) as site:
            site.control()
            with user(site, fake_tiny(site.folder / "image")) as client:
                client.lift_limits()
                seconds.append(_once(site, client))
    yield figure(f"{database.name}: recovery of {GUESTS} guests", median(seconds), "s", 1, spread(seconds, 1))


def _once(site: Site, client: User) -> float:
    deaf = Deaf(site.state.read().port)
    try:
        first, _ = site.agent(url=deaf.url)
        for number in range(GUESTS):
            client.create(f"bench-{number}")
        until(lambda: len(list(site.state.host.glob("servers/*/guest.json"))) == GUESTS, 0.1)
        kill_hard(first)
    finally:
        deaf.close()
    building = client.cloud.get("/compute/v2.1/servers?status=BUILD")["servers"]
    assert len(building) == GUESTS
    _, registered = site.agent()
    asyncio.run(until_built(client, 0.02))
    took = time.time() - registered
    assert len(client.cloud.get("/compute/v2.1/servers?status=ACTIVE")["servers"]) == GUESTS
    return took
