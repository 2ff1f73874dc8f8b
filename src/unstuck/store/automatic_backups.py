"""Backups that nobody asked for at the moment: a schedule's, a first base, one after a gap.

Whoever makes one names its occasion by a key. Of one occasion there is one backup, whoever asks and however
often: two control planes, a crash whose answer was lost, a clock that was set back. Why there is none is an
outcome to be shown, not an error.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import sqlalchemy as sa

from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.core.errors import Conflict, Invalid, NotFound, TooLarge
from unstuck.store import quotas, retention
from unstuck.store.backup_rows import load_live
from unstuck.store.backups import NewBackup, create_backup
from unstuck.store.backups_made import USER
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups, instances
from unstuck.store.tx import in_turn

_OF_KEY = Prepared(
    sa.select(backups.c.id).where(
        backups.c.instance_id == sa.bindparam("instance"), backups.c.made_key == sa.bindparam("key")
    )
)
_OWNER = Prepared(sa.select(instances.c.project_id).where(instances.c.id == sa.bindparam("instance")))


class Why(StrEnum):
    """What kept an automatic backup from being made."""

    UNDER_WAY = "under-way"
    """Another backup of the instance waits or runs."""
    QUOTA = "quota"
    INSTANCE_GONE = "instance-gone"
    REFUSED = "refused"
    """It cannot be made as it is wanted, for instance because its store of objects is not set up any more."""


class Made(msgspec.Struct, frozen=True, tag="made"):
    """The backup of this occasion; ``new``: made by this call. ``host_id``: who is to hear of it."""

    backup_id: str
    new: bool
    host_id: str | None = None


class NotMade(msgspec.Struct, frozen=True, tag="not-made"):
    """There is none of this occasion. ``backup_id``: the one that is under way."""

    why: Why
    reason: str
    backup_id: str | None = None


@in_turn(lambda new, *_, **__: f"instance:{new.instance_id}")
def make_automatic_backup(tx: Tx, new: NewBackup, *, keyring: Keyring, places: Places) -> Made | NotMade:
    """Make the backup of an occasion, or say which one that is, or why there is none.

    ``new`` has a ``made_by`` other than the user's and a ``made_key``.
    """
    if new.made_by == USER or new.made_key is None:
        raise ValueError("an automatic backup says what makes it, and on which occasion")
    owner = _OWNER.scalar(tx, instance=new.instance_id)
    if owner is not None:
        # Whoever comes with the same occasion at the same time waits here, and then sees what was made.
        quotas.lock_project(tx, owner)
    found = _OF_KEY.scalar(tx, instance=new.instance_id, key=new.made_key)
    if found is not None:
        return Made(found, new=False)
    try:
        row = create_backup(tx, new, None, keyring=keyring, places=places)
    except NotFound as error:
        return NotMade(Why.INSTANCE_GONE, error.message)
    except TooLarge as error:
        return NotMade(Why.QUOTA, error.message)
    except Invalid as error:
        return NotMade(Why.REFUSED, error.message)
    except Conflict as error:
        live = load_live(tx, new.instance_id)
        return NotMade(Why.UNDER_WAY, error.message, None if live is None else live.id)
    retention.look_soon(tx, new.instance_id, row.project_id)
    return Made(row.id, new=True, host_id=row.host_id)
