"""The loop that reads stored backups again, one after the other and no faster than it may.

Several control planes share the work; each keeps to its own rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog

from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import Chunk, chunk_key
from unstuck.blobs.manifest import ManifestError, manifest_key
from unstuck.blobs.objects import BlobError, Objects, sha256
from unstuck.blobs.stores import Stores
from unstuck.control.due import Rows
from unstuck.control.loop import Transactions
from unstuck.core.backup.scrub import EVERY, Away, Right, Wrong
from unstuck.core.port import Port
from unstuck.core.time import backoff
from unstuck.runtime.lanes import LaneFull, Lanes, TookTooLong
from unstuck.runtime.metrics import Steps, Unwatched
from unstuck.store import scrub_work as rows
from unstuck.store.engine import StoreUnavailable
from unstuck.store.scrub_work import Due, Reading

WAKE: Final = "scrub"
TICK: Final = 30.0
BATCH: Final = 20
AT_ONCE: Final = 16 << 20
"""Bytes that are read between two transactions, and one piece more at most."""
JOB: Final = 100.0
"""Seconds for one look at the store of objects."""
LEASE_MORE: Final = 20.0
RATE: Final = 4 << 20
"""Bytes a second, on the average of a control plane."""
AWAY: Final = 60.0
"""Seconds in which a store that did not answer is not asked again."""
BACKOFF_MAX: Final = 3600.0

log = structlog.get_logger(__name__)


class Read(msgspec.Struct, frozen=True):
    """What was found, and how many bytes were read for it."""

    said: Right | Wrong | Away
    size: int


class Scrubs(Protocol):
    """What the loop wants of the stores of objects. Nothing raises: what says nothing is :class:`Away`."""

    async def read(self, reading: Reading, seconds: float) -> Read: ...


class ThreadedScrubs:
    """:class:`Scrubs` over the operator's stores. A place that hangs keeps one thread, and is left alone."""

    def __init__(self, stores: Stores, cloud_key: str, lanes: Lanes | None = None) -> None:
        self._stores = stores
        self._cloud_key = cloud_key
        self._lanes = lanes or Lanes(1)
        self._known: tuple[str, tuple[Chunk, ...]] = ("", ())
        """The pieces of the manifest that was read last, by its digest: it may be large."""

    async def read(self, reading: Reading, seconds: float) -> Read:
        try:
            return await self._lanes.run(
                reading.location,
                seconds,
                lambda: self._read(self._stores.objects(reading.location), reading, seconds / 2),
            )
        except BlobError as error:
            return Read(Away(f"{error.problem}: {error.reason}"), 0)
        except (LaneFull, TookTooLong) as error:
            return Read(Away(str(error)), 0)

    def _read(self, objects: Objects, reading: Reading, seconds: float) -> Read:
        """As many pieces as there are bytes and seconds for: what was read counts, also from a slow store."""
        end = time.monotonic() + seconds
        chunks = self._chunks(objects, reading)
        if isinstance(chunks, Wrong):
            return Read(chunks, 0)
        done, size = min(reading.first, len(chunks)), 0
        for chunk in chunks[done:]:
            data = objects.get(chunk_key(reading.prefix, chunk.index))
            if data is None:
                return Read(Wrong(done, len(chunks), f"piece {chunk.index} is missing"), size)
            size += len(data)
            if len(data) != chunk.sealed_length or sha256(data) != chunk.sealed_digest:
                reason = f"piece {chunk.index} is not the object that was written"
                return Read(Wrong(done, len(chunks), reason), size)
            done += 1
            if size >= AT_ONCE or time.monotonic() >= end:
                break
        return Read(Right(done, len(chunks)), size)

    def _chunks(self, objects: Objects, reading: Reading) -> tuple[Chunk, ...] | Wrong:
        """The manifest is looked at whenever a pass begins; in between what was read of it is enough."""
        if reading.first and self._known[0] == reading.digest:
            return self._known[1]
        data = objects.get(manifest_key(reading.prefix))
        if data is None:
            return Wrong(0, 0, "its manifest is missing")
        if manifests.digest(data) != reading.digest:
            return Wrong(0, 0, "its manifest is not the one that was verified")
        try:
            found = manifests.read(data, self._cloud_key, reading.prefix)
        except ManifestError as error:
            return Wrong(0, 0, str(error))
        self._known = (reading.digest, found.chunks)
        return found.chunks


class ScrubController:
    """``rate``: bytes a second; ``every``: seconds from one pass of a backup to its next one."""

    def __init__(
        self, port: Port, store: Transactions, blobs: Scrubs, notify: Callable[[str], None], *,
        rate: float = RATE, every: float = EVERY, tick: float = TICK, job: float = JOB,
        watch: Steps | None = None,
    ) -> None:  # fmt: skip
        self._rows = Rows(port, store)
        self._blobs = blobs
        self._notify = notify
        self._rate = rate
        self._every = every
        self._tick = min(tick, every)
        self._job = job
        self._watch = watch or Unwatched()
        self._failures: dict[str, int] = {}

    async def run_forever(self) -> None:
        while True:
            found: list[Due] = []
            away: set[str] = set()
            try:
                found = await self._rows.read(rows.due_scrubs, BATCH)
                for item in found:
                    if item.location in away:
                        await self._rows.run(rows.postpone_scrub, item.backup_id, AWAY)
                    elif not await self._step_safely(item):
                        away.add(item.location)
            except StoreUnavailable as error:
                log.warning("store unavailable", error=str(error))
                found = []
            await self._rows.port.pause(0.0 if found else self._tick, WAKE)

    async def _step_safely(self, item: Due) -> bool:
        """One bad record stops nobody else (law 8). Whether its store answered."""
        try:
            answered = await self._step(item)
            self._failures.pop(item.backup_id, None)
            self._watch.step(failed=False)
        except StoreUnavailable:
            raise
        except Exception:
            failures = self._failures[item.backup_id] = self._failures.get(item.backup_id, 0) + 1
            self._watch.step(failed=True)
            log.exception("step failed", backup=item.backup_id, failures=failures)
            seconds = backoff(failures, 60.0, BACKOFF_MAX, key=item.backup_id)
            await self._rows.run(rows.postpone_scrub, item.backup_id, seconds)
            return True
        return answered

    async def _step(self, item: Due) -> bool:
        reading = await self._rows.run(rows.begin_scrub, item.backup_id, self._job + LEASE_MORE)
        if reading is None:
            return True
        read = await self._rows.port.effect("blobs.scrub", lambda: self._blobs.read(reading, self._job))
        damaged = await self._rows.run(rows.end_scrub, reading, read.said, self._every)
        if damaged is not None:
            log.error("a stored backup is damaged", backup=item.backup_id, reason=damaged)
            self._notify("control")
        if read.size:
            await self._rows.port.pause(read.size / self._rate, "scrub-rate")
        return not isinstance(read.said, Away)
