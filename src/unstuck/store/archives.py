"""The archive of an instance's log: its generations, the ledger, and the marks of the store's time in it.

An instance has one archive that goes on. It ends for good with a gap, or when the guest comes with other data
under a name that is there, and the next one begins in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs.chunks import CHUNK_SIZE
from unstuck.core.archive.data import Archive, ArchiveWant, Base, Closed, LogSeen, LogView, Mark, Piece
from unstuck.core.archive.ledger import SLACK
from unstuck.core.archive.marks import marked
from unstuck.core.archive.positions import place_of
from unstuck.core.backup.data import Ending
from unstuck.store.backup_chain import checked_content
from unstuck.store.backup_rows import from_row
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.archive import archive_marks, archive_pieces
from unstuck.store.schema.archive import archives as table
from unstuck.store.schema.database import backups, instances

BUDGET: Final = 0.25
"""The part of a volume that the log may take while it waits to be kept."""
IS_OPEN = sa.and_(table.c.closed.is_(None), sa.not_(table.c.removed))
_OPEN = Prepared(sa.select(table).where(table.c.instance_id == sa.bindparam("instance"), IS_OPEN))
_WANTED = Prepared(
    sa.select(table.c.id, table.c.recipient, table.c.digest_key, table.c.timeout, instances.c.volume_gb)
    .join(instances, instances.c.id == table.c.instance_id)
    .where(table.c.instance_id == sa.bindparam("instance"), table.c.recipient != "", IS_OPEN)
)
ALL = Prepared(
    sa.select(table)
    .where(table.c.instance_id == sa.bindparam("instance"), sa.not_(table.c.removed))
    .order_by(table.c.number)
)
_LAST = Prepared(
    sa.select(sa.func.max(table.c.number)).where(table.c.instance_id == sa.bindparam("instance"))
)
_INSERT = Prepared(sa.insert(table))
LOCK = Prepared(sa.select(table.c.id).where(table.c.id == sa.bindparam("archive")).with_for_update())
ONE = Prepared(sa.select(table).where(table.c.id == sa.bindparam("archive")))
_CLOSE = Prepared(
    sa.update(table)
    .where(table.c.id == sa.bindparam("archive"), table.c.closed.is_(None))
    .values(
        closed=sa.bindparam("why"), closed_wall=sa.bindparam("wall"), next_look=sa.bindparam("now"),
    )
)  # fmt: skip
_WAKE = Prepared(
    sa.update(table)
    .where(table.c.instance_id == sa.bindparam("instance"), sa.not_(table.c.removed))
    .values(next_look=sa.bindparam("now"))
)
_PIECE = Prepared(
    sa.select(archive_pieces).where(
        archive_pieces.c.archive_id == sa.bindparam("archive"),
        archive_pieces.c.name == sa.bindparam("called"),
    )
)
_ADD_PIECE = Prepared(sa.insert(archive_pieces))
_TRY = Prepared(
    sa.update(archive_pieces)
    .where(
        archive_pieces.c.archive_id == sa.bindparam("archive"),
        archive_pieces.c.name == sa.bindparam("called"), archive_pieces.c.tag.is_(None),
    )
    .values(trying=sa.bindparam("now_trying"))
)  # fmt: skip
_KEPT = Prepared(
    sa.update(archive_pieces)
    .where(
        archive_pieces.c.archive_id == sa.bindparam("archive"),
        archive_pieces.c.name == sa.bindparam("called"), archive_pieces.c.tag.is_(None),
        archive_pieces.c.trying == sa.bindparam("tried"),
    )
    .values(
        tag=sa.bindparam("by"), chunks=sa.bindparam("parts"), kept_wall=sa.bindparam("wall"),
        trying=sa.bindparam("nothing", type_=sa.String),
    )
)  # fmt: skip
_kept = sa.and_(
    archive_pieces.c.archive_id == sa.bindparam("archive"), archive_pieces.c.tag.is_not(None),
    sa.not_(archive_pieces.c.dropped), archive_pieces.c.timeline == sa.bindparam("of_timeline"),
)  # fmt: skip
_AFTER = Prepared(
    sa.select(archive_pieces.c.stop).where(_kept, archive_pieces.c.start == sa.bindparam("place"))
)
_SET_RUN = Prepared(
    sa.update(table)
    .where(table.c.id == sa.bindparam("archive"))
    .values(
        timeline=sa.bindparam("of_timeline"), start=sa.bindparam("from_here"), stop=sa.bindparam("to_here")
    )
)
LAST_MARK = Prepared(
    sa.select(archive_marks)
    .where(archive_marks.c.archive_id == sa.bindparam("archive"))
    .order_by(archive_marks.c.wall.desc())
    .limit(1)
)
_MARKS = Prepared(
    sa.select(archive_marks)
    .where(archive_marks.c.archive_id == sa.bindparam("archive"))
    .order_by(archive_marks.c.wall)
)
_MARK_BEFORE = Prepared(
    sa.select(archive_marks)
    .where(
        archive_marks.c.archive_id == sa.bindparam("archive"),
        archive_marks.c.timeline == sa.bindparam("of_timeline"),
        archive_marks.c.position <= sa.bindparam("until"),
    )
    .order_by(archive_marks.c.wall.desc())
    .limit(1)
)
_MARKS_WITHIN = Prepared(
    sa.select(archive_marks)
    .where(
        archive_marks.c.archive_id == sa.bindparam("archive"),
        archive_marks.c.timeline == sa.bindparam("of_timeline"),
        archive_marks.c.position > sa.bindparam("behind"),
        archive_marks.c.position <= sa.bindparam("until"),
    )
    .order_by(archive_marks.c.wall)
)
_MARK = Prepared(sa.insert(archive_marks))
_HELD = Prepared(
    sa.update(archive_marks)
    .where(archive_marks.c.archive_id == sa.bindparam("archive"), archive_marks.c.wall == sa.bindparam("at"))
    .values(held=sa.bindparam("until", type_=sa.Double))
)
KNOWN = Prepared(
    sa.update(table)
    .where(table.c.id == sa.bindparam("archive"))
    .values(known_wall=sa.bindparam("known", type_=sa.Double))
)
_BASES = Prepared(
    sa.select(backups).where(
        backups.c.archive_id == sa.bindparam("archive"), backups.c.ended == Ending.COMPLETED.value,
        sa.not_(backups.c.deleted),
    )
)  # fmt: skip
_NOTE = Prepared(
    sa.update(backups)
    .where(backups.c.id == sa.bindparam("backup"))
    .values(archive_id=sa.bindparam("goes_on"))
)


def wanted(tx: Tx, instance_id: str) -> ArchiveWant | None:
    """Where the instance's log goes; None until its archive has a key."""
    row = _WANTED.first(tx, instance=instance_id)
    if row is None:
        return None
    return ArchiveWant(
        id=row.id, recipient=row.recipient, digest_key=row.digest_key, chunk_size=CHUNK_SIZE,
        budget_mb=max(64, int(row.volume_gb * 1024 * BUDGET)), timeout=row.timeout,
    )  # fmt: skip


