"""GET /servers/detail of a thousand servers, against what it costs to write the same answer as JSON."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from statistics import median

import msgspec
from tests.tiny_image import fake_tiny

from bench.databases import Database
from bench.figure import Figure, figure, spread, times
from bench.fill import clone
from bench.line import Line
from bench.site import new_site, user

SERVERS = 999
"""And the one they were cloned from."""
ROUNDS = 20


def lists(database: Database) -> Iterator[Figure]:
    """The whole page, as a client gets it."""
    with database.fresh() as url, new_site("instant", url) as site:
        site.control()
        site.agent()
        with user(site, fake_tiny(site.folder / "image")) as client:
            server = client.create("bench")
            client.until_active(server)
            shown = client.cloud.get(f"/compute/v2.1/servers/{server}")["server"]
            clone(url, server, SERVERS, project=shown["tenant_id"])
            seconds, body = asyncio.run(_measure(client.line()))
    parsed = msgspec.json.decode(body)
    assert len(parsed["servers"]) == SERVERS + 1
    name = f"{database.name}: GET /servers/detail of 1000"
    yield times(name, seconds)
    yield from _over(f"{name}, over Python's json", json.dumps, parsed, seconds, 5)
    yield from _over(f"{name}, over msgspec", msgspec.json.encode, parsed, seconds, None)


def _over(
    name: str, encode: Callable[[object], object], parsed: object, seconds: list[float], goal: float | None
) -> Iterator[Figure]:
    """Medians and fastest runs: what other processes take of the machine is in the former only."""
    encodings = [_time(encode, parsed) for _ in range(ROUNDS)]
    note = f"encoding: {spread(encodings)} ms; fastest over fastest {min(seconds) / min(encodings):.2f}"
    yield figure(name, median(seconds) / median(encodings), "x", goal, note)


async def _measure(line: Line) -> tuple[list[float], bytes]:
    seconds, body = [], b""
    for number in range(2 + ROUNDS):
        began = time.monotonic()
        body = await line.ask("GET", "/compute/v2.1/servers/detail")
        if number >= 2:
            seconds.append(time.monotonic() - began)
    line.close()
    return seconds, body


def _time(encode: Callable[[object], object], parsed: object) -> float:
    began = time.monotonic()
    encode(parsed)
    return time.monotonic() - began
