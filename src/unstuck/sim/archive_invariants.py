"""What must hold of archives: the ledger never lies, nothing is claimed that is not there, nobody writes into
another instance's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs.archive import part_key
from unstuck.blobs.chunks import open_chunk
from unstuck.core.archive.data import Point
from unstuck.core.archive.ledger import SLACK
from unstuck.core.backup.content import Chunk
from unstuck.core.instance.want import DatabaseWant
from unstuck.store import archive_moments
from unstuck.store.cloud_keys import project_key
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.archive import archive_marks, archive_pieces
from unstuck.store.schema.archive import archives as table
from unstuck.store.schema.database import backups

if TYPE_CHECKING:
    from unstuck.sim.database_invariants import DatabaseTruth
    from unstuck.sim.databases import Databases

LATE: Final = SLACK + 2.0
"""Seconds by which what is restored may be older than its moment, with what reports take on their way."""

_chunks = msgspec.json.Decoder(tuple[Chunk, ...])


_kept = sa.select(archive_pieces, table.c.instance_id, table.c.prefix, table.c.key, table.c.project_id)
_MARKS = Prepared(sa.select(archive_marks, table.c.instance_id).join(table))
_KEPT = Prepared(_kept.join(table).where(archive_pieces.c.tag.is_not(None)))
_BASES = Prepared(
    sa.select(backups.c.id, backups.c.archive_id, backups.c.ended, backups.c.deleted).where(
        backups.c.archive_id.is_not(None)
    )
)
_INSTANCES = Prepared(sa.select(table.c.instance_id).distinct())


class ArchiveTruth:
    """Judges archives by the rows that were written, and when."""

    def __init__(self, world: Databases, truth: DatabaseTruth) -> None:
        self._world = world
        self._truth = truth
        self.when: dict[int, list[float]] = {}
        """By history: the store's time at which each row was there."""
        self.owner: dict[int, str] = {}
        """By history: the server whose volume it was made in."""
        self._checked: set[tuple[str, str, str]] = set()
        self._judged: object = None
        """Marks, pieces and bases from which claims were checked last: from the same follow the same."""

    def row_written(self, timeline: int, count: int) -> None:
        now = self._world.store.read(lambda tx: tx.now.wall)
        times = self.when.setdefault(timeline, [])
        times += [now] * (count - len(times))

    def history_begins(self, timeline: int, server_id: str, rows: int) -> None:
        self.owner[timeline] = server_id
        self.row_written(timeline, rows)

    def removing(self, tx: Tx, key: str) -> None:
        """Never a piece that counts."""
        for row in _KEPT.all(tx):
            inside = key.startswith(f"{row.prefix}/{row.name}/{row.tag}/")
            if inside and not row.dropped and not self._truth.set_back:
                self._truth.fail(f"live piece removed: {key}, and the ledger counts it")

    def restored(self, want: DatabaseWant, rows: list[str]) -> None:
        """Exactly what was there at the point."""
        point = want.origin.point
        assert point is not None
        true = self._truth.timelines[point.timeline][: int(point.position, 16)]
        if rows != true:
            self._truth.fail(f"restored other rows: {want.instance_id} has {len(rows)}, of {len(true)}")
        self._check_age(want.instance_id, point)
        later = self.when[point.timeline][len(rows) - 1] if rows else 0.0
        if later > point.wall:
            self._truth.fail(
                f"restored too much: {want.instance_id} holds a row of {later - point.wall:.1f} s later"
            )

    def _check_age(self, instance_id: str, point: Point) -> None:
        """All that was acknowledged by then is in it, but for what an agent may be late."""
        times = self.when.get(point.timeline, [])
        due = sum(1 for written in times if written <= point.wall - LATE)
        if int(point.position, 16) < due:
            self._truth.fail(
                f"claimed, and too old: {instance_id} at {point.wall:.1f} has "
                f"{int(point.position, 16)} rows of {due}"
            )

    def check_moments(self, tx: Tx) -> None:
        """Each moment that is said to be restorable, in the end."""
        if self._truth.set_back:
            return
        rows = {written + LATE for times in self.when.values() for written in times}
        for row in _INSTANCES.all(tx):
            for window in archive_moments.moments(tx, row.instance_id).windows:
                inside = {at for at in rows if window.earliest <= at <= window.latest}
                for at in sorted(inside | {window.earliest, window.latest}):
                    found = archive_moments.restorable(tx, row.instance_id, min(at, tx.now.wall), None)
                    self._check_age(row.instance_id, found.point)

    def audit(self, tx: Tx) -> None:
        if self._truth.set_back:
            return
        marks, kept = _MARKS.all(tx), _KEPT.all(tx)
        for mark in marks:
            self._check_mark(mark)
        for piece in kept:
            self._check_piece(tx, piece)
        judged = (marks, [(one.archive_id, one.name, one.tag, one.dropped) for one in kept], _BASES.all(tx))
        if judged != self._judged:
            self._judged = judged
            for row in _INSTANCES.all(tx):
                self._check_claims(tx, row.instance_id)

    def _check_mark(self, mark: Any) -> None:
        """What it says to have been there was, and not long before what came next."""
        times, position = self.when.get(mark.timeline, []), int(mark.position, 16)
        if position > len(times) or (position and times[position - 1] > mark.wall):
            self._truth.fail(f"the ledger lies: at {mark.wall:.1f} there were no {position} rows")

    def _check_piece(self, tx: Tx, row: Any) -> None:
        """Its objects hold what was written in that history, which is its own instance's."""
        if row.dropped or (row.archive_id, row.name, row.tag) in self._checked:
            return
        self._checked.add((row.archive_id, row.name, row.tag))
        if self.owner.get(row.timeline) != f"server-{row.instance_id}":
            self._truth.fail(f"a stranger's archive: {row.name} was written into that of {row.instance_id}")
        project = project_key(tx, row.project_id)
        assert project is not None
        identity, plain = self._world.keyring.open_backup_key(project, row.key), b""
        for chunk in _chunks.decode(row.chunks):
            sealed = self._world.blobs.objects.get(
                part_key(f"{row.prefix}/{row.name}/{row.tag}", chunk.index)
            )
            if sealed is None:
                self._truth.fail(f"kept, and not there: {row.name} of {row.archive_id}")
                return
            plain += open_chunk(chunk, sealed, identity)
        rows = self._truth.timelines[row.timeline][int(row.start, 16) : int(row.stop, 16)]
        if msgspec.json.decode(plain) != rows:
            self._truth.fail(f"kept, and something else: {row.name} of {row.archive_id}")

    def _check_claims(self, tx: Tx, instance_id: str) -> None:
        """What is claimed to be restorable: from a complete base, by pieces that follow one another."""
        for window in archive_moments.moments(tx, instance_id).windows:
            for at in (window.earliest, window.latest):
                found = archive_moments.restorable(tx, instance_id, min(at, tx.now.wall), None)
                place = found.base.stop
                mine = found.point.archive_id
                kept = {
                    one.start: one.stop for one in _KEPT.all(tx) if one.archive_id == mine and not one.dropped
                }
                begin = max((start for start in kept if start <= place), default=None)
                while place < found.point.position and begin is not None and begin in kept:
                    place = begin = kept[begin]
                if place < found.point.position:
                    self._truth.fail(f"claimed, and not there: {instance_id} at {at:.1f}")
