"""Instances and their servers in every state, for the tables of plan and status."""

from __future__ import annotations

import msgspec

from unstuck.core.instance.data import Instance, LiveBackup, Pending, PendingKind
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.server.control import AWAY
from unstuck.core.server.data import (
    Failure,
    Fence,
    Flavor,
    Gone,
    Guest,
    HostSeen,
    Observation,
    Place,
    Power,
    Running,
    Server,
    Step,
    Thing,
    Trouble,
)
from unstuck.core.time import Now

NOW = Now(wall=5000.0, lease=2000.0)
HOST = HostSeen("h", "h", NOW.lease - 1, 1, enabled=True)
SILENT_HOST = msgspec.structs.replace(HOST, seen=NOW.lease - 40)
AWAY_HOST = msgspec.structs.replace(HOST, seen=NOW.lease - AWAY)
FINAL = Trouble("broken", "it is broken", "mend it", final=True)
PASSING = Trouble("slow", "it is slow", "wait", final=False)
FAILURE = Failure("why", "it failed", "help it", 4000.0)


def observed(
    guest: Guest, *, intent: int = 1, step: Step = Step.AT_REST, trouble: Trouble | None = None
) -> Observation:
    return Observation(intent, guest, Thing.PRESENT, step, trouble)


SERVER = Server(
    id="s", created=1000.0, power=Power.ON, intent=1, edge=1, deleted=False, removed=False,
    place=Place("h", Fence(1, 1), "n"), host=HOST, seen=observed(Running(1)), seen_at=1900.0,
    disk_recorded=True, launched_wall=4000.0, lease_incarnation=None, work_deadline=None, operation=None,
    failure=None,
)  # fmt: skip
UNPLACED = msgspec.structs.replace(
    SERVER, place=None, host=None, seen=None, disk_recorded=False, launched_wall=None
)
BUILDING = msgspec.structs.replace(SERVER, seen=None, disk_recorded=False, launched_wall=None)
OFF = msgspec.structs.replace(SERVER, power=Power.OFF, seen=observed(Gone()))
STOPPING = msgspec.structs.replace(SERVER, power=Power.OFF, intent=2)
REBOOTING = msgspec.structs.replace(SERVER, intent=2, edge=2)
AGAIN = msgspec.structs.replace(REBOOTING, seen=observed(Running(2), intent=2))
BROKEN = msgspec.structs.replace(SERVER, seen=observed(Gone(), trouble=FINAL))

UP = DatabaseView(
    generation="g", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY, applied=True
)
NEW = Instance(
    id="i", created=1000.0, generation="g", restart=0, data_recorded=False, deleted=False, removed=False,
    server=SERVER,
)  # fmt: skip
ACTIVE = msgspec.structs.replace(
    NEW, data_recorded=True, launched_wall=4500.0, seen=UP, alive=True, seen_at=1950.0, guest=1, room_mb=512
)


def pending(
    kind: PendingKind = PendingKind.RESTART,
    *,
    since: float = 1990.0,
    applied: float | None = None,
    guest: int = -1,
) -> Pending:
    return Pending(
        kind=kind, since=since, patience=since + 60, deadline=since + 360, request_id="r", user_id="u",
        applied=applied, guest=guest, flavor=Flavor(1, 512, 2),
    )  # fmt: skip


def backup(*, heard: float | None = NOW.lease - 1, cancelled: bool = False) -> LiveBackup:
    return LiveBackup("b", heard, cancelled)


def but(instance: Instance, **values: object) -> Instance:
    return msgspec.structs.replace(instance, **values)


def server(base: Server = SERVER, **values: object) -> Server:
    return msgspec.structs.replace(base, **values)


def view(**values: object) -> DatabaseView:
    return msgspec.structs.replace(UP, **values)
