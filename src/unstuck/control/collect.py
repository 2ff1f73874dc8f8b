"""The loop that collects what nobody needs any more. Slow on purpose: nothing waits for it."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
import structlog

from unstuck.control.images import sweep_images
from unstuck.core.port import Port
from unstuck.store.engine import Store, StoreUnavailable, Tx
from unstuck.store.schema.clock import clock

EVERY = 600.0
FIRST = 60.0
"""Seconds after the start: longer than a lease, so that whoever lives has renewed."""

log = structlog.get_logger(__name__)


def may_sweep(tx: Tx) -> bool:
    """Whether the clock has gone on without a gap for a lease: only then is silence a sign."""
    return bool(tx.execute(sa.select(clock.c.sweep_after)).scalar_one() <= tx.now.lease)


async def collect_forever(port: Port, store: Store, state_dir: Path) -> None:
    """Files of images that no row needs; what the store does not know is only reported (law 7)."""
    await port.pause(FIRST, "collect")
    while True:
        try:
            if await store.run_read(may_sweep):
                swept = await port.effect("store.sweep_images", lambda: sweep_images(store, state_dir))
                if swept.removed or swept.unknown:
                    log.info("images swept", removed=swept.removed, unknown=swept.unknown)
        except (StoreUnavailable, OSError) as error:
            log.warning("images not swept", error=str(error))
        await port.pause(EVERY, "collect")
