"""Schedules and retention. Any number of processes may run these loops: each step is one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

import structlog

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.control.due import TICK, DueLoop, Rows
from unstuck.control.loop import Transactions
from unstuck.core.port import Port
from unstuck.runtime.metrics import Steps
from unstuck.store import retention_work, schedule_work

WAKE: Final = "schedules"

log = structlog.get_logger(__name__)


class ScheduleController:
    """``schedules``: every one with a tick that has come. ``retention``: every instance whose backups are to
    be looked at. ``places``: where backups may go now."""

    def __init__(
        self, port: Port, store: Transactions, keyring: Keyring, places: Callable[[], Places],
        notify: Callable[[str], None], *, tick: float = TICK, watch: Steps | None = None,
    ) -> None:  # fmt: skip
        self._rows = rows = Rows(port, store)
        self._keyring = keyring
        self._places = places
        self._notify = notify
        self.schedules = DueLoop(
            rows, WAKE, schedule_work.due_schedules, self._tick, schedule_work.postpone_schedule, tick=tick,
            watch=watch,
        )  # fmt: skip
        self.retention = DueLoop(
            rows, "retention", retention_work.due_retention, self._trim, retention_work.postpone_retention,
            tick=5 * tick, watch=watch,
        )  # fmt: skip

    async def _tick(self, schedule_id: str) -> None:
        nonce = self._rows.port.nonce()
        host_id = await self._rows.run(
            schedule_work.run_schedule, schedule_id, new_id=new_id(nonce), nonce=nonce,
            keyring=self._keyring, places=self._places(),
        )  # fmt: skip
        if host_id is not None:
            self._notify(f"host:{host_id}")

    async def _trim(self, instance_id: str) -> None:
        done = await self._rows.run(retention_work.run_retention, instance_id)
        for gone in done.removed:
            log.info("backup deleted by retention", backup=gone.id, instance=instance_id, why=gone.why)
        for host_id in done.hosts:
            self._notify(f"host:{host_id}")


def new_id(nonce: str) -> str:
    """An id in the form of all resources, of what only the port makes by chance."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, nonce))
