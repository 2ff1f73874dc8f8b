"""The control plane's loops. Any number of processes may run them: rows are claimed by transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, assert_never

import structlog

from unstuck.core.port import Port
from unstuck.core.server.control import (
    EndCapture,
    FailIt,
    FinishDelete,
    LookAgain,
    PlaceIt,
    Settled,
    plan_control,
)
from unstuck.core.time import backoff
from unstuck.runtime.marks import Forgetful, Marks
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import asks, captures, generation, servers
from unstuck.store.engine import StoreUnavailable, Tx
from unstuck.store.servers import LEASE

P = ParamSpec("P")
T = TypeVar("T")

BATCH = 100
LANES = 16
"""Servers whose next steps are taken at once."""
TICK = 1.0
BACKOFF_MAX = 60.0

log = structlog.get_logger(__name__)


class Transactions(Protocol):
    """The store as the loops need it."""

    def run(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...

    def run_read(
        self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...


Together = Callable[[list[Coroutine[Any, Any, None]]], Awaitable[None]]
"""Runs works until all have ended, and then raises what one of them raised."""


async def one_by_one(works: list[Coroutine[Any, Any, None]]) -> None:
    """In their order: what the simulator can repeat."""
    try:
        for work in works:
            await work
    finally:
        for work in works:
            work.close()


class Controller:
    """Looks at every server whose next look is due and takes the control plane's next step for it."""

    def __init__(
        self,
        port: Port,
        store: Transactions,
        notify: Callable[[str], None],
        *,
        tick: float = TICK,
        watch: Steps | None = None,
        together: Together = one_by_one,
        marks: Marks | None = None,
        disputed_files: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._together = together
        self._watch = watch or Unwatched()
        self._tick = tick
        self._marks: Marks = Forgetful() if marks is None else marks
        self._disputed_files = disputed_files
        self._port = port
        self._store = store
        self._notify = notify
        self._failures: dict[str, int] = {}

    async def _tx(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def tick_forever(self) -> None:
        """Keep the store's clock going, and sweep what is overdue."""
        away = False
        while True:
            try:
                beat = await self._tx(generation.tick, lease_seconds=LEASE, heard=self._marks.mark)
                self._marks.hear(beat.mark)
                if beat.sweep:
                    await self._tx(asks.sweep_asks)
                if beat.recovering:
                    await self._recover()
                if away:
                    away = False
                    log.info("store is available again")
            except StoreUnavailable as error:
                away = True
                log.warning("store unavailable", error=str(error))
            await self._port.pause(self._tick, "tick")

    async def _recover(self) -> None:
        """Recovery mode ends by itself where nothing is in dispute; else an operator ends it."""
        files = self._disputed_files
        try:
            if files is None or await self._port.effect("files.disputed", files) == 0:
                await self._tx(generation.end_if_agreed)
        except OSError as error:
            log.warning("what image files are there cannot be seen", error=str(error))

    async def servers_forever(self) -> None:
        """Take the next step for each due server; one bad record stops nobody else (law 8)."""
        while True:
            try:
                due = await self._port.effect(
                    "store.due_servers", lambda: self._store.run_read(servers.due_servers, BATCH)
                )
                for start in range(0, len(due), LANES):
                    part = due[start : start + LANES]
                    await self._together([self._step_safely(server_id) for server_id in part])
                self._watch.round()
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                due = []
            await self._port.pause(0.0 if len(due) == BATCH else self._tick, "control")

    async def _step_safely(self, server_id: str) -> None:
        try:
            await self.step(server_id)
            self._failures.pop(server_id, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[server_id] = self._failures.get(server_id, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", server=server_id, failures=failures)
            seconds = backoff(failures, 2.0, BACKOFF_MAX, key=server_id)
            await self._tx(servers.postpone, server_id, seconds)

    async def step(self, server_id: str) -> None:
        """One decision and its effect for one server."""
        facts = await self._port.effect(
            "store.server_facts", lambda: self._store.run_read(servers.server_facts, server_id)
        )
        if facts is None:
            return
        plan = plan_control(facts.server, facts.now)
        match plan:
            case PlaceIt():
                await self._place(server_id, facts.hosts)
            case FailIt(code, reason, remedy):
                await self._tx(servers.fail_server, server_id, code, reason, remedy)
            case FinishDelete():
                await self._tx(servers.finish_delete, server_id)
            case EndCapture():
                host_id = await self._tx(captures.end_capture, server_id)
                if host_id is not None:
                    self._notify(f"host:{host_id}")
            case Settled() | LookAgain():
                await self._tx(servers.review_server, server_id)
            case _ as never:
                assert_never(never)

    async def _place(self, server_id: str, hosts: tuple[str, ...]) -> None:
        for host_id in hosts:
            if await self._tx(servers.place, server_id, host_id, self._port.nonce()):
                self._notify(f"host:{host_id}")
                return
        await self._tx(servers.wait_for_host, server_id)
