"""What handlers know of backups: the process's keys and stores of objects."""

from __future__ import annotations

from typing import Final

from unstuck.api.context import App
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Places, StoresUnusable
from unstuck.core.errors import Unavailable

NAME: Final = "backups"


def site(app: App) -> BackupSite:
    """Raises :class:`Unavailable` in a process that was set up without."""
    found = app.extra.get(NAME)
    if not isinstance(found, BackupSite):
        raise Unavailable("Backups are not available at this control plane.")
    return found


def keyring(app: App) -> Keyring:
    """Raises :class:`Unavailable`."""
    return site(app).keyring


def places(app: App) -> Places:
    """Where backups may go. Raises :class:`Unavailable` where the operator's file cannot be read."""
    try:
        return site(app).stores.places()
    except StoresUnusable as error:
        raise Unavailable(f"Where backups go is not known: {error}.") from error
