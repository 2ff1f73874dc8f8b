"""The store's generation: noticing that it was set back, and what recovery mode holds back meanwhile.

Locks: the clock's row first, then every host, as everywhere before servers.
"""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Unavailable
from unstuck.core.generation import Awaited, Mark, Recovery, Relation, relation
from unstuck.store.clock import clock_row
from unstuck.store.clock import tick as clock_tick
from unstuck.store.prepared import Prepared
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import hosts, placements, servers
from unstuck.store.sessions import awaited, begin_session
from unstuck.store.tx import Tx


class Behind(Exception):
    """The asker knows more of the store than the store itself, or has to say first what it holds (412)."""


_RISE = Prepared(
    sa.update(clock)
    .where(clock.c.generation == sa.bindparam("seen"), clock.c.generation_id == sa.bindparam("seen_id"))
    .values(
        generation=sa.bindparam("number"),
        generation_id=sa.bindparam("new_id"),
        tick=clock.c.tick + 1,
        origin=sa.bindparam("new_origin"),
        recovery=sa.bindparam("lease_now"),
        recovery_wall=sa.bindparam("wall_now"),
        recovery_why=sa.bindparam("why"),
    )
)
_ORIGIN = Prepared(sa.update(clock).values(origin=sa.bindparam("new_origin")))
_LOCK_HOSTS = Prepared(sa.select(hosts.c.id).order_by(hosts.c.id).with_for_update())
_BUMP_HOSTS = Prepared(sa.update(hosts).values(version=hosts.c.version + 1))
_REGRANT = Prepared(sa.update(placements).values(generation=sa.bindparam("number")))
_TELL_ALL = Prepared(
    sa.update(servers)
    .where(servers.c.id.in_(sa.select(placements.c.server_id)))
    .values(
        world_version=sa.select(sa.func.max(hosts.c.version))
        .where(
            hosts.c.id.in_(
                sa.select(placements.c.host_id)
                .where(placements.c.server_id == servers.c.id)
                .correlate(servers)
            )
        )
        .scalar_subquery()
    )
)
_UNTOLD = Prepared(
    sa.select(hosts.c.hostname)
    .where(hosts.c.enabled, sa.not_(hosts.c.forced_down), hosts.c.told < sa.bindparam("generation"))
    .order_by(hosts.c.hostname)
)
_TOLD = Prepared(sa.select(hosts.c.told).where(hosts.c.id == sa.bindparam("host")))
_END = Prepared(sa.update(clock).values(recovery=None, recovery_wall=None, recovery_why=None))


def mark(tx: Tx) -> Mark:
    """How far the store has come."""
    row = clock_row(tx)
    return Mark(row.generation, row.generation_id, row.tick)


def recovery(tx: Tx) -> Recovery | None:
    """Since when and why the store is in recovery mode; None when it is not."""
    row = clock_row(tx)
    return None if row.recovery is None else Recovery(row.recovery, row.recovery_wall, row.recovery_why)


def notice(tx: Tx, heard: Mark | None, who: str) -> bool:
    """Raise the generation if ``who`` has heard the store go further, or in another history.

    True if it was raised, here or by somebody else at the same moment.
    """
    if heard is None:
        return False
    row = clock_row(tx)
    # What a host's own row says is compared where that row is read.
    heard = msgspec.structs.replace(heard, version=0, incarnation=0)
    found = relation(Mark(row.generation, row.generation_id, row.tick), heard)
    match found:
        case Relation.FITS:
            return False
        case Relation.BEHIND:
            why = f"{who} heard the store at {_words(heard)}, and it is at {_words(mark(tx))}"
        case Relation.DIFFERENT:
            why = f"{who} heard another history of generation {heard.generation}"
    rise(tx, why, above=heard.generation)
    return True


def notice_origin(tx: Tx) -> bool:
    """PostgreSQL says which cluster and timeline it is: another one is another history."""
    origin = tx.origin
    if origin is None:
        return False
    row = clock_row(tx)
    if row.origin is None:
        _ORIGIN.run(tx, new_origin=origin)
        return False
    if row.origin == origin:
        return False
    rise(tx, f"PostgreSQL was {row.origin} (system/timeline) and is {origin}")
    return True


