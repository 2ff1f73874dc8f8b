"""GET /servers/detail of a thousand servers, against what it costs to write the same answer as JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

import msgspec

from bench.databases import Database
from bench.figure import Figure, figure, spread, times
from bench.fill import clone
from bench.line import Line
from bench.site import new_site, small_image, user

SERVERS = 999
"""And the one they were cloned from."""
ROUNDS = 20


def lists(database: Database) -> Iterator[Figure]:
    """The whole page, as a client gets it."""
    with database.fresh() as url, new_site("instant", url) as site:
        site.control()
        site.agent()
        with user(site, small_image(site.folder / "image")) as client:
            server = client.create("bench")
            client.until_active(server)
            shown = client.cloud.get(f"/compute/v2.1/servers/{server}")["server"]
            clone(url, server, SERVERS, project=shown["tenant_id"])
            seconds, body = asyncio.run(_measure(client.line()))
    parsed = msgspec.json.decode(body)
    assert len(parsed["servers"]) == SERVERS + 1
    encodings = [_time(parsed) for _ in range(ROUNDS)]
    name = f"{database.name}: GET /servers/detail of 1000"
    yield times(name, seconds)
    yield figure(f"{name}, over encoding it", median(seconds) / median(encodings), "x", 5,
                 f"encoding {len(body) >> 10} KB: {spread(encodings)} ms")  # fmt: skip


async def _measure(line: Line) -> tuple[list[float], bytes]:
    seconds, body = [], b""
    for number in range(2 + ROUNDS):
        began = time.monotonic()
        body = await line.ask("GET", "/compute/v2.1/servers/detail")
        if number >= 2:
            seconds.append(time.monotonic() - began)
    line.close()
    return seconds, body


def _time(parsed: object) -> float:
    began = time.monotonic()
    msgspec.json.encode(parsed)
    return time.monotonic() - began
