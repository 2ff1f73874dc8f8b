"""What the control loop does for archives: keys, bases that nobody asked for, and what is needed no more.

One function is one transaction. Objects are looked at between them, under a lease of the one who looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs.archive import prefix_of
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.stores import Places
from unstuck.core.archive.data import Archive, Closed
from unstuck.core.archive.ledger import EVERYTHING, is_based, not_needed_below, thinned
from unstuck.core.archive.positions import place_of
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import Origin
from unstuck.core.server.data import Thing
from unstuck.core.time import backoff
from unstuck.store import archives as rows
from unstuck.store import quotas, readable
from unstuck.store.automatic_backups import Made, make_automatic_backup
from unstuck.store.backup_chain import checked_content
from unstuck.store.backup_rows import load_backup, load_live
from unstuck.store.backups import NewBackup, location_of
from unstuck.store.cloud_keys import ensure_project_key
from unstuck.store.engine import Tx
from unstuck.store.generation import recovery
from unstuck.store.instance_rows import bump_instance, load_instance
from unstuck.store.prepared import Prepared
from unstuck.store.schema.archive import archive_marks, archive_pieces, archives
from unstuck.store.schema.database import instances

REST: Final = 3600.0
"""Seconds between two looks at an archive at rest."""
WAIT: Final = 15.0
"""Seconds between two looks at one that waits for its base."""
AGAIN_FIRST: Final = 60.0
AGAIN_MOST: Final = 3600.0
"""Seconds until another base is asked for, after the first one that failed and at the longest."""
FINE: Final = 3600.0
COARSE: Final = 60.0
"""Marks older than ``FINE`` seconds stay once per ``COARSE`` seconds."""

_origin = msgspec.json.Decoder(Origin)
_DUE = Prepared(
    sa.select(archives.c.id)
    .where(
        sa.not_(archives.c.removed), archives.c.next_look <= sa.bindparam("now"),
        sa.or_(archives.c.owner.is_(None), archives.c.lease_until <= sa.bindparam("now")),
    )
    .order_by(archives.c.next_look)
    .limit(sa.bindparam("most"))
)  # fmt: skip
_KEY = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"), archives.c.recipient == "")
    .values(
        prefix=sa.bindparam("lies"), location=sa.bindparam("at_place"), recipient=sa.bindparam("public"),
        key=sa.bindparam("wrapped"), recipients=sa.bindparam("for_whom"), digest_key=sa.bindparam("secret"),
        next_look=sa.bindparam("look"), timeout=sa.bindparam("seconds"),
    )
)  # fmt: skip
_LOOK = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"))
    .values(
        next_look=sa.bindparam("look"), owner=sa.bindparam("who", type_=sa.String),
        lease_until=sa.bindparam("until", type_=sa.Double),
    )
)  # fmt: skip
_ASKED = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"))
    .values(bases=sa.bindparam("count"), base_after=sa.bindparam("after"))
)
_DROP = Prepared(
    sa.update(archive_pieces)
    .where(
        archive_pieces.c.archive_id == sa.bindparam("archive"), sa.not_(archive_pieces.c.dropped),
        archive_pieces.c.stop <= sa.bindparam("below"), archive_pieces.c.start != "",
        archive_pieces.c.timeline <= sa.bindparam("of_timeline"),
    )
    .values(dropped=True)
)  # fmt: skip
_DROP_ALL = Prepared(
    sa.update(archive_pieces)
    .where(archive_pieces.c.archive_id == sa.bindparam("archive"))
    .values(dropped=True)
)
_NO_RUN = Prepared(
    sa.update(archives).where(archives.c.id == sa.bindparam("archive")).values(start="", stop="")
)
_DROPPED = Prepared(
    sa.select(sa.func.count()).where(
        archive_pieces.c.archive_id == sa.bindparam("archive"), archive_pieces.c.dropped
    )
)
_FORGET = Prepared(
    sa.delete(archive_pieces).where(
        archive_pieces.c.archive_id == sa.bindparam("archive"), archive_pieces.c.dropped
    )
)
_UNMARK = Prepared(
    sa.delete(archive_marks).where(
        archive_marks.c.archive_id == sa.bindparam("archive"), archive_marks.c.wall == sa.bindparam("at")
    )
)
_NAMES = Prepared(
    sa.select(
        archive_pieces.c.name, archive_pieces.c.tag, archive_pieces.c.trying, archive_pieces.c.dropped
    ).where(archive_pieces.c.archive_id == sa.bindparam("archive"))
)
_READERS = Prepared(
    sa.select(instances.c.origin, instances.c.restores).where(
        instances.c.restores.is_not(None), sa.not_(instances.c.data_recorded), sa.not_(instances.c.deleted),
    )
)  # fmt: skip
_ORIGIN = Prepared(sa.select(instances.c.origin).where(instances.c.id == sa.bindparam("instance")))
_SET_RUN = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"), archives.c.start < sa.bindparam("from_here"))
    .values(start=sa.bindparam("from_here"))
)
_REMOVED = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"))
    .values(removed=True, next_look=sa.null(), owner=sa.null(), lease_until=sa.null())
)
_TROUBLE = Prepared(
    sa.update(archives)
    .where(archives.c.id == sa.bindparam("archive"))
    .values(trouble=sa.bindparam("why", type_=sa.Text))
)


class Trim(msgspec.Struct, frozen=True):
    """Objects to be looked at, by the one who has the lease. ``whole``: nothing of it is to be left."""

    archive_id: str
    prefix: str
    location: str
    whole: bool


class Stepped(msgspec.Struct, frozen=True):
    """``host_id``: who has to hear of it."""

    trim: Trim | None = None
    host_id: str | None = None


def due_archives(tx: Tx, most: int) -> list[str]:
    """Ids of those whose next look has come and that nobody is at."""
    return _DUE.scalars(tx, now=tx.now.lease, most=most)


def set_up_archive(
    tx: Tx, archive_id: str, nonce: str, timeout: int, keyring: Keyring, places: Places
) -> str | None:
    """Give it a key and a place; the host to be told."""
    row = rows.ONE.first(tx, archive=archive_id)
    if row is None or row.recipient or row.removed or not quotas.lock_project(tx, row.project_id):
        if row is not None:
            _LOOK.run(tx, archive=archive_id, look=tx.now.lease + REST, who=None, until=None)
        return None
    host_id = bump_instance(tx, row.instance_id)
    key = keyring.new_backup_key(ensure_project_key(tx, row.project_id, keyring))
    _KEY.run(
        tx, archive=archive_id, lies=prefix_of(row.instance_id, row.number, nonce),
        at_place=location_of(tx, row.project_id, row.instance_id, None, places), public=key.recipient,
        wrapped=key.wrapped, for_whom=msgspec.json.encode(key.recipients).decode(), secret=f"{nonce}{nonce}",
        look=tx.now.lease, seconds=timeout,
    )  # fmt: skip
    return host_id


def needs_key(tx: Tx, archive_id: str) -> bool:
    row = rows.ONE.first(tx, archive=archive_id)
    return row is not None and not row.recipient and not row.removed


def base_wanted(tx: Tx, archive_id: str, delay: float) -> NewBackup | None:
    """The automatic backup that an archive waits for, if it is to be made now."""
    row = rows.ONE.first(tx, archive=archive_id)
    loaded = None if row is None else load_instance(tx, row.instance_id)
    if row is None or loaded is None or row.closed is not None or loaded.instance.deleted:
        return None
    instance, seen = loaded.instance, loaded.instance.seen
    up = seen is not None and seen.server is ServerState.UP and seen.data is Thing.PRESENT
    facts = rows.facts_of(tx, row, marks=False)
    if is_based(facts) or instance.backup is not None:
        return None
    first = row.number == 1
    begins = max(row.base_after, instance.created + delay if first else 0.0)
    if not up or not instance.alive or tx.now.lease < begins:
        return None
    why = "restored" if _restored(tx, row.instance_id) else "first"
    if facts.bases:
        why = "damaged"
    elif not first:
        before = rows.before(tx, row.instance_id, row.number)
        why = "after-a-gap" if before is Closed.GAP else "diverged"
    return NewBackup(
        id="", nonce="", name=f"base-{row.number}-{row.bases + 1}", instance_id=row.instance_id,
        description="made by itself: moments can be restored from here on", made_by=f"base:{why}",
        made_key=f"base:{archive_id}:{row.bases + 1}",
    )  # fmt: skip


def _restored(tx: Tx, instance_id: str) -> bool:
    text = _ORIGIN.scalar(tx, instance=instance_id)
    return text is not None and readable.read(_origin, text, Origin()).backup_id is not None


def make_base(
    tx: Tx, archive_id: str, new: NewBackup, *, keyring: Keyring, places: Places
) -> str | None:  # fmt: skip
    """Ask for it; the host to be told. Of one try there is one backup, however often this is called."""
    made = make_automatic_backup(tx, new, keyring=keyring, places=places)
    row = rows.ONE.first(tx, archive=archive_id)
    if row is None:
        return None
    count = row.bases + (1 if isinstance(made, Made) else 0)
    after = tx.now.lease + backoff(max(count, 1), AGAIN_FIRST, AGAIN_MOST)
    _ASKED.run(tx, archive=archive_id, count=count, after=after)
    return made.host_id if isinstance(made, Made) else None


def look_at_archive(tx: Tx, archive_id: str, owner: str, lease: float) -> Trim | None:
    """Thin out its marks, drop what is needed no more, and say what is to be looked at in the blob store."""
    if tx.postgresql:
        rows.LOCK.first(tx, archive=archive_id)
    row = rows.ONE.first(tx, archive=archive_id)
    if row is None or row.removed:
        return None
    if row.owner is not None and row.lease_until > tx.now.lease:
        return None
    facts, loaded = rows.facts_of(tx, row), load_instance(tx, row.instance_id)
    removed = loaded is None or loaded.instance.removed
    for mark in thinned(facts.marks, tx.now.wall, FINE, COARSE):
        _UNMARK.run(tx, archive=archive_id, at=mark.wall)
    waits = not removed and row.closed is None and not is_based(facts)
    look = tx.now.lease + (WAIT if waits else REST)
    if recovery(tx) is not None or not row.recipient:
        _LOOK.run(tx, archive=archive_id, look=look, who=None, until=None)
        return None
    live = None if removed else load_live(tx, row.instance_id)
    below = not_needed_below(
        facts, removed=removed, reads_from=_read_from(tx, archive_id), live=live is not None
    )
    if below == EVERYTHING:
        _DROP_ALL.run(tx, archive=archive_id)
        _NO_RUN.run(tx, archive=archive_id)
    elif below:
        _DROP.run(tx, archive=archive_id, below=below, of_timeline=facts.timeline)
        _forget_marks(tx, facts, below)
        _SET_RUN.run(tx, archive=archive_id, from_here=min(below, facts.stop))
    if below != EVERYTHING and not _DROPPED.scalar(tx, archive=archive_id):
        _LOOK.run(tx, archive=archive_id, look=look, who=None, until=None)
        return None
    until = tx.now.lease + lease
    _LOOK.run(tx, archive=archive_id, look=look, who=owner, until=until)
    return Trim(archive_id, row.prefix, row.location, below == EVERYTHING)


def _forget_marks(tx: Tx, facts: Archive, below: str) -> None:
    """Moments before the oldest base; the last one before it still answers for what comes between."""
    old = [mark for mark in facts.marks if mark.timeline == facts.timeline and mark.position < below]
    for mark in old[:-1]:
        _UNMARK.run(tx, archive=facts.id, at=mark.wall)


def _read_from(tx: Tx, archive_id: str) -> list[str]:
    """Where the bases of restores end that read this archive now."""
    found = []
    for row in _READERS.all(tx):
        origin = readable.read(_origin, row.origin, Origin())
        if origin.point is None or origin.point.archive_id != archive_id:
            continue
        base = load_backup(tx, row.restores)
        content = None if base is None else checked_content(base)
        found.append("" if content is None else place_of(content.datastore.type, content.stop))
    return found


def doomed(tx: Tx, trim: Trim, found: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which (piece, try) of a listing are needed by nobody. The listing came before: what was begun since is
    in none, and what is in it was begun before."""
    names = {row.name: row for row in _NAMES.all(tx, archive=trim.archive_id)}
    return {(name, tag) for name, tag in found if trim.whole or _is_litter(names.get(name), tag)}


def _is_litter(row: Any, tag: str) -> bool:
    return row is None or row.dropped or tag not in (row.tag, row.trying)


def trimmed(tx: Tx, trim: Trim, owner: str, trouble: str | None, again: float) -> None:
    """A second, complete listing had nothing of it any more; or why not."""
    row = rows.ONE.first(tx, archive=trim.archive_id)
    if row is None or row.owner != owner:
        return
    _TROUBLE.run(tx, archive=trim.archive_id, why=trouble)
    if trouble is not None:
        _LOOK.run(tx, archive=trim.archive_id, look=tx.now.lease + again, who=None, until=None)
        return
    _FORGET.run(tx, archive=trim.archive_id)
    if trim.whole:
        _REMOVED.run(tx, archive=trim.archive_id)
        return
    _LOOK.run(tx, archive=trim.archive_id, look=row.next_look, who=None, until=None)


def postpone_archive(tx: Tx, archive_id: str, seconds: float) -> None:
    """Look again in a while, whatever is wrong with it."""
    _LOOK.run(tx, archive=archive_id, look=tx.now.lease + seconds, who=None, until=None)
