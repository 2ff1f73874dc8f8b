"""What a control plane has for backups: its keys, the stores of objects, and threads to wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from typing import Final

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Stores
from unstuck.core.errors import Unavailable
from unstuck.runtime.lanes import Lanes

BODIES: Final = 16
"""Objects that are in memory on their way through this process at the same time."""
OF_A_HOST: Final = 4
"""Those of one host: one that sends slowly holds up itself."""


class BackupSite:
    """``keyring`` None: why there is none is in ``why``, and nothing is backed up or restored here."""

    def __init__(self, stores: Stores, keyring: Keyring | None, why: str = "") -> None:
        self.stores = stores
        self.lanes = Lanes(most=BODIES * 2)
        self._bodies = asyncio.Semaphore(BODIES)
        self._of_host: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self.why = why
        self.found = keyring

    @contextlib.asynccontextmanager
    async def object_in_memory(self, host_id: str, seconds: float) -> AsyncIterator[None]:
        """One of the few places for an object on its way; TimeoutError when none becomes free in time."""
        mine = self._of_host.get(host_id) or asyncio.Semaphore(OF_A_HOST)
        self._of_host[host_id] = mine
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(seconds):
                await stack.enter_async_context(mine)
                await stack.enter_async_context(self._bodies)
            yield

    @property
    def keyring(self) -> Keyring:
        """Raises :class:`Unavailable`."""
        if self.found is None:
            raise Unavailable(f"Backups are not available at this control plane: {self.why}")
        return self.found