def open_archive(tx: Tx, instance_id: str, project_id: str, generation: str) -> None:
    """Begin the next archive generation, unless one goes on; the caller holds the instance's row.

    The control loop makes its key, and then tells the host.
    """
    if _OPEN.first(tx, instance=instance_id) is not None:
        return
    number = (_LAST.scalar(tx, instance=instance_id) or 0) + 1
    _INSERT.run(
        tx, id=f"{instance_id}-{number}", instance_id=instance_id, project_id=project_id, number=number,
        generation=generation, prefix="", location="", recipient="", key="", recipients="[]", digest_key="",
        timeout=0, opened_wall=tx.now.wall, timeline=0, start="", stop="", bases=0,
        base_after=tx.now.lease,
        removed=False, next_look=tx.now.lease,
    )  # fmt: skip


def close_archive(tx: Tx, archive_id: str, why: Closed) -> bool:
    """It goes on no more, and the next one begins; the caller holds the instance's row. False: it had ended.

    The caller tells the host.
    """
    row = ONE.first(tx, archive=archive_id)
    if row is None or row.closed is not None or row.removed:
        return False
    _CLOSE.run(tx, archive=archive_id, why=why.value, wall=tx.now.wall, now=tx.now.lease)
    open_archive(tx, row.instance_id, row.project_id, row.generation)
    return True


