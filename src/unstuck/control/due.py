"""A loop over rows of one kind: whatever is due gets its next step, and one that fails stops nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog

from unstuck.control.loop import BACKOFF_MAX, BATCH, Transactions
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store.engine import StoreUnavailable, Tx

P = ParamSpec("P")
T = TypeVar("T")

TICK: Final = 1.0

log = structlog.get_logger(__name__)


class Rows:
    """Transactions of a controller, each an effect with the store function's name."""

    def __init__(self, port: Port, store: Transactions) -> None:
        self.port = port
        self._store = store

    async def run(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.port.effect(
            f"store.{tx.__name__}", lambda: self._store.run_read(tx, *args, **kwargs)
        )


class DueLoop:
    """``due`` lists ids of what is due, ``step`` does what is due of one, ``postpone`` is for one whose step
    failed: not again for so many seconds. ``kind`` is what they are, and what wakes the loop."""

    def __init__(
        self,
        rows: Rows,
        kind: str,
        due: Callable[[Tx, int], list[str]],
        step: Callable[[str], Awaitable[None]],
        postpone: Callable[[Tx, str, float], None],
        *,
        tick: float = TICK,
        watch: Steps | None = None,
    ) -> None:
        self._rows = rows
        self._kind = kind
        self._due = due
        self._step = step
        self._postpone = postpone
        self._tick = tick
        self._watch = watch or Unwatched()
        self._failures: dict[str, int] = {}

    async def run_forever(self) -> None:
        while True:
            found: list[str] = []
            try:
                found = await self._rows.read(self._due, BATCH)
                for one in found:
                    await self._step_safely(one)
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                found = []
            await self._rows.port.pause(0.0 if len(found) == BATCH else self._tick, self._kind)

    async def _step_safely(self, one: str) -> None:
        """One bad record stops nobody else (law 8)."""
        try:
            await self._step(one)
            self._failures.pop(one, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[one] = self._failures.get(one, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", kind=self._kind, id=one, failures=failures)
            await self._rows.run(self._postpone, one, backoff(failures, 2.0, BACKOFF_MAX, key=one))
