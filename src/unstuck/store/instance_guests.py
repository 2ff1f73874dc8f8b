"""What guest agents say through their hosts. Every write is fenced by the server's grant, the host's
incarnation and sequence, and the guest's own number (law 5). A guest is its tenant: what it says is only
ever an observation of its own instance."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.archive.data import Closed, LogView
from unstuck.core.instance.control import AGENT_ABSENT
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.wire import GuestRegister, GuestRegistered, GuestReport, Who
from unstuck.core.server.data import Thing
from unstuck.store import archives, instance_backups, readable
from unstuck.store.agents import Stale, check_incarnation, placement_state
from unstuck.store.engine import Tx
from unstuck.store.instance_rows import Loaded, instance_of, judge, load_instance
from unstuck.store.prepared import Prepared
from unstuck.store.rows import bump_world, lock_host
from unstuck.store.schema.database import instances

FORMER_MAX = 50
"""Starts of former agents that are remembered: none of them registers again."""
REORDER = 60.0
"""Seconds for which a late copy of a report may still be on its way."""

_former = msgspec.json.Decoder(tuple[str, ...])
_REGISTRATION = Prepared(
    sa.select(
        instances.c.guest,
        instances.c.guest_start,
        instances.c.guest_former,
        instances.c.hello_incarnation,
        instances.c.hello_sequence,
    ).where(instances.c.id == sa.bindparam("instance"))
)
_REGISTER = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"))
    .values(
        guest=sa.bindparam("number"), guest_start=sa.bindparam("start"),
        guest_former=sa.bindparam("former"), alive=False, failure=sa.bindparam("why", type_=sa.Text),
        hello_incarnation=sa.bindparam("by"), hello_sequence=sa.bindparam("at"),
    )
)  # fmt: skip
_newer = sa.or_(
    instances.c.seen_incarnation < sa.bindparam("by"),
    sa.and_(
        instances.c.seen_incarnation == sa.bindparam("by"), instances.c.seen_sequence < sa.bindparam("number")
    ),
)
_OBSERVE = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"), _newer)
    .values(
        seen=sa.bindparam("observation", type_=sa.Text), alive=sa.bindparam("lives"),
        seen_at=sa.bindparam("lease_now"), seen_wall=sa.bindparam("wall_now"),
        seen_incarnation=sa.bindparam("by"), seen_sequence=sa.bindparam("number"),
        guest=sa.bindparam("process"), failure=sa.bindparam("why", type_=sa.Text),
        data_recorded=sa.bindparam("recorded"), restores=sa.bindparam("reads", type_=sa.String),
    )
)  # fmt: skip
_COUNTED = Prepared(
    sa.update(instances)
    .where(instances.c.id == sa.bindparam("instance"), _newer)
    .values(seen_incarnation=sa.bindparam("by"), seen_sequence=sa.bindparam("number"))
)


class GuestSuperseded(Stale):
    """A newer process of the guest agent has registered: the caller must end (410)."""


class Noted(msgspec.Struct, frozen=True):
    """What came of it: the instance, whether anything is new, and whether its host has to hear of it."""

    instance_id: str
    changed: bool = False
    bumped: bool = False


def _granted(tx: Tx, host_id: str, who: Who) -> str | None:
    """The instance in a server that is granted to this host; None where it is wanted gone there.

    Raises :class:`Superseded` and :class:`Stale`.
    """
    check_incarnation(tx, host_id, who.incarnation, hold=True)
    if placement_state(tx, host_id, who.server_id, who.fence) == "tombstone":
        return None
    instance_id = instance_of(tx, who.server_id)
    if instance_id is None:
        raise Stale(f"the store knows no database instance in server {who.server_id}")
    return instance_id


def guest_register(tx: Tx, host_id: str, ask: GuestRegister) -> GuestRegistered:
    """A guest agent's process has said hello; it gets the next number, and the same start the same again.

    As for hosts, a late copy of an earlier process's hello ends nobody: a process that was superseded never
    registers again, nor does one whose hello was overtaken. Raises :class:`GuestSuperseded`.
    """
    instance_id = _granted(tx, host_id, ask.who)
    if instance_id is None:
        raise Stale(f"server {ask.who.server_id} is wanted gone")
    loaded = load_instance(tx, instance_id, lock=True)
    row = _REGISTRATION.first(tx, instance=instance_id)
    assert loaded is not None
    assert row is not None
    if row.guest_start == ask.start:
        return GuestRegistered(row.guest)
    former = readable.read(_former, row.guest_former, ())
    late = ask.sequence > 0 and (ask.who.incarnation, ask.sequence) <= (
        row.hello_incarnation, row.hello_sequence,
    )  # fmt: skip
    if ask.start in former or late:
        raise GuestSuperseded(f"process {row.guest} of the instance's agent came after this one")
    # Above every number that was ever given, also by a store that has forgotten it.
    number = max(row.guest, ask.who.guest) + 1
    if row.guest_start is not None:
        former = (*former, row.guest_start)[-FORMER_MAX:]
    _REGISTER.run(
        tx, instance=instance_id, number=number, start=ask.start, by=ask.who.incarnation, at=ask.sequence,
        former=msgspec.json.encode(former).decode(), why=_without_absence(loaded),
    )  # fmt: skip
    instance_backups.superseded(tx, instance_id, number)
    judge(tx, instance_id)
    return GuestRegistered(number)


def _without_absence(loaded: Loaded) -> str | None:
    """The recorded failure, unless it was that no agent had come."""
    failure, text = loaded.instance.failure, loaded.row.failure
    return None if failure is not None and failure.code == AGENT_ABSENT else text


def guest_report(tx: Tx, host_id: str, ask: GuestReport) -> Noted:
    """Take what a guest sees. Late, repeated and reordered reports change nothing, and news alone is written.

    Raises :class:`Superseded`, :class:`GuestSuperseded` and :class:`Stale`.
    """
    first = instance_of(tx, ask.who.server_id)
    before = None if first is None else load_instance(tx, first)
    told = before is not None and _records(before, ask)
    if told or (before is not None and _ends(tx, before, ask) is not None):
        lock_host(tx, host_id)  # its world changes: the host's row comes before all others
    instance_id = _granted(tx, host_id, ask.who)
    if instance_id is None:
        return Noted(first or "")
    loaded = load_instance(tx, instance_id, lock=True)
    assert loaded is not None
    instance = loaded.instance
    if 0 < ask.who.guest < instance.guest:
        raise GuestSuperseded(f"process {instance.guest} of the instance's agent came after this one")
    if not _news(tx, loaded, ask):
        return Noted(instance_id)
    recorded = told and _records(loaded, ask)
    ends = _ends(tx, loaded, ask)
    written = _OBSERVE.run(
        tx, instance=instance_id, by=ask.who.incarnation, number=ask.sequence,
        observation=_view_of(loaded, ask), lives=_lives(loaded, ask), lease_now=tx.now.lease,
        wall_now=tx.now.wall,
        process=max(instance.guest, ask.who.guest),
        why=_without_absence(loaded) if ask.alive else loaded.row.failure,
        recorded=instance.data_recorded or recorded, reads=None if recorded else instance.restores,
    )  # fmt: skip
    if written != 1:
        return Noted(instance_id)
    if recorded:
        if instance.restores is not None:
            instance_backups.look_at(tx, instance.restores)
        bump_world(tx, host_id, ask.who.server_id)
    log = None if ask.view is None or instance.deleted else ask.view.log
    if log is not None and (ends is None or ends[1] is Closed.GAP):
        _keep_log(tx, loaded, log, ask)
    if ends is not None and archives.close_archive(tx, *ends):
        bump_world(tx, host_id, ask.who.server_id)
    judge(tx, instance_id)
    return Noted(instance_id, changed=True, bumped=recorded or ends is not None)


def _keep_log(tx: Tx, loaded: Loaded, log: LogView, ask: GuestReport) -> None:
    """Of instances of our own, which verify a backup and go, no log is kept."""
    if loaded.row.project_id == SERVICE_PROJECT or not (ask.alive or ask.log):
        return
    if ask.alive:
        archives.open_archive(tx, loaded.instance.id, loaded.row.project_id, loaded.instance.generation)
    archives.note_log(tx, loaded.instance.id, log, ask.log)


def _ends(tx: Tx, loaded: Loaded, ask: GuestReport) -> tuple[str, Closed] | None:
    """The archive of its log that ends by what it says."""
    if not ask.alive or ask.view is None or ask.who.guest < max(loaded.instance.guest, 1):
        return None
    return archives.ends_by(tx, loaded.instance.id, ask.view.log)


def _view_of(loaded: Loaded, ask: GuestReport) -> str | None:
    """What is seen from now on: the last view stands while a host has not heard its guest yet (law 4)."""
    if ask.view is None or (ask.who.guest == 0 and loaded.instance.guest > 0):
        text: str | None = loaded.row.seen
        return text
    return msgspec.json.encode(ask.view).decode()


def _lives(loaded: Loaded, ask: GuestReport) -> bool:
    """Whether its agent is heard. A process that has come and not looked yet does not count: what is known is
    its predecessor's view, and a request would be over by that."""
    return ask.alive and (ask.view is not None or loaded.instance.alive or loaded.row.seen is None)


