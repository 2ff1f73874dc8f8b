"""What backups need besides the store: the cloud's keys, and the stores of objects that there are."""

from __future__ import annotations

from unstuck.api.errors import ApiError
from unstuck.api.routes import Call
from unstuck.blobs.keyring import Keyring
from unstuck.store.backups import Places


def means(call: Call) -> tuple[Keyring, Places]:
    """409 where this cloud was set up without them."""
    found = call.app.extra.get("backups")
    if found is None:
        raise ApiError(409, "Backups are not set up in this cloud.")
    return found.keyring, found.places()
