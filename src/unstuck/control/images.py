"""Collecting what uploads and deletes of images leave behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unstuck.blobs.images import Swept, sweep
from unstuck.store import images as rows
from unstuck.store.engine import Store


async def sweep_images(store: Store, state_dir: Path, limit: int = 1000) -> Swept:
    """End uploads whose lease has run out, then remove files that no image needs, ``limit`` at most.

    Uploads are ended first, in a transaction: from then on they can never finish, so their files are
    garbage for sure. Call this only when :func:`unstuck.control.collect.may_collect` allows it.
    """
    await store.run(rows.expire_uploads)
    return await asyncio.to_thread(sweep, state_dir, lambda ids: store.read(rows.nonces_in_use, ids), limit)
