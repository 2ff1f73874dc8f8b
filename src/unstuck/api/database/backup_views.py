"""Backups as the database API shows them, with our own facts under one key (docs/database.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unstuck.core.backup.control import stop_wanted
from unstuck.core.backup.data import Backup, Ending
from unstuck.core.backup.explain import explain
from unstuck.core.backup.status import status
from unstuck.core.time import Now, iso_seconds
from unstuck.store import datastores
from unstuck.store.backup_rows import BackupRow
from unstuck.store.datastores import Chosen
from unstuck.store.engine import Tx
from unstuck.store.scrub_work import read_scrub
from unstuck.store.verifications import VerificationRow, read_verified

Versions = Mapping[str, Chosen]
"""Datastores' versions by id."""


def versions_of(tx: Tx) -> Versions:
    """All there are: few, and in every view."""
    found = datastores.list_datastores(tx, inactive=True)
    return {version.id: Chosen(item, version) for item in found for version in item.versions}


def backup_view(row: BackupRow, versions: Versions, now: Now) -> dict[str, Any]:
    """``GET /backups/{id}``, and one entry of a list. ``size`` is in GiB of data, once it is known."""
    chosen = versions.get(row.datastore_version_id)
    datastore: dict[str, Any] = {"type": "", "version": "", "version_id": row.datastore_version_id}
    if chosen is not None:
        datastore |= {"type": chosen.datastore.name, "version": chosen.version.name}
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "locationRef": None if row.prefix is None else f"{row.location}/{row.prefix}",
        "instance_id": row.instance_id,
        "created": iso_seconds(row.created_wall)[:-1],
        "updated": iso_seconds(row.updated_wall)[:-1],
        "size": None if row.size is None else round(row.size / (1 << 30), 3),
        "status": status(row.backup),
        "parent_id": row.parent_id,
        "project_id": row.project_id,
        "datastore": datastore,
        "unstuck": extension(row, now),
    }


def extension(row: BackupRow, now: Now) -> dict[str, Any]:
    """What Trove has no room for: why, who, what next, by when, and how far it is."""
    backup, said = row.backup, explain(row.backup, now.lease)
    claimed = backup.attempt.claimed
    return {
        "reason": said.why if row.damaged is None else f"it is damaged: {row.damaged}",
        "holder": said.holder,
        "next": said.next,
        "by_seconds": None if said.by is None else round(max(said.by - now.lease, 0.0), 3),
        "attempt": backup.attempt.number,
        "attempts": backup.limits.attempts,
        "phase": _phase(backup),
        "bytes": _bytes(row),
        "idle_seconds": _idle(backup, now),
        "claimed": claimed is not None,
        "deadlines": _deadlines(backup),
        "cancelled": backup.cancelled,
        "stopping": stop_wanted(backup) if backup.ended is None else None,
        "location": row.location,
        "instance_name": row.instance_name,
        "retry_of": row.retry_of,
        "made_by": row.made_by,
        "pinned": row.pinned,
        "verified": _verified(row),
        "damaged": row.damaged,
        "scrub": _scrub(row),
    }


def _scrub(row: BackupRow) -> dict[str, Any] | None:
    """How far its stored pieces have been read again; null before the first look."""
    if row.scrub is None:
        return None
    found = read_scrub(row.scrub)
    return {
        "pieces": found.done if found.since is not None else found.pieces if found.whole is not None else 0,
        "of": found.pieces,
        "reading": found.since is not None,
        "whole": None if found.whole is None else iso_seconds(found.whole)[:-1],
        "doubt": found.doubt or None,
        "trouble": found.trouble or None,
    }


def _verified(row: BackupRow) -> dict[str, Any] | None:
    found = read_verified(row.verified)
    if found is None:
        return None
    return {
        "when": iso_seconds(found.when)[:-1], "seconds": found.seconds, "result": found.result.value,
        "reason": found.reason, "detail": found.detail, "verification_id": found.id,
    }  # fmt: skip


def _deadlines(backup: Backup) -> dict[str, Any] | None:
    """Seconds; after the end nothing is waited for any more."""
    if backup.ended is not None:
        return None
    return {
        "claim": backup.limits.claim,
        "stalls": {phase.value: seconds for phase, seconds in backup.limits.stalls.items()},
        "verify": backup.limits.verify,
        "unknown": backup.limits.unknown,
        "total": backup.limits.total,
    }


def _phase(backup: Backup) -> str | None:
    """What is done now; nothing any more after the end."""
    if backup.ended is not None:
        return None
    if backup.verify_since is not None or backup.attempt.report is not None:
        return "verifying"
    claimed = backup.attempt.claimed
    return "waiting" if claimed is None else claimed.phase.value


def _bytes(row: BackupRow) -> int | None:
    if row.backup.ended is not None and row.backup.ended.ending is Ending.COMPLETED:
        return row.size
    claimed = row.backup.attempt.claimed
    return None if claimed is None else claimed.bytes


def _idle(backup: Backup, now: Now) -> float | None:
    claimed = backup.attempt.claimed
    if claimed is None or backup.ended is not None:
        return None
    return round(max(now.lease - claimed.moved, 0.0), 3)


def verification_view(row: VerificationRow) -> dict[str, Any]:
    """One verification: what came of it, or what keeps it."""
    verdict = row.verdict
    return {
        "id": row.id,
        "backup_id": row.backup_id,
        "made_by": row.made_by,
        "query": row.query,
        "database": row.database,
        "version_id": row.version_id,
        "seconds": None if row.restored is None else round(max(row.restored - row.created, 0.0), 3),
        "created": iso_seconds(row.created_wall)[:-1],
        "finished": None if row.finished_wall is None else iso_seconds(row.finished_wall)[:-1],
        "result": None if verdict is None else verdict.result.value,
        "reason": row.trouble or "" if verdict is None else verdict.reason,
        "detail": "" if verdict is None else verdict.detail,
        "instance_id": row.instance_id,
        "removed": row.settled,
    }
