"""What hosts ask for their guests' logs: pieces to be kept, and those that a restore to a point reads.

Fenced as attempts are: by the host's incarnation, the server's grant and the guest agent's incarnation.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs import archive as objects
from unstuck.blobs import keys
from unstuck.blobs.chunks import CHUNK_SIZE
from unstuck.blobs.keyring import Keyring
from unstuck.core.archive.data import Closed, Kept
from unstuck.core.archive.positions import place_of
from unstuck.core.backup.content import Chunk, Datastore
from unstuck.core.instance.want import Origin
from unstuck.core.instance.wire import AskLog, BeginPiece, EndPiece, LogPart, Who
from unstuck.store import archives, readable
from unstuck.store.agents import Stale
from unstuck.store.backup_attempts import held_instance
from unstuck.store.backup_chain import checked_content
from unstuck.store.backup_rows import load_backup
from unstuck.store.cloud_keys import project_key
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, lock_host
from unstuck.store.schema.archive import archive_pieces
from unstuck.store.schema.database import datastore_versions, instances

PAGE: Final = 256
"""Pieces in one answer: some hundred bytes each."""

_origin = msgspec.json.Decoder(Origin)
_chunks = msgspec.json.Decoder(tuple[Chunk, ...])
_RESTORED = Prepared(
    sa.select(
        instances.c.origin, instances.c.restores, instances.c.data_recorded, datastore_versions.c.manager
    )
    .join(datastore_versions, datastore_versions.c.id == instances.c.datastore_version_id)
    .where(instances.c.id == sa.bindparam("instance"))
)
_VERSION = Prepared(
    sa.select(datastore_versions.c.manager, datastore_versions.c.version)
    .join(instances, instances.c.datastore_version_id == datastore_versions.c.id)
    .where(instances.c.id == sa.bindparam("instance"))
)
_READ = Prepared(
    sa.select(archive_pieces)
    .where(
        archive_pieces.c.archive_id == sa.bindparam("archive"), archive_pieces.c.tag.is_not(None),
        archive_pieces.c.name > sa.bindparam("behind"),
        sa.or_(
            archive_pieces.c.start == "",
            sa.and_(
                archive_pieces.c.timeline == sa.bindparam("of_timeline"),
                archive_pieces.c.stop > sa.bindparam("from_here"),
                archive_pieces.c.start < sa.bindparam("to_here"),
            ),
        ),
    )
    .order_by(archive_pieces.c.name)
    .limit(PAGE + 1)
)  # fmt: skip
_NEXT = Prepared(
    sa.select(archive_pieces.c.stop).where(
        archive_pieces.c.archive_id == sa.bindparam("archive"), archive_pieces.c.tag.is_not(None),
        archive_pieces.c.timeline == sa.bindparam("of_timeline"),
        archive_pieces.c.start == sa.bindparam("place"),
    )
)  # fmt: skip


class PieceGrant(msgspec.Struct, frozen=True):
    """``diverged``: the archive ended by it, and its host is to hear of the next one."""

    known: bool = False
    diverged: bool = False
    kept: Kept | None = None
    certificate: str = ""
    location: str = ""


def begin_piece(tx: Tx, host_id: str, ask: BeginPiece, keyring: Keyring) -> PieceGrant:
    """A guest's agent comes with a piece. Raises Stale where its archive goes on no more."""
    lock_host(tx, host_id)  # it may end the archive, which is news for the host
    instance = _guests(tx, host_id, ask.who)
    begun = archives.begin_piece(tx, ask.archive_id, ask.piece, ask.tag)
    if begun is None or not ask.archive_id.startswith(f"{instance.id}-"):
        raise Stale(f"archive {ask.archive_id} goes on no more")
    if begun.diverged:
        if archives.close_archive(tx, ask.archive_id, Closed.DIVERGED):
            bump_world(tx, host_id, ask.who.server_id)
        return PieceGrant(diverged=True)
    if begun.known:
        return PieceGrant(known=True)
    row = begun.row
    version = _VERSION.first(tx, instance=instance.id)
    assert version is not None
    kept = Kept(
        prefix=objects.folder_of(row.prefix, ask.piece.name, ask.tag), archive_id=row.id,
        instance_id=instance.id, generation=row.generation,
        datastore=Datastore(version.manager, version.version, ""), piece=ask.piece, chunk_size=CHUNK_SIZE,
        chunks=(), recipients=readable.read(msgspec.json.Decoder(tuple[str, ...]), row.recipients, ()),
        key=row.key, kept_at=tx.now.wall, marks=archives.marks_of(tx, row.id, ask.piece),
    )  # fmt: skip
    certificate = msgspec.json.encode(keyring.certify(host_id, ask.signing_key)).decode()
    return PieceGrant(kept=kept, certificate=certificate, location=row.location)


