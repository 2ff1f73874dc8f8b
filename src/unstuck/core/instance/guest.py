"""What a guest agent does next for its database: a total function of what is wanted and what is seen.

The agent looks, asks :func:`plan_guest`, does that one thing, and looks again. So it makes no difference
where it died: the next one sees the same and goes on. Data is made once: from nothing only where for certain
nothing is there, nothing was ever recorded, and no backup was named to make it from (law 3).
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

import msgspec

from unstuck.core.instance.view import GuestStep, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.server.data import Thing, Trouble

START_BUDGET = 5
"""Starts within ten minutes that did not last, before a server that will not stay up is left alone."""

LOGS = "see the database's log"


class Do(StrEnum):
    """One effect in the guest. Each is idempotent and can be repeated after a crash."""

    INIT = "init"
    RESTORE = "restore"
    START = "start"
    STOP = "stop"
    APPLY = "apply"
    RECONFIGURE = "reconfigure"


class Config(StrEnum):
    """What is configured, compared with what is wanted. ``pending``: all that a running server can take is
    taken, the rest comes with its next start; a difference alone never restarts anybody's database."""

    CURRENT = "current"
    OLD = "old"
    PENDING = "pending"
    UNKNOWN = "unknown"


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent sees of its database, in one look.

    ``data``: whole data of the wanted generation is there; absent: nothing at all is. ``foreign``: other data
    is there; whose. ``restart``: the number that the living server carries. ``full``: its volume has no room.
    ``starts``: how many lately did not last. ``stray``: somebody in the database may more than is wanted.
    """

    data: Thing
    server: ServerState
    foreign: str = ""
    restart: int = 0
    applied: bool = False
    stray: bool = False
    config: Config = Config.UNKNOWN
    full: bool = False
    starts: int = 0
    reason: str = ""


class Act(msgspec.Struct, frozen=True, tag=True):
    """Do this, now."""

    do: Do
    step: GuestStep


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Nothing to do but wait, ``seconds`` at most; ``trouble`` says what for, when it is one."""

    step: GuestStep
    seconds: float
    trouble: Trouble | None = None


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Seen is wanted."""

    step: GuestStep = GuestStep.READY


Decision = Act | Hold | Rest


def plan_guest(want: DatabaseWant | None, sight: Sight) -> Decision:
    """The next thing to do for this database. ``want`` None: nobody has told yet."""
    if want is None:
        return Hold(GuestStep.LOOKING, 5.0)
    match sight.data:
        case Thing.UNKNOWN:
            return _unseen(sight)
        case Thing.ABSENT:
            return _make(want, sight)
        case Thing.PRESENT:
            return _serve(want, sight)
        case _ as never:
            assert_never(never)


def _unseen(sight: Sight) -> Hold:
    if sight.foreign:
        trouble = Trouble(
            "data-foreign",
            f"the volume holds other data than this instance's: {sight.foreign}",
            "attach the instance's own volume; the data that is there was left alone",
            final=True,
        )
        return Hold(GuestStep.WAITING, 30.0, trouble)
    why = f": {sight.reason}" if sight.reason else ""
    trouble = Trouble("data-unknown", f"the volume cannot be read{why}", "none: it is looked at again")
    return Hold(GuestStep.WAITING, 2.0, trouble)


def _make(want: DatabaseWant, sight: Sight) -> Decision:
    """Certainly nothing is there."""
    match sight.server:
        case ServerState.UP | ServerState.STARTING | ServerState.UNCLEAR:
            reason = "a database server runs whose data is not in the volume any more"
            trouble = Trouble(
                "data-missing", reason, "bring the volume back, or restore a backup", final=True
            )
            return Hold(GuestStep.WAITING, 30.0, trouble)
        case ServerState.DOWN | ServerState.CRASHED:
            pass
        case _ as never:
            assert_never(never)
    if want.data_recorded:
        trouble = Trouble(
            "data-missing",
            "the database's data was made in this volume and is not there any more",
            "bring the volume back, or restore a backup into a new instance",
            final=True,
        )
        return Hold(GuestStep.WAITING, 30.0, trouble)
    if want.origin.backup_id is not None:
        return Act(Do.RESTORE, GuestStep.RESTORING)
    return Act(Do.INIT, GuestStep.MAKING)


def _serve(want: DatabaseWant, sight: Sight) -> Decision:
    """The data is there."""
    match sight.server:
        case ServerState.DOWN | ServerState.CRASHED:
            return _start(want, sight)
        case ServerState.STARTING:
            return Hold(GuestStep.STARTING, 0.1)
        case ServerState.UNCLEAR:
            if sight.restart < want.restart:
                return Act(Do.STOP, GuestStep.RESTARTING)  # somebody asked for just this
            why = f": {sight.reason}" if sight.reason else ""
            trouble = Trouble(
                "server-mute", f"the database server does not answer{why}", "restart the instance"
            )
            return Hold(GuestStep.WAITING, 2.0, trouble)
        case ServerState.UP:
            if sight.restart < want.restart:
                return Act(Do.STOP, GuestStep.RESTARTING)
            return _settle(sight)
        case _ as never:
            assert_never(never)


def _start(want: DatabaseWant, sight: Sight) -> Decision:
    if sight.starts >= START_BUDGET:
        why = f" (last: {sight.reason})" if sight.reason else ""
        if sight.full:
            trouble = Trouble(
                "volume-full",
                f"the volume is full, and the database server did not stay up in {sight.starts} starts{why}",
                "give the instance a larger volume; the server is started again as soon as there is room",
            )
            return Hold(GuestStep.WAITING, 5.0, trouble)
        trouble = Trouble(
            "server-keeps-failing",
            f"the database server was started {sight.starts} times in ten minutes and did not stay up{why}",
            f"{LOGS}; restart the instance to try again",
            final=True,
        )
        return Hold(GuestStep.WAITING, 30.0, trouble)
    return Act(Do.START, GuestStep.RESTARTING if want.restart else GuestStep.STARTING)


def _settle(sight: Sight) -> Decision:
    match sight.config:
        case Config.OLD:
            return Act(Do.RECONFIGURE, GuestStep.APPLYING)
        case Config.UNKNOWN:
            why = f": {sight.reason}" if sight.reason else ""
            trouble = Trouble("config-unknown", f"the configuration cannot be read{why}", LOGS)
            return Hold(GuestStep.WAITING, 2.0, trouble)
        case Config.CURRENT | Config.PENDING:
            settled = sight.applied and not sight.stray
            return Rest() if settled else Act(Do.APPLY, GuestStep.APPLYING)
        case _ as never:
            assert_never(never)
