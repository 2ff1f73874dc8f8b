"""What hosts ask for the agents in their guests: attempts, and what a restore may read.

Everything is fenced by the host's incarnation, the server's grant, the guest agent's incarnation and the
attempt's nonce (law 5): a late agent neither resurrects an attempt that was given up nor harms a newer one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.blobs import keys
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.keyring import Keyring
from unstuck.core.backup import change
from unstuck.core.backup.content import Frame, Parent
from unstuck.core.backup.control import stop_wanted
from unstuck.core.backup.data import Ending, Phase
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt, Who
from unstuck.store.agents import Stale, check_incarnation
from unstuck.store.archives import note_archive
from unstuck.store.backup_chain import CannotBeRestored, chain_of, parent_named
from unstuck.store.backup_rows import BackupRow, load_backup, write_backup
from unstuck.store.cloud_keys import project_key
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import placements
from unstuck.store.schema.database import backup_attempts, instances

_HELD = (
    sa.select(
        instances.c.id,
        instances.c.guest,
        instances.c.deleted,
        instances.c.data_recorded,
        instances.c.restores,
    )
    .join(placements, placements.c.server_id == instances.c.server_id)
    .where(
        instances.c.server_id == sa.bindparam("server"),
        placements.c.host_id == sa.bindparam("host"),
        placements.c.generation == sa.bindparam("in_generation"),
        placements.c.epoch == sa.bindparam("at_epoch"),
        placements.c.state == "live",
    )
)
_INSTANCE = Prepared(_HELD)
# Shared: no other process of the guest's agent registers before this transaction ends. A statement of its
# own, and on the one table, so that what it waited for is seen by the next one.
_HOLD_INSTANCE = Prepared(
    sa.select(instances.c.id)
    .where(instances.c.server_id == sa.bindparam("server"))
    .with_for_update(read=True)
)


class Grant(msgspec.Struct, frozen=True):
    """An attempt, for the host that runs it. ``location``: the store of objects by its name."""

    frame: Frame
    prefix: str
    certificate: str
    location: str


def held_instance(tx: Tx, host_id: str, who: Who, *, hold: bool) -> Any:
    """The instance in the server that the host certainly holds. Raises Superseded and Stale."""
    check_incarnation(tx, host_id, who.incarnation, hold=hold)
    if hold and tx.postgresql:
        _HOLD_INSTANCE.first(tx, server=who.server_id)
    row = _INSTANCE.first(
        tx, server=who.server_id, host=host_id, in_generation=who.fence.generation, at_epoch=who.fence.epoch
    )
    if row is None or row.deleted:
        raise Stale(f"host {host_id} does not hold an instance in server {who.server_id} at {who.fence}")
    return row


def _guests_backup(tx: Tx, host_id: str, who: Who, backup_id: str, *, hold: bool) -> tuple[Any, BackupRow]:
    """The backup of the instance whose present agent it is that speaks."""
    instance = held_instance(tx, host_id, who, hold=hold)
    if who.guest < 1 or who.guest != instance.guest:
        raise Stale(f"incarnation {who.guest} of the instance's agent is not its present one")
    found = load_backup(tx, backup_id, lock=hold)
    if found is None or found.instance_id != instance.id:
        raise Stale(f"backup {backup_id} is not one of this instance")
    return instance, found


def take_attempt(tx: Tx, host_id: str, ask: TakeAttempt, keyring: Keyring) -> Grant:
    """The attempt is the asker's from here on. The same agent asking again gets the same grant."""
    _, held = _guests_backup(tx, host_id, ask.who, ask.backup_id, hold=True)
    backup = held.backup
    if backup.attempt.claimed is None and (stop := stop_wanted(backup)) is not None:
        raise Stale(stop)
    try:
        backup = change.claim(backup, ask.nonce, ask.who.guest, tx.now.lease)
    except change.Late as late:
        raise Stale(str(late)) from late
    write_backup(tx, held, backup, keep_lease=True)
    archive = note_archive(tx, held.id, held.instance_id)
    mine = sa.and_(backup_attempts.c.backup_id == held.id, backup_attempts.c.attempt == backup.attempt.number)
    taken = sa.func.coalesce(backup_attempts.c.taken_wall, tx.now.wall)
    tx.execute(sa.update(backup_attempts).where(mine).values(taken_wall=taken, host_id=host_id))
    at = tx.execute(sa.select(backup_attempts.c.taken_wall).where(mine)).scalar_one()
    frame = Frame(
        cloud_id=keyring.public.cloud_id, project_id=held.project_id, instance_id=held.instance_id,
        instance_name=held.instance_name, backup_id=held.id, backup_name=held.name,
        attempt=backup.attempt.number, nonce=ask.nonce, taken_at=at, recipients=held.recipients,
        key=held.key, parent=_parent(tx, held), generation=held.generation,
        archive=archive or "",
    )  # fmt: skip
    certificate = msgspec.json.encode(keyring.certify(host_id, ask.signing_key)).decode()
    prefix = prefix_of(held.id, backup.attempt.number, ask.nonce)
    return Grant(frame, prefix, certificate, held.location)