def open_id(tx: Tx, instance_id: str) -> str | None:
    """The archive that goes on."""
    row = _OPEN.first(tx, instance=instance_id)
    return None if row is None else str(row.id)


def look_at(tx: Tx, instance_id: str) -> None:
    """What its archives are needed for has changed."""
    _WAKE.run(tx, instance=instance_id, now=tx.now.lease)


def note_archive(tx: Tx, backup_id: str, instance_id: str) -> str | None:
    """A backup is begun, and the log that follows its end goes into this archive: its id."""
    row = _WANTED.first(tx, instance=instance_id)
    if row is None:
        return None
    _NOTE.run(tx, backup=backup_id, goes_on=row.id)
    return str(row.id)


def note_log(tx: Tx, instance_id: str, log: LogView, seen: Sequence[LogSeen] = ()) -> None:
    """How far the log has come by now, and how it went on until then, as far as its host tells that.

    The caller holds the instance's row.
    """
    row = _OPEN.first(tx, instance=instance_id)
    if row is None:
        return
    stored = LAST_MARK.first(tx, archive=row.id)
    before = None if stored is None else Mark(stored.wall, stored.timeline, stored.position, stored.held)
    told = list(seen) or [LogSeen(log.timeline, log.position, 0.0, 0.0)]
    if before is None:
        told = told[-1:]
    known = row.known_wall if before is None or before.held is None else before.held
    for mark in marked(before, known if seen else tx.now.wall, told, tx.now.wall):
        if before is not None and mark.wall == before.wall:
            if mark.held != before.held:
                _HELD.run(tx, archive=row.id, at=mark.wall, until=mark.held)
        else:
            _MARK.run(
                tx, archive_id=row.id, wall=mark.wall, timeline=mark.timeline, position=mark.position,
                held=mark.held,
            )  # fmt: skip
    if row.known_wall is not None:
        KNOWN.run(tx, archive=row.id, known=None)


def says_more(tx: Tx, instance_id: str, seen: Sequence[LogSeen]) -> bool:
    """Whether what a host tells of a log is news, although its guest's view is not."""
    row = _OPEN.first(tx, instance=instance_id) if seen else None
    if row is None:
        return False
    last = LAST_MARK.first(tx, archive=row.id)
    if row.known_wall is not None or last is None:
        return True
    return (seen[-1].last >= SLACK) != (last.held is not None)


def marks_of(tx: Tx, archive_id: str, piece: Piece) -> tuple[Mark, ...]:
    """What is known of when the positions in a piece were reached: with it, the piece says so by itself.

    The one before them is said again: of that it may not have been known how long it held.
    """
    if not piece.start:
        return ()
    before = _MARK_BEFORE.all(tx, archive=archive_id, of_timeline=piece.timeline, until=piece.start)
    found = _MARKS_WITHIN.all(
        tx, archive=archive_id, of_timeline=piece.timeline, behind=piece.start, until=piece.stop
    )
    return tuple(Mark(one.wall, one.timeline, one.position, one.held) for one in (*before, *found))


def before(tx: Tx, instance_id: str, number: int) -> Closed | None:
    """Why the archive generation before this one ended."""
    row = ONE.first(tx, archive=f"{instance_id}-{number - 1}")
    return None if row is None or row.closed is None else Closed(row.closed)


def ends_by(tx: Tx, instance_id: str, log: LogView | None) -> tuple[str, Closed] | None:
    """The archive that ends by what a guest says, and why, if it is news: it has let a part of its log go, or
    its log has gone back. What was durable once is so for ever, unless a volume was set back."""
    row = None if log is None else _OPEN.first(tx, instance=instance_id)
    if row is None or log is None:
        return None
    if log.gap is not None and log.gap.archive_id == row.id:
        return str(row.id), Closed.GAP
    last = LAST_MARK.first(tx, archive=row.id)
    if last is not None and (log.timeline, log.position) < (last.timeline, last.position):
        return str(row.id), Closed.DIVERGED
    return None


