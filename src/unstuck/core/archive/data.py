"""An archive as the store knows it. Frozen, without I/O. Positions sort as text, within one timeline.

An *archive generation* is one unbroken log of one instance's data: after a gap, or when a volume was set
back, another one begins, with a base backup of its own. Times are wall time of the store in seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.core.backup.content import Chunk, Datastore


class Closed(StrEnum):
    """Why an archive goes on no more."""

    GAP = "gap"
    """The store of objects was away for so long that a part of the log was let go."""
    DIVERGED = "diverged"
    """The guest came with other data under a name that is there: its volume was set back."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the log that a guest wants to be kept, as it says: PostgreSQL's segment, MariaDB's binlog.

    ``digest``: keyed, of the plain data, so that it says nothing about that to others. ``start`` and
    ``stop``: where it begins and where the next one does; both empty for what belongs to no place in the log
    (a timeline's history, a backup's label). ``size`` in bytes.
    """

    name: str
    timeline: int
    start: str
    stop: str
    size: int
    digest: str


class ArchiveWant(msgspec.Struct, frozen=True, kw_only=True):
    """Where a guest's log goes. ``recipient``: the public half of the archive's own key; ``digest_key``: for
    the digests of its pieces. ``budget_mb``: of the log that waits on the volume; beyond it a gap is made.
    ``timeout``: seconds after which a part that is not full is kept all the same."""

    id: str
    recipient: str
    digest_key: str
    chunk_size: int
    budget_mb: int
    timeout: int


class Gap(msgspec.Struct, frozen=True):
    """A guest has let a part of its log go, from this piece on, and has written that down before."""

    archive_id: str
    name: str


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """What a guest says of its log. ``position``: up to which everything is written; ``waiting_mb``: what has
    not been taken yet."""

    timeline: int
    position: str
    waiting_mb: int = 0
    gap: Gap | None = None


class LogSeen(msgspec.Struct, frozen=True):
    """A position of a guest's log as its host saw it: ages in seconds. ``first``: since when it is known;
    ``last``: how long ago it was certain that the log was no further."""

    timeline: int
    position: str
    first: float
    last: float


class Point(msgspec.Struct, frozen=True):
    """Up to where a restore goes: before anything that begins at ``position`` or behind it."""

    archive_id: str
    timeline: int
    position: str
    wall: float


class Mark(msgspec.Struct, frozen=True):
    """At this time everything up to this position had happened, and what happened later lies behind it.

    ``held``: up to when it is known that nothing else had happened, where that is long before the next mark:
    nobody can say what was there in between. None: as far as the next mark, or as long as its agent is heard.
    """

    wall: float
    timeline: int
    position: str
    held: float | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A piece in the store of objects, as its signed manifest says. It lies below ``prefix``.

    ``kept_at``: when it was begun to be kept, so that all of it had happened; ``marks``: when positions in it
    were reached, as was known by then. Wall time of the store.
    """

    prefix: str
    archive_id: str
    instance_id: str
    generation: str
    datastore: Datastore
    piece: Piece
    chunk_size: int
    chunks: tuple[Chunk, ...]
    recipients: tuple[str, ...]
    key: str
    kept_at: float
    marks: tuple[Mark, ...] = ()


class Base(msgspec.Struct, frozen=True):
    """A complete backup of an archive's data; where its own log ends. ``wall``: when it was asked for.
    ``damaged``: nothing is restored from it, but its log is kept: it may be found to be sound yet."""

    backup_id: str
    timeline: int
    stop: str
    wall: float
    damaged: bool = False


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """One archive generation with all that decides what can be restored from it.

    ``start`` and ``stop``: the log that is there without a gap, in ``timeline``; empty while there is none.
    ``closed_wall``: since when it goes on no more. ``bases`` and ``marks`` in their order.
    """

    id: str
    opened_wall: float
    timeline: int = 0
    start: str = ""
    stop: str = ""
    closed: Closed | None = None
    closed_wall: float | None = None
    bases: tuple[Base, ...] = ()
    marks: tuple[Mark, ...] = ()
