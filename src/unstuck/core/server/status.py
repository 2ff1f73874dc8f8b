"""The public status of a server: a function of facts. Nothing here is ever stored (laws 1 and 10)."""

from __future__ import annotations

from enum import IntEnum
from typing import assert_never

import msgspec

from unstuck.core.server.control import AWAY, satisfied
from unstuck.core.server.data import (
    Gone,
    Guest,
    Mute,
    Off,
    OperationKind,
    Paused,
    Power,
    Running,
    Server,
    Shelf,
    Step,
    Thing,
    Trouble,
    Unclear,
)
from unstuck.core.time import Now

SILENT = 30.0
"""Seconds without a word from a host after which its state is shown as unknown."""


class PowerState(IntEnum):
    """The compute API's numbers."""

    NOSTATE = 0
    RUNNING = 1
    PAUSED = 3
    SHUTDOWN = 4
    CRASHED = 6


class Status(msgspec.Struct, frozen=True, gc=False):
    """What the compute API shows. ``fault`` is (reason, remedy, since wall time or None)."""

    status: str
    vm_state: str
    task_state: str | None
    power_state: PowerState
    host_status: str
    fault: tuple[str, str, float | None] | None = None


def status(server: Server, now: Now) -> Status:
    """The status of one server as of ``now``."""
    vm_state, fault = _vm_state(server)
    task = _task_state(server, vm_state)
    return Status(
        status=_public(vm_state, task),
        vm_state=vm_state,
        task_state=task,
        power_state=_power_state(server),
        host_status=host_status(server, now),
        fault=fault,
    )


def host_status(server: Server, now: Now) -> str:
    """UP, UNKNOWN (no word for half a minute), DOWN (for a minute), MAINTENANCE, or empty (no host)."""
    if server.place is None or server.host is None:
        return ""
    if server.host.lost or now.lease >= server.host.seen + AWAY:
        return "DOWN"
    if now.lease >= server.host.seen + SILENT:
        return "UNKNOWN"
    return "UP" if server.host.enabled else "MAINTENANCE"


def _vm_state(server: Server) -> tuple[str, tuple[str, str, float | None] | None]:
    if server.removed:
        return "deleted", None
    if server.failure is not None:
        return "error", (server.failure.reason, server.failure.remedy, server.failure.since)
    trouble = final_trouble(server)
    if trouble is not None:
        return "error", (trouble.reason, trouble.remedy, None)
    if server.marked_wall is not None:
        return "error", (*MARKED, server.marked_wall)
    seen = server.seen
    if seen is None or (server.launched_wall is None and server.power is Power.ON):
        return "building", None
    if _resized(server):
        return "resized", None
    return shelf_state(server) or _launched_state(seen.guest, server), None


def shelf_state(server: Server) -> str | None:
    """The state of a server that is shelved, or on its way back; None for others, and while it is shelved."""
    kind = None if server.operation is None else server.operation.kind
    if kind is OperationKind.UNSHELVE:
        return "shelved"
    if server.shelved is None or kind is OperationKind.SHELVE:
        return None
    return "shelved" if server.shelved is Shelf.KEPT else "shelved_offloaded"


def _resized(server: Server) -> bool:
    """Its guest has another flavor, or is just given the former one again, and its user may still choose."""
    kind = None if server.operation is None else server.operation.kind
    if kind is OperationKind.REVERT:
        return True
    return server.before is not None and kind is not OperationKind.RESIZE


MARKED = (
    "an operator marked the server as failed",
    "set its state to active, or do anything with it that succeeds",
)
"""Reason and remedy of a mark. It is a fact of its own, and says nothing of the guest."""


def final_trouble(server: Server) -> Trouble | None:
    """What the host said last, when waiting cannot help and nobody has asked for anything since.

    An operator's mark asks for a look, not for anything else: until then the last word stands.
    """
    seen = server.seen
    if seen is None or seen.trouble is None or not seen.trouble.final:
        return None
    return seen.trouble if seen.intent >= server.intent or server.operation is None else None


def _launched_state(guest: Guest, server: Server) -> str:
    match guest:
        case Running() | Mute():
            return "active"
        case Paused():
            return "paused"
        case Off():
            return "stopped"
        case Gone():
            # While a reboot replaces the guest process, or a crashed guest is restarted, the server is
            # still what it was; only a user's stop, or its own power-off, makes it a stopped one.
            stopping = server.operation is not None and server.operation.kind is OperationKind.START
            return "stopped" if stopping else _without_process(server)
        case Unclear():
            return _WANTED[server.power]
        case _ as never:
            assert_never(never)


_WANTED = {
    Power.ON: "active",
    Power.PAUSED: "paused",
    Power.SUSPENDED: "active",  # until its memory is seen on the disk
    Power.OFF: "stopped",
}


def _without_process(server: Server) -> str:
    return "suspended" if _suspended(server) else _WANTED[server.power]


