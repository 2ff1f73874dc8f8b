"""The loop that collects what nobody needs any more. Slow on purpose: nothing waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import assert_never

import structlog

from unstuck.blobs.images import Disputed, disputed
from unstuck.control.images import sweep_images
from unstuck.core.guard import Allowed, Suspended
from unstuck.core.port import Port
from unstuck.store import images as rows
from unstuck.store.clock import may_destroy
from unstuck.store.engine import Store, StoreUnavailable, Tx
from unstuck.store.generation import recovery

EVERY = 600.0
FIRST = 60.0
"""Seconds after the start: longer than a lease, so that whoever lives has renewed."""
AGAIN = 60.0
"""Seconds until the next look where nothing may be destroyed now."""

log = structlog.get_logger(__name__)


def may_collect(tx: Tx) -> Allowed | Suspended:
    """Whether files may be removed now: only by a store that has lost nothing, and whose clock is trusted."""
    found = recovery(tx)
    if found is not None:
        return Suspended(f"the store was set back ({found.why}); `unstuck doctor` shows what is in dispute")
    return may_destroy(tx)


async def collect_forever(port: Port, store: Store, state_dir: Path) -> None:
    """Files of images that no row needs; what the store does not know is only reported (law 7)."""
    await port.pause(FIRST, "collect")
    while True:
        await port.pause(await _collect(port, store, state_dir), "collect")


async def _collect(port: Port, store: Store, state_dir: Path) -> float:
    """One pass; returns the seconds until the next."""
    try:
        match await store.run_read(may_collect):
            case Allowed(limit):
                swept = await port.effect("store.sweep_images", lambda: sweep_images(store, state_dir, limit))
                if swept.removed or swept.unknown:
                    log.info("images swept", removed=swept.removed, unknown=swept.unknown)
                return EVERY
            case Suspended(reason):
                log.info("images not swept", reason=reason)
                return AGAIN
            case _ as never:
                assert_never(never)
    except (StoreUnavailable, OSError) as error:
        log.warning("images not swept", error=str(error))
        return AGAIN


def disputed_files(store: Store, state_dir: Path) -> Disputed:
    """Whole files of images that the store does not name, and images whose files are not there. Blocking."""
    return disputed(state_dir, store.read(rows.files_in_use))


async def count_disputed(store: Store, state_dir: Path) -> int:
    """How many of them there are."""
    found = await asyncio.to_thread(disputed_files, store, state_dir)
    return len(found.files) + len(found.missing)
