"""The loop over schedules. Any number of processes may run it: a tick is one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.control.loop import BACKOFF_MAX, BATCH, Transactions
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import schedule_work as rows
from unstuck.store.engine import StoreUnavailable, Tx

P = ParamSpec("P")
T = TypeVar("T")

TICK: Final = 1.0
WAKE: Final = "schedules"

log = structlog.get_logger(__name__)


class ScheduleController:
    """Looks at every schedule with a tick that has come. ``places``: where backups may go now."""

    def __init__(
        self, port: Port, store: Transactions, keyring: Keyring, places: Callable[[], Places],
        notify: Callable[[str], None], *, tick: float = TICK, watch: Steps | None = None,
    ) -> None:  # fmt: skip
        self._port = port
        self._store = store
        self._keyring = keyring
        self._places = places
        self._notify = notify
        self._tick = tick
        self._watch = watch or Unwatched()
        self._failures: dict[str, int] = {}

    async def _tx(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def run_forever(self) -> None:
        while True:
            due: list[rows.DueSchedule] = []
            try:
                due = await self._port.effect(
                    "store.due_schedules", lambda: self._store.run_read(rows.due_schedules, BATCH)
                )
                for item in due:
                    await self._step_safely(item.id)
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                due = []
            await self._port.pause(0.0 if len(due) == BATCH else self._tick, WAKE)

    async def _step_safely(self, schedule_id: str) -> None:
        """One bad record stops nobody else (law 8)."""
        try:
            await self.step(schedule_id)
            self._failures.pop(schedule_id, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[schedule_id] = self._failures.get(schedule_id, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", schedule=schedule_id, failures=failures)
            seconds = backoff(failures, 2.0, BACKOFF_MAX, key=schedule_id)
            await self._tx(rows.postpone_schedule, schedule_id, seconds)

    async def step(self, schedule_id: str) -> None:
        """What is due of one schedule."""
        nonce = self._port.nonce()
        host_id = await self._tx(
            rows.run_schedule, schedule_id, new_id=new_id(nonce), nonce=nonce, keyring=self._keyring,
            places=self._places(),
        )  # fmt: skip
        if host_id is not None:
            self._notify(f"host:{host_id}")


def new_id(nonce: str) -> str:
    """An id in the form of all resources, of what only the port makes by chance."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, nonce))
