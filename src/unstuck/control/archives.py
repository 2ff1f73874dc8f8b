"""The loop over archives: each that is due gets its key, its base, or is trimmed; one stops no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec
import structlog

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.control.backups import Unknown
from unstuck.control.loop import Transactions
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import archive_work as rows
from unstuck.store.archive_work import Trim
from unstuck.store.engine import StoreUnavailable, Tx

P = ParamSpec("P")
T = TypeVar("T")

BATCH: Final = 100
TICK: Final = 1.0
WAKE: Final = "archives"
JOB: Final = 100.0
"""Seconds for one look at the blob store."""
LEASE_MORE: Final = 20.0
BASE_DELAY: Final = 60.0
"""Seconds of an instance's life before its first base is made by itself: whoever backs it up at once makes
that the base."""
TIMEOUT: Final = 60
"""Seconds after which a part of the log that is not full leaves the guest all the same."""
BACKOFF_MAX: Final = 300.0

log = structlog.get_logger(__name__)


class ArchiveBlobs(Protocol):
    """What the loop wants of the blob store. Raises :class:`Unknown`."""

    async def tries(self, trim: Trim, seconds: float) -> list[tuple[str, str]]:
        """All (piece, try) that objects are there of, by a complete listing."""
        ...

    async def remove(self, trim: Trim, gone: set[tuple[str, str]], seconds: float) -> int:
        """Remove their objects; how many are left, by a second listing."""
        ...


class ArchiveController:
    """Looks at every archive whose next look is due."""

    def __init__(
        self, port: Port, store: Transactions, blobs: ArchiveBlobs, notify: Callable[[str], None], *,
        keyring: Keyring, places: Callable[[], Places], base_delay: float = BASE_DELAY,
        timeout: int = TIMEOUT, tick: float = TICK, job: float = JOB, watch: Steps | None = None,
    ) -> None:  # fmt: skip
        self._port = port
        self._store = store
        self._blobs = blobs
        self._notify = notify
        self._keyring = keyring
        self._places = places
        self._base_delay = base_delay
        self._timeout = timeout
        self._tick = tick
        self._job = job
        self._watch = watch or Unwatched()
        self._failures: dict[str, int] = {}

    async def _tx(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._port.effect(f"store.{tx.__name__}", lambda: self._store.run(tx, *args, **kwargs))

    async def run_forever(self) -> None:
        while True:
            due: list[str] = []
            try:
                due = await self._port.effect(
                    "store.due_archives", lambda: self._store.run_read(rows.due_archives, BATCH)
                )
                for archive_id in due:
                    await self._step_safely(archive_id)
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                due = []
            await self._port.pause(0.0 if len(due) == BATCH else self._tick, WAKE)

    async def _step_safely(self, archive_id: str) -> None:
        try:
            await self.step(archive_id)
            self._failures.pop(archive_id, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[archive_id] = self._failures.get(archive_id, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", archive=archive_id, failures=failures)
            seconds = backoff(failures, 2.0, BACKOFF_MAX, key=archive_id)
            await self._tx(rows.postpone_archive, archive_id, seconds)

    async def step(self, archive_id: str) -> None:
        """The next step of one archive."""
        if await self._tx(rows.needs_key, archive_id):
            self._wake(
                await self._tx(
                    rows.set_up_archive,
                    archive_id,
                    self._port.nonce(),
                    self._timeout,
                    self._keyring,
                    self._places(),
                )
            )
            return
        base = await self._tx(rows.base_wanted, archive_id, self._base_delay)
        if base is not None:
            new = msgspec.structs.replace(base, id=self._new_id(), nonce=self._port.nonce())
            self._wake(
                await self._tx(rows.make_base, archive_id, new, keyring=self._keyring, places=self._places())
            )
        owner = self._port.nonce()
        trim = await self._tx(rows.look_at_archive, archive_id, owner, self._job * 2 + LEASE_MORE)
        if trim is not None:
            self._port.spawn(f"archive {archive_id}", self._trim(trim, owner))

    def _new_id(self) -> str:
        """A UUID's form."""
        text = (self._port.nonce() + self._port.nonce()).rjust(32, "0")[-32:]
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _wake(self, host_id: str | None) -> None:
        if host_id is not None:
            self._notify(f"host:{host_id}")
        self._port.wake("backups")

    async def _trim(self, trim: Trim, owner: str) -> None:
        """Complete listing, removal, complete listing."""
        trouble: str | None = None
        key = f"trim {trim.archive_id}"
        try:
            found = await self._port.effect("blobs.list-log", lambda: self._blobs.tries(trim, self._job))
            gone = await self._tx(rows.doomed, trim, found)
            left = await self._port.effect(
                "blobs.remove-log", lambda: self._blobs.remove(trim, gone, self._job)
            )
            if left:
                trouble = f"{left} objects are there still"
        except Unknown as error:
            trouble = str(error)
        except StoreUnavailable as error:
            log.warning("store unavailable", error=str(error))
            return  # the lease ends, and it is done again
        failures = self._failures[key] = 0 if trouble is None else self._failures.get(key, 0) + 1
        seconds = backoff(max(failures, 1), 5.0, BACKOFF_MAX, key=key)
        if trouble is not None:
            log.warning("pieces of a log not removed", archive=trim.archive_id, reason=trouble)
        try:
            await self._tx(rows.trimmed, trim, owner, trouble, seconds)
        except StoreUnavailable as error:
            log.warning("store unavailable", error=str(error))
