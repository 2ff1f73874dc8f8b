"""A backup as the store knows it: intent, attempts, and what was seen of each. Frozen, without I/O.

Every attempt is a row of its own with its own name in the blob store, so that a late agent can neither
resurrect an attempt that was given up nor harm a newer one. Times are lease time in seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """What an agent does; progress in each is something else, and so is the time it may take without."""

    STARTING = "starting"
    COPYING = "copying"
    FINISHING = "finishing"
    UPLOADING = "uploading"


STALLS = {
    Phase.STARTING: 600.0,
    Phase.COPYING: 600.0,
    Phase.FINISHING: 900.0,
    Phase.UPLOADING: 600.0,
}
"""Seconds that an agent may stand still, by what it waits for."""


class Limits(msgspec.Struct, frozen=True):
    """Deadlines of one backup, set when it is created; seconds. ``total`` is optional."""

    claim: float = 300.0
    stalls: dict[Phase, float] = msgspec.field(default_factory=lambda: dict(STALLS))
    verify: float = 900.0
    unknown: float = 300.0
    """How long an answer of the blob store is waited for before an attempt is judged without it."""
    total: float | None = None
    attempts: int = 3


class Claimed(msgspec.Struct, frozen=True):
    """An agent's incarnation has taken the attempt. ``heard``: its last word; ``moved``: its last progress,
    which it tells as an age, so that a silence of ours is not charged to its work."""

    incarnation: int
    heard: float
    moved: float
    phase: Phase
    bytes: int = 0
    put_off: str = ""
    """What the blob store said last, while it takes nothing."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The agent says that the manifest is written; its digest."""

    digest: str


class Gave(msgspec.Struct, frozen=True, tag="gave"):
    """The agent gave up, or stopped because it was told to. ``final``: another attempt would end alike."""

    reason: str
    final: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """One run. ``granted``: since when an agent may take it."""

    number: int
    nonce: str
    granted: float
    claimed: Claimed | None = None
    report: Done | Gave | None = None


class Present(msgspec.Struct, frozen=True, tag="present"):
    """A manifest of this backup is in the blob store: this attempt's, with this digest."""

    attempt: int
    digest: str


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """For certain, none of the attempts up to and with ``attempt`` has a manifest."""

    attempt: int


class Unanswered(msgspec.Struct, frozen=True, tag="unanswered"):
    """The blob store was asked and gave no answer that says anything, since then."""

    since: float
    reason: str


StoreSaid = Present | Absent | Unanswered


class Verified(msgspec.Struct, frozen=True, tag="verified"):
    """The manifest is signed and fits, and every object is there."""

    size: int


class Rotten(msgspec.Struct, frozen=True, tag="rotten"):
    """What was written is not a backup; why."""

    reason: str


class Ending(StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Ended(msgspec.Struct, frozen=True):
    """Final: a retry is a new backup."""

    ending: Ending
    reason: str


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what comes next. ``attempt`` is the latest one."""

    id: str
    created: float
    limits: Limits
    attempt: Attempt
    cancelled: bool = False
    cancel_reason: str = ""
    deleted: bool = False
    instance_gone: bool = False
    stop_since: float | None = None
    """Since when its agent is to stop, if it is to."""
    generation: int = 0
    """The store's generation in which it was created."""
    set_back: bool = False
    """The store was set back since: attempts may have come further than is known here. Derived."""
    store: StoreSaid | None = None
    verdict: Verified | Rotten | Unanswered | None = None
    verify_since: float | None = None
    ended: Ended | None = None
    imported: bool = False
    """It was found in the store of objects, which the store had known nothing of."""
    litter: bool = False
    """There may still be objects in the blob store that nothing refers to."""
    trouble: str | None = None
    """Why it could not be removed, when that was tried last."""
    swept: bool = False
    """What lay there when it ended is removed; what arrives later still has to be."""
    collect_after: float = 0.0
    """When an upload that was under way can no longer arrive, and the second listing is due."""
    readers: int = 0
    """Restores that read it now. Derived."""
    children: int = 0
    """Incremental backups that cannot be restored without it. Derived."""