def _guests(tx: Tx, host_id: str, who: Who) -> Any:
    """The instance whose present agent it is that speaks."""
    instance = held_instance(tx, host_id, who, hold=True)
    if who.guest < 1 or who.guest != instance.guest:
        raise Stale(f"incarnation {who.guest} of the instance's agent is not its present one")
    return instance


def may_keep(tx: Tx, host_id: str, who: Who, prefix: str, name: str, tag: str) -> str:
    """Where an object of this try goes: a store's name. Raises Stale."""
    instance = held_instance(tx, host_id, who, hold=False)
    archive_id = archives.open_id(tx, instance.id)
    location = None if archive_id is None else archives.is_tried(tx, archive_id, name, tag)
    row = None if archive_id is None else archives.ONE.first(tx, archive=archive_id)
    if location is None or row is None or row.prefix != prefix:
        raise Stale("this try is over")
    return location


def end_piece(tx: Tx, host_id: str, ask: EndPiece) -> None:
    """Its manifest is written. Raises Stale where this try is over."""
    instance = _guests(tx, host_id, ask.who)
    if not ask.archive_id.startswith(f"{instance.id}-"):
        raise Stale(f"archive {ask.archive_id} is not one of this instance")
    chunks = msgspec.json.encode(ask.chunks).decode()
    if not archives.end_piece(tx, ask.archive_id, ask.name, ask.tag, chunks):
        raise Stale("this try is over")


class LogPage(msgspec.Struct, frozen=True):
    identity: str
    parts: tuple[LogPart, ...]
    more: bool
    location: str


def grant_log(tx: Tx, host_id: str, ask: AskLog, keyring: Keyring) -> LogPage:
    """The pieces from the end of the base to the point. Raises Stale, and BadKey."""
    instance = held_instance(tx, host_id, ask.who, hold=False)
    row = _RESTORED.first(tx, instance=instance.id)
    origin = None if row is None else readable.read(_origin, row.origin, Origin())
    if row is None or origin is None or origin.point is None or row.data_recorded or row.restores is None:
        raise Stale("this instance is made to no point in time (any more)")
    point, base = origin.point, load_backup(tx, row.restores)
    archive = archives.ONE.first(tx, archive=point.archive_id)
    content = None if base is None else checked_content(base)
    if archive is None or archive.removed or content is None:
        raise Stale("the log that this instance is made from is not there any more")
    project = project_key(tx, archive.project_id)
    if project is None:
        raise keys.BadKey("the project of the archive has no key in the store")
    start = place_of(content.datastore.type, content.stop)
    stop = _one_more(tx, archive.id, point.timeline, point.position)
    found = _READ.all(
        tx, archive=archive.id, behind=ask.after, of_timeline=point.timeline, from_here=start, to_here=stop
    )
    parts = tuple(
        LogPart(
            one.name, one.size, objects.folder_of(archive.prefix, one.name, one.tag),
            readable.read(_chunks, one.chunks or "", ()),
        )
        for one in found[:PAGE]
    )  # fmt: skip
    return LogPage(keyring.open_backup_key(project, archive.key), parts, len(found) > PAGE, archive.location)


def _one_more(tx: Tx, archive_id: str, timeline: int, position: str) -> str:
    """The end of the piece behind the one that holds the position: what begins in that may end there."""
    row = tx.execute(
        sa.select(archive_pieces.c.stop).where(
            archive_pieces.c.archive_id == archive_id, archive_pieces.c.tag.is_not(None),
            archive_pieces.c.timeline == timeline, archive_pieces.c.start < position,
            archive_pieces.c.stop >= position,
        )
    ).first()  # fmt: skip
    if row is None or row.stop == position:
        return position
    more: str | None = _NEXT.scalar(tx, archive=archive_id, of_timeline=timeline, place=row.stop)
    return more or str(row.stop)


def may_read_log(tx: Tx, host_id: str, who: Who, folder: str, name: str) -> str:
    """Where an object of the log lies that a restore on this host reads: a store's name. Raises Stale."""
    instance = held_instance(tx, host_id, who, hold=False)
    row = _RESTORED.first(tx, instance=instance.id)
    origin = None if row is None else readable.read(_origin, row.origin, Origin())
    if row is None or origin is None or origin.point is None or row.data_recorded:
        raise Stale("this instance is made to no point in time (any more)")
    archive = archives.ONE.first(tx, archive=origin.point.archive_id)
    if archive is None or not folder.startswith(f"{archive.prefix}/{name}/"):
        raise Stale("this is not the log that the instance is made from")
    return str(archive.location)
