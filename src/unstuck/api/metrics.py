"""``GET /metrics`` for Prometheus: what is on its way and for how long, hosts, requests, the control loop.

Open to the machine itself; from elsewhere with the token in the state folder (``secrets/metrics-token``) as
a bearer. Where a public URL is set a proxy stands in front, all requests come from it, and the token is
always needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from unstuck.api.errors import ApiError
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.runtime.metrics import Metrics
from unstuck.store.engine import Store, StoreUnavailable
from unstuck.store.figures import Figures, Moving, Resting, figures, resting
from unstuck.store.protection import Protection, protection

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
COUNT_EVERY: Final = 60.0
"""Seconds between two counts of what is at rest: the one figure whose cost grows with the cloud."""
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "via")

log = structlog.get_logger(__name__)


class AtRest:
    """The last count of servers at rest, and of how databases are protected. It is taken beside the scrapes,
    which never wait for it."""

    def __init__(self) -> None:
        self.found: Resting | None = None
        self.protection: Protection | None = None
        self._counted = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def age(self) -> float:
        return time.monotonic() - self._counted

    def refresh(self, store: Store) -> None:
        """Count again if the last count is old and none is under way."""
        idle = self._task is None or self._task.done()
        if idle and (self.found is None or self.age >= COUNT_EVERY):
            self._task = asyncio.get_running_loop().create_task(self._count(store))

    async def _count(self, store: Store) -> None:
        with contextlib.suppress(StoreUnavailable):
            self.found = await store.run_read(resting)
            self._counted = time.monotonic()
            self.protection = await store.run_read(protection)


class _FromStore(Collector):
    """One scrape's figures."""

    def __init__(self, found: Figures | None, at_rest: AtRest) -> None:
        self._found = found
        self._at_rest = at_rest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = 0.0 if self._found is None else 1.0
        yield GaugeMetricFamily("unstuck_store_up", "Whether the store answers.", up)
        if self._found is not None:
            yield from _of_store(self._found)
        if self._at_rest.found is not None:
            yield from _of_rest(self._at_rest.found, self._at_rest.age)
        if self._at_rest.protection is not None:
            yield from _of_protection(self._at_rest.protection)


def _of_store(found: Figures) -> Iterator[GaugeMetricFamily]:
    yield from _of_moving(found.moving)
    hosts = GaugeMetricFamily("unstuck_hosts", "Hosts by state; a silent one is down.", labels=["state"])
    for state, count in found.hosts.items():
        hosts.add_metric([state], count)
    yield hosts
    yield GaugeMetricFamily(
        "unstuck_tombstones", "Deleted servers whose host was not yet seen without them.",
        found.tombstones.count,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "unstuck_store_tick_age_seconds", "Time since any control loop advanced the store's clock.",
        found.since_tick,
    )  # fmt: skip
    yield GaugeMetricFamily("unstuck_store_generation", "Generation of the store.", found.generation)


def _of_moving(moving: dict[str, Moving]) -> Iterator[GaugeMetricFamily]:
    age = GaugeMetricFamily(
        "unstuck_oldest_unsettled_seconds", "Age of the oldest row that is not settled; 0 where all are.",
        labels=["kind"],
    )  # fmt: skip
    count = GaugeMetricFamily("unstuck_unsettled", "Rows that are not settled.", labels=["kind"])
    late = GaugeMetricFamily(
        "unstuck_overdue", "Rows past their next look or deadline that nobody has dealt with yet.",
        labels=["kind"],
    )  # fmt: skip
    for kind, item in moving.items():
        age.add_metric([kind], item.oldest_seconds)
        count.add_metric([kind], item.count)
        late.add_metric([kind], item.overdue)
    yield from (age, count, late)


def _of_rest(found: Resting, age: float) -> Iterator[GaugeMetricFamily]:
    rest = GaugeMetricFamily(
        "unstuck_servers_at_rest", "Settled servers: on, off, or failed with a reason.", labels=["state"]
    )
    for state in ("on", "off", "failed"):
        rest.add_metric([state], getattr(found, state))
    yield rest
    yield GaugeMetricFamily(
        "unstuck_servers_at_rest_age_seconds", "How old the count of settled servers is.", age
    )


def _of_protection(found: Protection) -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("unstuck_backups_complete", "Complete backups.", found.complete)
    yield GaugeMetricFamily(
        "unstuck_backups_damaged", "Complete backups that are known to be damaged.", found.damaged
    )
    logs = GaugeMetricFamily(
        "unstuck_archives", "Archives of logs: open, or ended by a gap or another history.", labels=["state"]
    )
    for state, count in found.archives.items():
        logs.add_metric([state], count)
    yield logs
    yield GaugeMetricFamily(
        "unstuck_archive_lag_seconds", "How long the part of a log that is not kept yet waits; the worst.",
        found.lag_seconds,
    )  # fmt: skip


def _is_local(call: Call) -> bool:
    """Whether this machine itself asks, and nobody through it."""
    peer = call.http.client
    if peer is None or call.app.settings.public_url or any(name in call.http.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(peer.host).is_loopback
    except ValueError:
        return False


def _check(call: Call) -> None:
    kind, _, given = call.http.headers.get("authorization", "").partition(" ")
    token = call.app.settings.metrics_token
    if token and kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
        return
    if not _is_local(call):
        message = "Metrics are for this machine itself, or need the metrics token as a bearer."
        raise ApiError(401, message, headers={"www-authenticate": 'Bearer realm="metrics"'})


async def metrics(call: Call) -> Reply:
    """``GET /metrics``."""
    _check(call)
    at_rest: AtRest = call.app.extra.setdefault("metrics.at_rest", AtRest())
    at_rest.refresh(call.store)
    found = None
    try:
        found = await call.store.run_read(figures)
    except StoreUnavailable as error:
        log.warning("store unavailable", error=str(error))
    registry = CollectorRegistry()
    registry.register(_FromStore(found, at_rest))
    counters: Metrics = call.app.extra["metrics"]
    body = generate_latest(registry) + generate_latest(counters.registry)
    return Reply(body, headers={"content-type": TYPE})


ROUTES: list[Route] = [route("GET", "/metrics", metrics, "public")]
