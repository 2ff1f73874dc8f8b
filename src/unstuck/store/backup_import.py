"""A backup that lies in a store of objects, and that this store knows nothing of, becomes a row again.

It keeps its id, which is in its objects' names and in the manifests of its children. What is in it, and whose
it is, says its manifest, which this cloud has signed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.blobs import keys
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.manifest import Manifest
from unstuck.core.backup.data import Attempt, Backup, Done, Ended, Ending, Limits, Verified
from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.store import datastores, quotas
from unstuck.store.backup_chain import parent_named
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.backup_work import Written
from unstuck.store.backups import add_attempt, check_quota
from unstuck.store.backups_made import USER
from unstuck.store.clock import clock_row
from unstuck.store.cloud_keys import project_key
from unstuck.store.engine import Tx
from unstuck.store.schema.database import backups


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest`` was read and believed at ``location``, all its pieces are there; ``written``: as
    verifying a backup says."""

    name: str
    description: str | None
    location: str
    version_id: str
    manifest: Manifest
    written: Written


def import_backup(tx: Tx, asked: Import, project_id: str | None, *, keyring: Keyring) -> BackupRow:
    """``project_id`` None: whoever's it is. Raises :class:`NotFound` for another project's,
    :class:`Conflict`, :class:`Invalid` and :class:`TooLarge`; nothing is changed then."""
    known = asked.manifest
    if project_id not in (None, known.project_id):
        raise NotFound(f"remote_location: no backup of this project lies at {known.prefix}.")
    if not quotas.lock_project(tx, known.project_id):
        raise NotFound(f"remote_location: its project {known.project_id} is not there any more.")
    check_quota(tx, known.project_id, USER)
    _check_new(tx, known.backup_id)
    _check_key(tx, known, keyring)
    _check_version(tx, asked)
    _check_parent(tx, known)
    now = tx.now
    attempt = Attempt(known.attempt, known.nonce, now.lease, report=Done(asked.written.digest))
    facts = Backup(
        id=known.backup_id, created=now.lease, limits=Limits(), attempt=attempt, verdict=Verified(known.size),
        ended=Ended(Ending.COMPLETED, f"it was imported from {asked.location}/{known.prefix}"),
        generation=clock_row(tx).generation, imported=True,
    )  # fmt: skip
    parent = known.parent
    values: dict[str, Any] = msgspec.structs.asdict(asked.written) | dict(  # noqa: C408
        id=known.backup_id, version=1, project_id=known.project_id, instance_id=known.instance_id,
        instance_name=known.instance_name, datastore_version_id=asked.version_id, name=asked.name,
        description=asked.description, archive_id=known.archive or None,
        parent_id=None if parent is None else parent.id, generation=known.generation, made_by=USER,
        location=asked.location, created=now.lease, created_wall=known.taken_at, updated_wall=now.wall,
        facts=msgspec.json.encode(facts).decode(), ended=Ending.COMPLETED.value, deleted=False,
        removed=False, recipient="", key=known.key, recipients=msgspec.json.encode(known.recipients).decode(),
        since=now.lease, settled=True, scrub_look=now.lease,
    )  # fmt: skip
    tx.execute(sa.insert(backups).values(values))
    add_attempt(tx, known.backup_id, known.attempt, known.nonce)
    made = load_backup(tx, known.backup_id)
    assert made is not None
    return made


def _check_new(tx: Tx, backup_id: str) -> None:
    there = load_backup(tx, backup_id)
    if there is None:
        return
    if there.backup.deleted:
        raise Conflict(f"remote_location: backup {backup_id} was deleted.")
    raise Conflict(f"remote_location: backup {backup_id} is there already.")


def _check_key(tx: Tx, known: Manifest, keyring: Keyring) -> None:
    project = project_key(tx, known.project_id)
    try:
        if project is None:
            raise keys.BadKey("its project has no key here")
        keyring.open_backup_key(project, known.key)
    except keys.BadKey as error:
        raise Conflict(
            f"remote_location: the key of backup {known.backup_id} cannot be opened here ({error}); "
            "`unstuck recover` reads it with the recovery file."
        ) from None


def _check_version(tx: Tx, asked: Import) -> None:
    of = asked.manifest.datastore
    try:
        chosen = datastores.get_version(tx, asked.version_id).version
    except NotFound as error:
        raise Invalid(f"local_datastore_version_id: {error.message}") from None
    its = msgspec.structs.replace(chosen, manager=of.type, version=of.version)
    if not datastores.same_line(chosen, its):
        raise Invalid(
            f"local_datastore_version_id: the backup is of {of.type} {of.version}, version {chosen.name} is "
            f"of {chosen.manager} {chosen.version}."
        )


def _check_parent(tx: Tx, known: Manifest) -> None:
    if known.parent is None:
        return
    found = load_backup(tx, known.parent.id)
    if found is None or found.removed or parent_named(found) != known.parent:
        raise Conflict(f"remote_location: it needs backup {known.parent.id}: import that one first.")
