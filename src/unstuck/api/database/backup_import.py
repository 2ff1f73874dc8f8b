"""``POST /backups`` with ``restore_from``: a backup that lies in a store that is set up, by its manifest."""

from __future__ import annotations

import re
from typing import Final

from unstuck.api.backups import keyring, places, site
from unstuck.api.database.common import invalid, object_id, scope
from unstuck.api.errors import bad_request
from unstuck.api.routes import Body, Call
from unstuck.blobs.manifest import in_short
from unstuck.blobs.objects import BlobError
from unstuck.blobs.verify import Sound, read_whole
from unstuck.core.backup.data import Rotten
from unstuck.core.errors import Unavailable
from unstuck.runtime.lanes import LaneFull, TookTooLong
from unstuck.store.backup_import import Import, import_backup
from unstuck.store.backup_work import Written

SECONDS: Final = 15.0
"""How long a call waits for the store of objects."""
_WHERE: Final = re.compile(
    r"(?P<store>[A-Za-z0-9][A-Za-z0-9._-]{0,62})"
    r"/(?P<prefix>backups/[A-Za-z0-9-]{1,64}/\d{4,6}-[0-9A-Za-z]{1,64})(/manifest\.json)?\Z"
)


class RestoreFrom(Body, frozen=True, kw_only=True):
    """``size``: GiB; what the manifest says counts."""

    remote_location: str
    local_datastore_version_id: str | None = None
    size: int | float | str | None = None


async def import_one(call: Call, name: str, description: str | None, asked: RestoreFrom) -> str:
    """Its id, which is the one that it had. The row is there with the answer, or nothing has changed."""
    match = _WHERE.match(asked.remote_location)
    if match is None:
        invalid(
            "restore_from.remote_location",
            "it is the name of a store and where a backup lies in it, as `locationRef` says: "
            "local/backups/ID/0001-NAME.",
        )
    store, prefix = match["store"], match["prefix"]
    if store not in places(call.app).names:
        known = ", ".join(places(call.app).names)
        invalid("restore_from.remote_location", f"no store is called {store!r}; there are: {known}.")
    if asked.local_datastore_version_id is None:
        invalid("restore_from.local_datastore_version_id", "say which datastore version here it is for.")
    version_id = object_id(asked.local_datastore_version_id, "Datastore version")
    found = await _look(call, store, prefix)
    if isinstance(found, Rotten):
        raise bad_request(f"restore_from.remote_location: {prefix} cannot be imported: {found.reason}.")
    known_as = found.manifest
    written = Written(found.prefix, found.digest, known_as.size, in_short(known_as))
    new = Import(
        name=name, description=description, location=store, version_id=version_id, manifest=known_as,
        written=written,
    )  # fmt: skip
    made = await call.store.run(import_backup, new, scope(call), keyring=keyring(call.app))
    return made.id


async def _look(call: Call, store: str, prefix: str) -> Sound | Rotten:
    there = site(call.app)
    cloud_key = keyring(call.app).public.signing
    try:
        return await there.lanes.run(
            store, SECONDS, lambda: read_whole(there.stores.objects(store), prefix, cloud_key)
        )
    except BlobError as error:
        raise Unavailable(f"The store of objects {store} did not answer: {error.reason}.") from error
    except (LaneFull, TookTooLong) as error:
        raise Unavailable(f"The store of objects {store} did not answer: {error}.") from error
