"""Counters of one process in Prometheus' form. The API and the control loop write to them."""

from __future__ import annotations

from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. Agents' long polls end up in the last ones, under a route of their own."""


class Steps(Protocol):
    """What the control loop tells."""

    def step(self, *, failed: bool) -> None: ...

    def round(self) -> None: ...


class Unwatched:
    """For the simulator, and wherever nobody looks."""

    def step(self, *, failed: bool) -> None:
        pass

    def round(self) -> None:
        pass


class Metrics:
    """All counters of this process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "unstuck_http_request_seconds", "Answered requests by route, method and class of status.",
            ("method", "route", "status"), buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._steps = Counter(
            "unstuck_control_steps", "Steps of the control loop by result.", ("result",),
            registry=self.registry,
        )  # fmt: skip
        self._round = Gauge(
            "unstuck_control_round_timestamp_seconds",
            "When this process last went through everything that was due.", registry=self.registry,
        )  # fmt: skip
        self._done, self._failed = self._steps.labels("done"), self._steps.labels("failed")
        self._known: dict[tuple[str, str, int], Histogram] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One answered request. ``route`` is a path of the route table, never what a client sent."""
        key = (method, route, status // 100)
        child = self._known.get(key)
        if child is None:
            child = self._known[key] = self._requests.labels(method, route, f"{key[2]}xx")
        child.observe(seconds)

    def step(self, *, failed: bool) -> None:
        (self._failed if failed else self._done).inc()

    def round(self) -> None:
        self._round.set_to_current_time()