def _parent(tx: Tx, held: BackupRow) -> Parent | None:
    """As its manifest has to name it. It was complete when this one was asked for, and stays so."""
    parent = None if held.parent_id is None else load_backup(tx, held.parent_id)
    found = None if parent is None else parent_named(parent)
    if held.parent_id is not None and found is None:
        raise Stale(f"backup {held.parent_id}, its parent, is lost")
    return found


def renew_attempt(tx: Tx, host_id: str, ask: RenewAttempt, phase: Phase) -> str | None:
    """The agent lives, and how far it is; why it is to stop, if it is."""
    _, held = _guests_backup(tx, host_id, ask.who, ask.backup_id, hold=True)
    try:
        backup = change.renew(held.backup, ask.nonce, ask.who.guest, phase, ask.size, ask.idle, tx.now.lease,
                              ask.put_off)  # fmt: skip
    except change.Late as late:
        raise Stale(str(late)) from late
    write_backup(tx, held, backup, keep_lease=True)
    return stop_wanted(backup)


def end_attempt(tx: Tx, host_id: str, ask: EndAttempt) -> None:
    """How it ended. The first word counts, and saying it again is no news."""
    _, held = _guests_backup(tx, host_id, ask.who, ask.backup_id, hold=True)
    try:
        backup = change.report(held.backup, ask.nonce, ask.who.guest, ask.said, tx.now.lease)
    except change.Late as late:
        raise Stale(str(late)) from late
    if backup != held.backup:
        write_backup(tx, held, backup, keep_lease=True)


def may_write(tx: Tx, host_id: str, who: Who, backup_id: str, attempt: int, nonce: str) -> str:
    """Where an object of this attempt goes, if it lives and the host runs it: a store's name."""
    instance = held_instance(tx, host_id, who, hold=False)
    found = load_backup(tx, backup_id)
    if found is None or found.instance_id != instance.id:
        raise Stale(f"backup {backup_id} is not one of this instance")
    now = found.backup.attempt
    lives = now.claimed is not None and now.report is None and found.backup.ended is None
    if not lives or (now.number, now.nonce) != (attempt, nonce):
        raise Stale("this attempt is over")
    assert now.claimed is not None
    if now.claimed.incarnation != instance.guest:
        raise Stale("another process of the instance's agent has it")
    return found.location


def may_read(tx: Tx, host_id: str, who: Who) -> list[BackupRow]:
    """The backup that the instance on this host is being made from, its parent, and so on; and nothing else.

    Raises Stale.
    """
    instance = held_instance(tx, host_id, who, hold=False)
    if instance.restores is None or instance.data_recorded:
        raise Stale("this instance restores nothing (any more)")
    found = load_backup(tx, instance.restores)
    if found is None or found.removed:
        raise Stale(f"backup {instance.restores} is not there any more")
    backup = found.backup
    if backup.ended is None or backup.ended.ending is not Ending.COMPLETED or found.prefix is None:
        raise Stale(f"backup {found.id} is not complete")
    if backup.deleted and not backup.readers:
        raise Stale(f"backup {found.id} was deleted")
    try:
        return chain_of(tx, found)
    except CannotBeRestored as error:
        raise Stale(error.message) from error


class Readable(msgspec.Struct, frozen=True):
    """A backup to restore from, with its private key. ``parent``: as its manifest has to name it;
    ``parents``: how many are above it."""

    row: BackupRow
    identity: str
    parent: Parent | None
    parents: int


def grant_restore(tx: Tx, host_id: str, who: Who, keyring: Keyring, above: int = 0) -> Readable:
    """The backup to restore from, or the one so many generations above it. Raises Stale, and BadKey for keys
    that do not fit."""
    chain = may_read(tx, host_id, who)
    if not 0 <= above < len(chain):
        raise Stale(f"backup {chain[0].id} has no parent of generation {above}")
    found = chain[above]
    project = project_key(tx, found.project_id)
    if project is None:
        raise keys.BadKey("the project of the backup has no key in the store")
    identity = keyring.open_backup_key(project, found.key)
    parents = len(chain) - above - 1
    parent = parent_named(chain[above + 1]) if parents else None
    return Readable(found, identity, parent, parents)
