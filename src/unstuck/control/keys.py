"""The keys and the store of backups of this control plane: made once, and the same for every one of a cloud.

Without its keys a control plane does everything else: servers and databases do not depend on them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from unstuck.blobs import keyring
from unstuck.blobs.keyring import Keyring, KeysUnusable
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores, StoresUnusable, folder_id, make_folder, read_file
from unstuck.runtime.state import State
from unstuck.store.cloud_keys import OtherKeys, agree_on_keys, known_folder
from unstuck.store.engine import Store

KEYS: Final = "UNSTUCK_KEYS"
"""The folder of the cloud's keys, where it is not in the state folder: other control planes need it too."""
STORES: Final = "UNSTUCK_BACKUP_STORES"
"""The file of stores of objects, the same."""

log = structlog.get_logger(__name__)


def keys_folder(state: State) -> Path:
    given = os.environ.get(KEYS)
    return Path(given) if given else state.keys


def stores_file(state: State) -> Path:
    given = os.environ.get(STORES)
    return Path(given) if given else state.backup_stores


def set_up_backups(store: Store, state: State) -> BackupSite:
    """Keys and folder, made for a new cloud and only there: a cloud never gets other ones. Blocking."""
    stores = Stores(state.backups, stores_file(state))
    try:
        if stores_file(state).exists():
            read_file(stores_file(state))
    except StoresUnusable as error:
        log.error("where backups go cannot be read", reason=str(error))
    try:
        ours = _agreed(store, state, stores)
    except (KeysUnusable, OtherKeys) as error:
        log.error("no backups are made or restored here", reason=str(error))
        return BackupSite(stores, None, str(error))
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        log.error("no backups are made or restored here", reason=reason)
        return BackupSite(stores, None, reason)
    return BackupSite(stores, ours)


def _agreed(store: Store, state: State, stores: Stores) -> Keyring:
    folder = store.read(known_folder)
    if folder is None:
        if keyring.ensure(keys_folder(state), state.recovery):
            log.warning("the recovery key is new: keep a copy elsewhere", file=str(state.recovery))
        made = make_folder(state.backups)
    else:
        made = folder_id(state.backups) or ""
    ours = keyring.load(keys_folder(state))
    stores.folder_id = store.transact(agree_on_keys, ours.public, made)
    if made != stores.folder_id:
        log.warning("the folder of backups is not here", folder=str(state.backups))
    return ours
