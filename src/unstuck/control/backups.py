"""The loop over backups: every one that is due gets its next step, and one that hangs stops nobody else.

Steps within the store are transactions. Looking at the blob store takes its time, so it is done beside the
loop, a few calls per store of objects at once, each with a deadline: a store that accepts and never answers
holds up only the backups that are in it (law 8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar, assert_never

import structlog

from unstuck.control.loop import Transactions
from unstuck.core.backup.control import AskStore, Collect, Verify
from unstuck.core.backup.data import Absent, Present, Rotten, StoreSaid, Unanswered, Verified
from unstuck.core.backup.scrub import FIRST
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import backup_work as rows
from unstuck.store.backup_work import Due, Work, Written
from unstuck.store.engine import StoreUnavailable, Tx

P = ParamSpec("P")
T = TypeVar("T")

BATCH: Final = 100
TICK: Final = 1.0
WAKE: Final = "backups"
AT_ONCE: Final = 4
"""Backups of one store of objects that are looked at at the same time."""
JOB: Final = 100.0
"""Seconds for one look at the blob store, or for removing what lies there."""
LEASE_MORE: Final = 20.0
"""Seconds by which a lease outlives the job that it is for."""
BUSY: Final = 5.0
"""Seconds until the next look at what has to wait for its turn."""
BACKOFF_MAX: Final = 60.0

log = structlog.get_logger(__name__)


class Unknown(Exception):
    """The blob store gave no answer that says anything (law 4); why."""


class BlobWork(Protocol):
    """What the loop wants of the blob store. Raises :class:`Unknown`; ends within its deadline."""

    async def look(self, work: Work, seconds: float) -> Present | None: ...

    async def verify(self, work: Work, seconds: float) -> tuple[Verified, Written] | Rotten: ...

    async def remove(self, work: Work, seconds: float) -> int: ...


class BackupController:
    """Looks at every backup whose next look is due and takes the next step for it."""

    def __init__(
        self,
        port: Port,
        store: Transactions,
        blobs: BlobWork,
        notify: Callable[[str], None],
        *,
        tick: float = TICK,
        job: float = JOB,
        scrub_after: float = FIRST,
        watch: Steps | None = None,
    ) -> None:
        self._port = port
        self._store = store
        self._blobs = blobs
        self._notify = notify
        self._tick = tick
        self._job = job
        self._scrub_after = scrub_after
        self._watch = watch or Unwatched()
        self._failures: dict[str, int] = {}
        self._at_work: dict[str, str] = {}
        """Backup → store of objects, of what is looked at beside the loop."""

    async def _tx(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def run_forever(self) -> None:
        while True:
            due: list[Due] = []
            try:
                due = await self._port.effect(
                    "store.due_backups", lambda: self._store.run_read(rows.due_backups, BATCH)
                )
                for item in due:
                    await self._step_safely(item)
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                due = []
            await self._port.pause(0.0 if len(due) == BATCH else self._tick, WAKE)

    async def _step_safely(self, item: Due) -> None:
        try:
            await self.step(item)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            await self._failed(item.backup_id)

    async def _failed(self, backup_id: str) -> None:
        failures = self._failures[backup_id] = self._failures.get(backup_id, 0) + 1
        self._watch.step(failed=True)
        log.exception("step failed", backup=backup_id, failures=failures)
        seconds = backoff(failures, 2.0, BACKOFF_MAX, key=backup_id)
        await self._tx(rows.postpone_backup, backup_id, seconds)

    async def step(self, item: Due) -> None:
        """One decision; what needs the blob store goes on beside the loop."""
        if item.backup_id in self._at_work:
            return
        if sum(place == item.location for place in self._at_work.values()) >= AT_ONCE:
            # Not only skipped: so many could be due that those of other stores would never be read.
            await self._tx(rows.postpone_backup, item.backup_id, BUSY)
            return
        owner = self._port.nonce()
        begun = await self._tx(
            rows.begin_step, item.backup_id, owner, self._port.nonce(), self._job + LEASE_MORE
        )
        self._wake_host(begun.host_id)
        work = begun.work
        if work is None:
            self._failures.pop(item.backup_id, None)
            return
        self._at_work[item.backup_id] = item.location
        self._port.spawn(f"backup {item.backup_id}", self._do_safely(work, owner))

    def _wake_host(self, host_id: str | None) -> None:
        if host_id is not None:
            self._notify(f"host:{host_id}")

    async def _do_safely(self, work: Work, owner: str) -> None:
        backup_id = work.row.id
        try:
            await self._do(work, owner)
        except StoreUnavailable as error:
            log.warning("store unavailable", error=str(error))  # the lease ends, and it is done again
        except Exception:
            await self._report_failure(backup_id)
        finally:
            del self._at_work[backup_id]
            self._port.wake(WAKE)

    async def _report_failure(self, backup_id: str) -> None:
        try:
            await self._failed(backup_id)
        except StoreUnavailable as error:
            log.warning("store unavailable", error=str(error))

    async def _do(self, work: Work, owner: str) -> None:
        match work.plan:
            case AskStore():
                await self._ask(work, owner)
            case Verify():
                await self._verify(work, owner)
            case Collect():
                await self._collect(work, owner)
            case _ as never:
                assert_never(never)

    async def _effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._port.effect(f"blobs.{name}", work)

    async def _ask(self, work: Work, owner: str) -> None:
        said: StoreSaid
        began = work.began
        try:
            found = await self._effect("look", lambda: self._blobs.look(work, self._job))
            said = found or Absent(work.row.backup.attempt.number)
        except Unknown as error:
            said = Unanswered(began, str(error))
            log.warning("blob store does not answer", backup=work.row.id, error=str(error))
        await self._tx(rows.store_said, work.row.id, owner, said)

    async def _verify(self, work: Work, owner: str) -> None:
        verdict: Verified | Rotten | Unanswered
        written = None
        try:
            answer = await self._effect("verify", lambda: self._blobs.verify(work, self._job))
            if isinstance(answer, Rotten):
                verdict = answer
                log.warning("backup is not sound", backup=work.row.id, reason=answer.reason)
            else:
                verdict, written = answer
        except Unknown as error:
            verdict = Unanswered(work.began, str(error))
            log.warning("blob store does not answer", backup=work.row.id, error=str(error))
        self._wake_host(
            await self._tx(
                rows.store_verified, work.row.id, owner, verdict, written, scrub_after=self._scrub_after
            )
        )

    async def _collect(self, work: Work, owner: str) -> None:
        backup_id, trouble = work.row.id, None
        try:
            left = await self._effect("remove", lambda: self._blobs.remove(work, self._job))
            if left:
                trouble = f"{left} objects are there still"
        except Unknown as error:
            trouble = str(error)
        seconds = 0.0
        if trouble is None:
            self._failures.pop(backup_id, None)
        else:
            failures = self._failures[backup_id] = self._failures.get(backup_id, 0) + 1
            seconds = backoff(failures, 5.0, BACKOFF_MAX, key=backup_id)
            log.warning("objects not removed", backup=backup_id, reason=trouble, failures=failures)
        await self._tx(rows.store_collected, work, owner, trouble, seconds)