def _news(tx: Tx, loaded: Loaded, ask: GuestReport) -> bool:
    """Whether it says anything new. One that does not is only counted, and only while an older one that was
    overtaken may still arrive: a guest at rest costs no writes. One that restores renews its reader's lease.
    """
    instance = loaded.instance
    same = (
        _view_of(loaded, ask) == loaded.row.seen
        and _lives(loaded, ask) == instance.alive
        and ask.who.guest <= instance.guest
        and not _records(loaded, ask)
        and (not ask.alive or _without_absence(loaded) == loaded.row.failure)
    )
    if not same or archives.says_more(tx, instance.id, ask.log):
        return True
    if tx.now.lease < instance.seen_at + REORDER:
        _COUNTED.run(tx, instance=instance.id, by=ask.who.incarnation, number=ask.sequence)
        return False
    return ask.alive and instance.restores is not None and not instance.data_recorded


def _records(loaded: Loaded, ask: GuestReport) -> bool:
    """The data of the wanted generation is seen for the first time: from now on its absence is a fault."""
    view, instance = ask.view, loaded.instance
    return (
        view is not None
        and ask.alive
        and not instance.data_recorded
        and ask.who.guest >= max(instance.guest, 1)
        and view.data is Thing.PRESENT
        and view.generation == instance.generation
    )