class Beat(msgspec.Struct, frozen=True):
    """What a tick found. ``sweep``: what is overdue may be swept now."""

    sweep: bool
    mark: Mark
    recovering: bool


def tick(tx: Tx, *, lease_seconds: float, heard: Mark | None = None) -> Beat:
    """Advance the clock (:func:`unstuck.store.clock.tick`), and see whether the store is still the one that
    this process knows: ``heard`` is how far it has seen it go."""
    notice(tx, heard, "the control plane")
    notice_origin(tx)
    sweep = clock_tick(tx, lease_seconds=lease_seconds)
    begin_session(tx)
    row = clock_row(tx)
    return Beat(sweep, Mark(row.generation, row.generation_id, row.tick), row.recovery is not None)


def _words(heard: Mark) -> str:
    return f"generation {heard.generation}, tick {heard.tick}"


def rise(tx: Tx, why: str, *, above: int = 0) -> None:
    """A new generation, and recovery mode. All assignments are granted again in it, to the same hosts under
    the same names, so that this by itself fences nobody."""
    row = clock_row(tx)
    number = max(row.generation, above) + 1
    text = f"{row.generation_id}.{tx.session}.{row.tick}.{number}"
    done = _RISE.run(
        tx, seen=row.generation, seen_id=row.generation_id, number=number,
        new_id=hashlib.sha256(text.encode()).hexdigest()[:32], new_origin=tx.origin or row.origin,
        lease_now=tx.now.lease, wall_now=tx.now.wall, why=why,
    )  # fmt: skip
    if done != 1:
        return  # somebody else was faster, and has done all of this
    if tx.postgresql:
        _LOCK_HOSTS.all(tx)
    _BUMP_HOSTS.run(tx)
    _REGRANT.run(tx, number=number)
    _TELL_ALL.run(tx)


def untold(tx: Tx) -> list[str]:
    """Names of the hosts that have not said what they hold in this generation. A host that will not come
    back is taken out of this by disabling it, or by declaring it lost."""
    return _UNTOLD.scalars(tx, generation=clock_row(tx).generation)


def may_allot(tx: Tx) -> None:
    """No address is handed out before every host has said which ones are in use there: the store may have
    lost that it gave them. Raises :class:`Unavailable`."""
    if recovery(tx) is None:
        return
    waiting = untold(tx)
    if waiting:
        raise Unavailable(
            f"The store was set back, and {_listed(waiting)} has not said yet which addresses are in use "
            "there. Try again; a host that will not come back has to be disabled."
        )


def may_change(tx: Tx, host_id: str) -> None:
    """Requests are numbered above all that the host has seen, so it has to say first what that is. A delete
    needs no number. Raises :class:`Unavailable`."""
    if recovery(tx) is not None and _TOLD.scalar(tx, host=host_id) < clock_row(tx).generation:
        raise Unavailable(
            "The store was set back, and the server's host has not said yet what it holds. Try again."
        )


def may_place(tx: Tx, created: float) -> bool:
    """Whether a server made at ``created`` (lease time) may be given to a host, or be gone for good.

    Not while a silent host may hold it, or a guest with its address: first of all every host says what it
    holds, once per session; where the store is known to have been set back, without a limit in time.
    """
    return held_back(tx, created) is None


def held_back(tx: Tx, created: float) -> Awaited | None:
    """What :func:`may_place` waits for."""
    found = recovery(tx)
    if found is not None and created <= found.lease:
        silent = untold(tx)
        if silent:
            return Awaited(tuple(silent), None)
    return awaited(tx)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def end_recovery(tx: Tx) -> None:
    """Store and hosts agree again."""
    _END.run(tx)


def end_if_agreed(tx: Tx) -> bool:
    """End recovery mode by itself where every host has spoken and nothing is in dispute."""
    if recovery(tx) is None or untold(tx):
        return False
    if (
        tx.execute(sa.select(servers.c.id).where(servers.c.disputed.is_not(None)).limit(1)).first()
        is not None
    ):
        return False
    end_recovery(tx)
    return True
