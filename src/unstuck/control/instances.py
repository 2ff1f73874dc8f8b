"""The loop of database instances. Any number of processes may run it: each step is decided in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, assert_never

import structlog

from unstuck.control.loop import BACKOFF_MAX, BATCH, LANES, TICK, Together, Transactions, one_by_one
from unstuck.core.instance.control import (
    Apply,
    CancelBackup,
    DeleteServer,
    FailIt,
    FinishDelete,
    GoBack,
    LookAgain,
    Settled,
    Shelve,
    StopServer,
    plan_control,
)
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import instance_work
from unstuck.store.engine import StoreUnavailable, Tx

P = ParamSpec("P")
T = TypeVar("T")

WAKE = "instances"

log = structlog.get_logger(__name__)


class InstanceController:
    """Looks at every instance whose next look is due, and takes the control plane's next step for it."""

    def __init__(
        self, port: Port, store: Transactions, notify: Callable[[str], None], *, tick: float = TICK,
        watch: Steps | None = None, together: Together = one_by_one,
    ) -> None:  # fmt: skip
        self._port = port
        self._store = store
        self._notify = notify
        self._tick = tick
        self._watch = watch or Unwatched()
        self._together = together
        self._failures: dict[str, int] = {}

    async def _tx(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def instances_forever(self) -> None:
        """Take the next step for each due instance; one bad record stops nobody else (law 8)."""
        while True:
            try:
                due = await self._round()
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                due = 0
            await self._port.pause(0.0 if due == BATCH else self._tick, WAKE)

    async def _round(self) -> int:
        due = await self._port.effect(
            "store.due_instances", lambda: self._store.run_read(instance_work.due_instances, BATCH)
        )
        for start in range(0, len(due), LANES):
            await self._together([self._step_safely(one) for one in due[start : start + LANES]])
        return len(due)

    async def _step_safely(self, instance_id: str) -> None:
        try:
            await self.step(instance_id)
            self._failures.pop(instance_id, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[instance_id] = self._failures.get(instance_id, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", instance=instance_id, failures=failures)
            seconds = backoff(failures, 2.0, BACKOFF_MAX, key=instance_id)
            await self._tx(instance_work.postpone_instance, instance_id, seconds)

    async def step(self, instance_id: str) -> None:
        """One decision and its effect for one instance."""
        facts = await self._port.effect(
            "store.instance_facts", lambda: self._store.run_read(instance_work.instance_facts, instance_id)
        )
        if facts is None:
            return
        host_id: str | None = None
        plan = plan_control(facts.instance, facts.now)
        match plan:
            case Apply():
                host_id = await self._tx(instance_work.apply_pending, instance_id)
            case GoBack():
                host_id = await self._tx(instance_work.go_back, instance_id)
            case CancelBackup():
                host_id = await self._tx(instance_work.cancel_for_pending, instance_id)
            case FailIt(code, reason, remedy):
                await self._tx(instance_work.fail_instance, instance_id, code, reason, remedy)
            case StopServer():
                host_id = await self._tx(instance_work.stop_trashed, instance_id)
            case Shelve():
                await self._tx(instance_work.shelve, instance_id)
            case DeleteServer():
                host_id = await self._tx(instance_work.delete_instance_server, instance_id)
            case FinishDelete():
                await self._tx(instance_work.finish_instance, instance_id)
            case Settled() | LookAgain():
                await self._tx(instance_work.review_instance, instance_id)
            case _ as never:
                assert_never(never)
        if host_id is not None:
            self._notify(f"host:{host_id}")
