"""Moments out of a store of objects and the recovery file alone: which there are, and what each is made from.

Signed pieces of logs say by themselves when their positions were reached, by the clock that the cloud's store
had; backups say into which archive their log goes. Decided by the same rules as in the cloud
(``core/archive/ledger.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from unstuck.blobs import archive as logs
from unstuck.blobs import keys
from unstuck.blobs.chunks import open_chunk
from unstuck.blobs.manifest import Manifest, ManifestError
from unstuck.blobs.objects import Entry, Objects
from unstuck.blobs.restore import Broken, Listed, Lost, chain_of
from unstuck.blobs.verify import MANIFEST_LARGEST
from unstuck.core.archive import ledger
from unstuck.core.archive.data import Archive, Base, Closed, Kept, Mark, Point
from unstuck.core.archive.ledger import Not, Window, resolve
from unstuck.core.archive.positions import place_of


class Log(msgspec.Struct, frozen=True):
    """An unbroken part of one archive of an instance, and its pieces that are whole; each once."""

    archive: Archive
    pieces: tuple[Kept, ...]


class Plan(msgspec.Struct, frozen=True):
    """What a moment is made from: a chain of backups, then these pieces, up to the point. ``ends``: there is
    nothing behind the point in them."""

    chain: tuple[Manifest, ...]
    pieces: tuple[Kept, ...]
    point: Point
    ends: bool


def list_logs(objects: Objects, cloud_key: str, backups: Sequence[Listed]) -> dict[str, list[Log]]:
    """All archives by instance, the oldest first; what is not whole counts as not there. Raises BlobError."""
    of_folder: dict[str, list[Entry]] = {}
    for entry in objects.list(logs.ROOT):
        of_folder.setdefault(entry.key.rpartition("/")[0], []).append(entry)
    of_archive: dict[str, dict[str, Kept]] = {}
    for folder, entries in of_folder.items():
        kept = _piece(objects, folder, entries, cloud_key)
        if kept is not None:
            of_archive.setdefault(kept.archive_id, {})[kept.piece.name] = kept
    bases = _bases(backups)
    found: dict[str, list[Log]] = {}
    for archive_id, pieces in sorted(of_archive.items(), key=lambda item: _number(item[0])):
        whole = tuple(sorted(pieces.values(), key=lambda kept: kept.piece.name))
        mine = found.setdefault(whole[0].instance_id, [])
        for number, run in enumerate(_runs(whole)):
            made = _archive(f"{archive_id}.{number}", run, bases.get(archive_id, ()))
            mine.append(Log(made, run))
    for several in found.values():
        for number, log in enumerate(several[:-1]):
            # Whyever it ended.
            began = several[number + 1].archive.opened_wall
            ended = msgspec.structs.replace(log.archive, closed=Closed.GAP, closed_wall=began)
            several[number] = msgspec.structs.replace(log, archive=ended)
    return found


def _number(archive_id: str) -> tuple[str, int]:
    instance, _, number = archive_id.rpartition("-")
    return instance, int(number) if number.isdigit() else 0


def _piece(objects: Objects, folder: str, entries: list[Entry], cloud_key: str) -> Kept | None:
    mine = [entry for entry in entries if entry.key == logs.manifest_key(folder)]
    if not mine or mine[0].size > MANIFEST_LARGEST:
        return None
    data = objects.get(mine[0].key)
    if data is None:
        return None
    try:
        kept = logs.read(data, cloud_key, folder)
    except ManifestError:
        return None
    # MariaDB's log is not read by itself; its backups are.
    return None if kept.datastore.type != "postgresql" or logs.missing(kept, entries) else kept


def _bases(backups: Sequence[Listed]) -> dict[str, list[Base]]:
    """By archive: backups that are whole, with all that comes before them."""
    found: dict[str, list[Base]] = {}
    for item in backups:
        known = item.manifest
        if known is None or item.fault is not None or not known.archive:
            continue
        try:
            chain_of(list(backups), known.backup_id)
            place = place_of(known.datastore.type, known.stop)
        except (Broken, ValueError):
            continue
        base = Base(known.backup_id, known.stop.timeline, place, known.taken_at)
        found.setdefault(known.archive, []).append(base)
    return found


def _runs(pieces: Sequence[Kept]) -> Iterator[tuple[Kept, ...]]:
    """What follows one another without a gap; each with what belongs to no place in the log."""
    unplaced = [kept for kept in pieces if not kept.piece.start]
    placed = [kept for kept in pieces if kept.piece.start]
    run: list[Kept] = []
    for kept in sorted(placed, key=lambda one: (one.piece.timeline, one.piece.start)):
        last = run[-1].piece if run else None
        if last is not None and (last.timeline, last.stop) != (kept.piece.timeline, kept.piece.start):
            yield (*unplaced, *run)
            run = []
        run.append(kept)
    if run:
        yield (*unplaced, *run)


def _archive(name: str, run: Sequence[Kept], bases: Sequence[Base]) -> Archive:
    placed = [kept for kept in run if kept.piece.start]
    return Archive(
        id=name, opened_wall=min(kept.kept_at for kept in placed), timeline=placed[0].piece.timeline,
        start=placed[0].piece.start, stop=placed[-1].piece.stop, bases=tuple(bases),
        marks=tuple(_marks(placed)),
    )  # fmt: skip


def _marks(pieces: Sequence[Kept]) -> Iterator[Mark]:
    """In their order: both time and position only ever go on.

    What is said of a mark last counts: how long it held may become known with the next piece. That a piece
    was kept in a silence says what was there then, and nothing of what came after it.
    """
    said: dict[tuple[float, int, str], Mark] = {}
    for kept in sorted(pieces, key=lambda one: one.kept_at):
        said |= {(mark.wall, mark.timeline, mark.position): mark for mark in kept.marks}
    ends = [Mark(kept.kept_at, kept.piece.timeline, kept.piece.stop) for kept in pieces]
    last: Mark | None = None
    silent = False
    for mark in sorted([*said.values(), *ends], key=lambda one: (one.wall, one.timeline, one.position)):
        is_end = (mark.wall, mark.timeline, mark.position) not in said
        if not is_end:
            silent = mark.held is not None
        elif last is not None and mark.wall <= (last.held or 0.0):
            continue  # nothing had happened
        if last is None or (mark.timeline, mark.position) > (last.timeline, last.position):
            last = msgspec.structs.replace(mark, held=mark.wall) if is_end and silent else mark
            yield last


def windows(found: Sequence[Log]) -> list[Window]:
    """The moments of one instance."""
    return [each for log in found for each in ledger.windows(log.archive)]


def plan(backups: Sequence[Listed], found: Sequence[Log], at: float) -> Plan:
    """What an instance at a moment is made from. Raises :class:`Broken`, which says what can be restored."""
    said = resolve([log.archive for log in found], at)
    if isinstance(said, Not):
        raise Broken(said.reason)
    log = next(one for one in found if one.archive.id == said.point.archive_id)
    point, base = said.point, said.base
    placed = [kept for kept in log.pieces if kept.piece.start]
    needed = [kept for kept in placed if kept.piece.stop > base.stop and kept.piece.start <= point.position]
    # The record that begins last before the point may end in the next piece.
    following = [kept for kept in placed if needed and kept.piece.start == needed[-1].piece.stop]
    pieces = [kept for kept in log.pieces if not kept.piece.start] + needed + following[:1]
    ends = placed[-1].piece.stop <= point.position
    return Plan(tuple(chain_of(list(backups), base.backup_id)), tuple(pieces), point, ends)


def plain_piece(objects: Objects, kept: Kept, identity: str) -> bytes:
    """A piece as it went in. Raises BlobError, Lost, Damaged and BadKey."""
    key = keys.unwrap(kept.key, identity)
    parts = []
    for chunk in kept.chunks:
        sealed = objects.get(logs.part_key(kept.prefix, chunk.index))
        if sealed is None:
            raise Lost(f"part {chunk.index} of {kept.piece.name} is not in the store")
        parts.append(open_chunk(chunk, sealed, key))
    return b"".join(parts)