class Begun(msgspec.Struct, frozen=True):
    """What comes of a piece: it is known, it differs, or it is to be sent (``row`` says where to)."""

    known: bool = False
    diverged: bool = False
    row: Any = None


def begin_piece(tx: Tx, archive_id: str, piece: Piece, tag: str) -> Begun | None:
    """Write down what is about to be made; None: this archive goes on no more.

    The caller holds the instance's row.
    """
    row = ONE.first(tx, archive=archive_id)
    if row is None or row.closed is not None or row.removed or not row.recipient:
        return None
    before = _PIECE.first(tx, archive=archive_id, called=piece.name)
    if before is None:
        _ADD_PIECE.run(
            tx, archive_id=archive_id, name=piece.name, timeline=piece.timeline, start=piece.start,
            stop=piece.stop, size=piece.size, digest=piece.digest, trying=tag, tag=None, chunks=None,
            kept_wall=None, dropped=False,
        )  # fmt: skip
        return Begun(row=row)
    if before.digest != piece.digest or before.size != piece.size:
        return Begun(diverged=True)
    if before.tag is not None:
        return Begun(known=True)
    _TRY.run(tx, archive=archive_id, called=piece.name, now_trying=tag)
    return Begun(row=row)


def is_tried(tx: Tx, archive_id: str, name: str, tag: str) -> str | None:
    """Where an object of this try goes: a store's name; None where the try is over."""
    row, piece = ONE.first(tx, archive=archive_id), _PIECE.first(tx, archive=archive_id, called=name)
    if row is None or piece is None or row.closed is not None or piece.trying != tag:
        return None
    return str(row.location)


def end_piece(tx: Tx, archive_id: str, name: str, tag: str, chunks: str) -> bool:
    """It counts from now on; the same again is no news. False: this try is over."""
    if tx.postgresql:
        LOCK.first(tx, archive=archive_id)
    done = _KEPT.run(
        tx, archive=archive_id, called=name, tried=tag, by=tag, parts=chunks, wall=tx.now.wall, nothing=None
    )
    piece = _PIECE.first(tx, archive=archive_id, called=name)
    if done != 1 or piece is None:
        return piece is not None and piece.tag == tag
    if piece.start:
        _advance(tx, ONE.first(tx, archive=archive_id), piece)
    return True


def _advance(tx: Tx, archive: Any, piece: Any) -> None:
    """The log that is there without a gap, after a piece of it has come."""
    start, stop = archive.start, archive.stop
    if piece.timeline < archive.timeline:
        return
    if piece.timeline > archive.timeline or not stop:
        start, stop = piece.start, piece.stop
    elif piece.start == stop:
        stop = piece.stop
    elif piece.stop == start:
        start = piece.start
    else:
        return
    while (more := _AFTER.scalar(tx, archive=archive.id, of_timeline=piece.timeline, place=stop)) is not None:
        stop = more
    _SET_RUN.run(tx, archive=archive.id, of_timeline=piece.timeline, from_here=start, to_here=stop)


def facts_of(tx: Tx, row: Any, *, marks: bool = True) -> Archive:
    """An archive as the core sees it."""
    found = _MARKS.all(tx, archive=row.id) if marks else ()
    return Archive(
        id=row.id, opened_wall=row.opened_wall, timeline=row.timeline, start=row.start, stop=row.stop,
        closed=None if row.closed is None else Closed(row.closed), closed_wall=row.closed_wall,
        bases=tuple(base for one in _BASES.all(tx, archive=row.id) if (base := _base(one)) is not None),
        marks=tuple(Mark(one.wall, one.timeline, one.position, one.held) for one in found),
    )  # fmt: skip


def _base(row: Any) -> Base | None:
    """A row that cannot say where it ends is no base."""
    found = from_row(row)
    content = checked_content(found)
    if content is None:
        return None
    try:
        stop = place_of(content.datastore.type, content.stop)
    except ValueError:
        return None
    return Base(found.id, content.stop.timeline, stop, found.created_wall, damaged=found.damaged is not None)
