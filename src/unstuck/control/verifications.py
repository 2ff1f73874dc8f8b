"""The loop over verifications. Any number of processes may run it: each step is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from unstuck.control.due import TICK, DueLoop, Rows
from unstuck.control.loop import Transactions
from unstuck.control.schedules import new_id
from unstuck.core.errors import Conflict, Refused, TooLarge, Unavailable
from unstuck.core.port import Port
from unstuck.runtime.metrics import Steps
from unstuck.store import verification_work as rows

WAKE: Final = "verifications"

log = structlog.get_logger(__name__)


class VerificationController:
    """Restores what is to be verified, has it read, and throws it away."""

    def __init__(
        self, port: Port, store: Transactions, notify: Callable[[str], None], *, tick: float = TICK,
        watch: Steps | None = None,
    ) -> None:  # fmt: skip
        self._rows = Rows(port, store)
        self._notify = notify
        self.loop = DueLoop(
            self._rows, WAKE, rows.due_verifications, self._step, rows.postpone_verification, tick=tick,
            watch=watch,
        )  # fmt: skip

    async def _step(self, verification_id: str) -> None:
        ask_id = new_id(self._rows.port.nonce())
        try:
            step = await self._rows.run(rows.step_verification, verification_id, ask_id=ask_id)
        except (Conflict, TooLarge, Unavailable) as error:
            # There is no room now, or no host: that may change until its deadline.
            await self._rows.run(rows.postpone_verification, verification_id, rows.WAIT, error.message)
            return
        except Refused as error:
            await self._rows.run(rows.give_up, verification_id, error.message)
            return
        if step.done is not None:
            log.info("backup verified", verification=verification_id, result=step.done.result.value,
                     reason=step.done.reason)  # fmt: skip
        if step.host_id is not None:
            self._notify(f"host:{step.host_id}")
