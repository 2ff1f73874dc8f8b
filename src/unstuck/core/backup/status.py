"""A backup's public state: a function of facts, in the words of the database API. Never stored."""

from __future__ import annotations

from unstuck.core.backup.data import Backup, Ending


def status(backup: Backup) -> str:
    """NEW, BUILDING, SAVING, COMPLETED or FAILED; RESTORED for a complete one that was imported."""
    if backup.imported and backup.ended is not None and backup.ended.ending is Ending.COMPLETED:
        return "RESTORED"
    if backup.ended is not None:
        return backup.ended.ending.value
    if backup.verify_since is not None or backup.verdict is not None:
        return "SAVING"
    if backup.attempt.number == 1 and backup.attempt.claimed is None:
        return "NEW"
    return "BUILDING"
