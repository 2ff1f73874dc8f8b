"""What a control plane has for backups: its keys, the stores of objects, and threads to wait for them."""

from __future__ import annotations

import asyncio
from typing import Final

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Stores
from unstuck.core.errors import Unavailable
from unstuck.runtime.lanes import Lanes

BODIES: Final = 8
"""Objects that are in memory on their way through this process at the same time."""


class BackupSite:
    """``keyring`` None: why there is none is in ``why``, and nothing is backed up or restored here."""

    def __init__(self, stores: Stores, keyring: Keyring | None, why: str = "") -> None:
        self.stores = stores
        self.lanes = Lanes(most=BODIES * 2)
        self.bodies = asyncio.Semaphore(BODIES)
        self.why = why
        self.found = keyring

    @property
    def keyring(self) -> Keyring:
        """Raises :class:`Unavailable`."""
        if self.found is None:
            raise Unavailable(f"Backups are not available at this control plane: {self.why}")
        return self.found