def _suspended(server: Server) -> bool:
    """Its memory waits on the disk, and it has not been told to forget it."""
    seen = server.seen
    return seen is not None and seen.memory is Thing.PRESENT and server.power is not Power.OFF


def _task_state(server: Server, vm_state: str) -> str | None:
    if server.removed:
        return None
    if server.deleted:
        return "deleting"
    if vm_state == "error" or satisfied(server):
        return None
    if vm_state == "building":
        return _building_task(server)
    operation = server.operation
    if operation is None:
        return "powering-off" if server.power is Power.OFF else None
    match operation.kind:
        case OperationKind.STOP:
            return "powering-off"
        case OperationKind.START:
            return "powering-on"
        case OperationKind.REBOOT:
            return _reboot_task(server, operation.soft)
        case OperationKind.PAUSE:
            return "pausing"
        case OperationKind.UNPAUSE:
            return "unpausing"
        case OperationKind.SUSPEND:
            return "suspending"
        case OperationKind.RESUME:
            return "resuming"
        case OperationKind.REBUILD:
            return _rebuild_task(server)
        case OperationKind.RESIZE:
            return _resize_task(server)
        case OperationKind.REVERT:
            return "resize_reverting"
        case OperationKind.IMAGE:
            return _image_task(server)
        case OperationKind.SHELVE:
            return "shelving"
        case OperationKind.UNSHELVE:
            return "unshelving"
        case OperationKind.CREATE | OperationKind.DELETE | OperationKind.CONFIRM | OperationKind.OFFLOAD:
            return None
        case OperationKind.LOCK | OperationKind.UNLOCK | OperationKind.RESET | OperationKind.READDRESS:
            return None  # over as soon as they are written down
        case _ as never:
            assert_never(never)


def _building_task(server: Server) -> str | None:
    if server.place is None:
        return "scheduling"
    if server.seen is None:
        return None
    match server.seen.step:
        case Step.FETCHING | Step.DISK:
            return "block_device_mapping"
        case Step.NETWORK:
            return "networking"
        case _:
            return "spawning"


def _reboot_task(server: Server, soft: bool) -> str:
    begun = server.seen is not None and server.seen.intent >= server.intent
    if soft:
        return "reboot_started" if begun else "rebooting"
    return "reboot_started_hard" if begun else "rebooting_hard"


def _rebuild_task(server: Server) -> str:
    seen = server.seen
    if seen is None or seen.intent < server.intent:
        return "rebuilding"
    if server.disk_recorded and seen.step in (Step.NETWORK, Step.STARTING):
        return "rebuild_spawning"
    return "rebuild_block_device_mapping"


def _resize_task(server: Server) -> str:
    """In the compute API's words, though nothing migrates: the guest ends, the disk grows, it starts."""
    seen = server.seen
    if seen is None or seen.intent < server.intent:
        return "resize_prep"
    if seen.step is Step.STOPPING:
        return "resize_migrating"
    return "resize_migrated" if seen.step is Step.DISK else "resize_finish"


def _power_state(server: Server) -> PowerState:
    if server.seen is None or server.removed:
        return PowerState.NOSTATE
    match server.seen.guest:
        case Running() | Mute():
            return PowerState.RUNNING
        case Paused():
            return PowerState.PAUSED
        case Off():
            return PowerState.SHUTDOWN
        case Gone():
            down = server.launched_wall is not None and (server.power is Power.OFF or _suspended(server))
            return PowerState.SHUTDOWN if down else PowerState.NOSTATE
        case Unclear():
            return PowerState.NOSTATE
        case _ as never:
            assert_never(never)


REBUILDING = frozenset({"rebuilding", "rebuild_block_device_mapping", "rebuild_spawning"})


def _image_task(server: Server) -> str:
    seen = server.seen
    begun = seen is not None and seen.intent >= server.intent and seen.step is Step.CAPTURING
    return "image_uploading" if begun else "image_snapshot"


RESIZING = frozenset({"resize_prep", "resize_migrating", "resize_migrated", "resize_finish"})
_SIMPLE = {
    "building": "BUILD",
    "paused": "PAUSED",
    "suspended": "SUSPENDED",
    "stopped": "SHUTOFF",
    "error": "ERROR",
    "deleted": "DELETED",
    "shelved": "SHELVED",
    "shelved_offloaded": "SHELVED_OFFLOADED",
}


def _public(vm_state: str, task: str | None) -> str:
    if task in REBUILDING and vm_state in ("active", "stopped", "error"):
        return "REBUILD"
    if task in RESIZING and vm_state in ("active", "stopped"):
        return "RESIZE"
    if vm_state == "resized":
        return "REVERT_RESIZE" if task == "resize_reverting" else "VERIFY_RESIZE"
    if vm_state == "active":
        if task in ("rebooting", "reboot_started"):
            return "REBOOT"
        if task in ("rebooting_hard", "reboot_started_hard"):
            return "HARD_REBOOT"
        return "ACTIVE"
    return _SIMPLE[vm_state]
