"""What a host does next for one server: a total function of what is wanted and what is seen.

The host agent looks, asks :func:`plan_host`, does that one thing, and looks again. So it makes no
difference where it died: the next incarnation sees the same and goes on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

import msgspec

from unstuck.core.server.control import IMAGE_FAILED
from unstuck.core.server.data import (
    CopyFailed,
    Copying,
    Delivered,
    FetchFailed,
    Fetching,
    Gone,
    Missing,
    Mute,
    Off,
    Paused,
    Power,
    Ready,
    Running,
    Step,
    Thing,
    Trouble,
    Unclear,
    View,
    Want,
)
from unstuck.core.time import backoff

START_BUDGET = 5
"""Starts of one edge within ten minutes, the first one included, before a guest that will not stay up is
left alone."""

DOCTOR = "see what `unstuck doctor` says on the host"

DISK_BUDGET = 8
"""Failures in a row to make one disk, with nothing short on the host, before no further try can help."""

COPY_BUDGET = 5
"""Failures in a row to make an image of a disk, or to deliver it, before it is given up."""

FETCH_BACKOFF = 60.0
"""The longest wait between two tries to fetch an image."""


class Do(StrEnum):
    """One effect on the host. Each is idempotent and can be repeated after a crash."""

    FETCH = "fetch"
    MAKE_DISK = "make_disk"
    RECORD_DISK = "record_disk"
    DROP_DISKS = "drop_disks"
    GROW_DISK = "grow_disk"
    CAPTURE = "capture"
    DROP_COPIES = "drop_copies"
    MAKE_NICS = "make_nics"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    SAVE = "save"
    DROP_MEMORY = "drop_memory"
    POWER_DOWN = "power_down"
    QUIT = "quit"
    REMOVE_NICS = "remove_nics"
    REMOVE_FOLDER = "remove_folder"


class Act(msgspec.Struct, frozen=True, tag=True):
    """Do this, now. ``then`` is how many seconds to wait before the next look, if nothing wakes us.

    ``trouble``: it failed before; that is reported first, so that who waits knows what for.
    """

    do: Do
    step: Step
    then: float = 0.0
    trouble: Trouble | None = None


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Nothing to do but wait, ``seconds`` at most; ``trouble`` says what for, when it is one."""

    step: Step
    seconds: float
    trouble: Trouble | None = None


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Seen is wanted: report it, and look again only now and then."""

    step: Step = Step.AT_REST


Decision = Act | Hold | Rest

_GUEST_UNCLEAR = "the guest's state cannot be seen"


def plan_host(want: Want, view: View) -> Decision:
    """The next thing to do for one server on this host."""
    if want.gone:
        return _remove(view)
    match view.guest:
        case Unclear(reason):
            return _unclear(reason)
        case Running(edge) | Paused(edge) | Off(edge) | Mute(edge) if (
            edge < want.edge and want.power is not Power.OFF
        ):
            return _take_down(want, view)
        case Running() | Paused() | Mute() if want.power is Power.OFF:
            return _take_down(want, view)
        case Off() if want.power is Power.OFF:
            return Act(Do.QUIT, Step.STOPPING)
        case Mute(_, reason):
            trouble = Trouble("guest-mute", reason or "the guest process does not answer", "reboot it hard")
            return Hold(Step.WAITING, 5.0, trouble)
        case Running():
            return _record(want, view) or _running(want, view)
        case Paused(_, reason):
            return _record(want, view) or _standing(want, view, reason)
        case Off():
            return _record(want, view) or Rest()
        case Gone():
            return _raise(want, view)
        case _ as never:
            assert_never(never)


def _running(want: Want, view: View) -> Decision:
    if view.memory is Thing.PRESENT:
        return Act(Do.DROP_MEMORY, Step.STARTING)  # a CPU has run since: it is dead
    if (dropped := _drop_copies(want, view)) is not None:
        return dropped  # before a save: QEMU would be copying the disk still
    if want.power is Power.PAUSED:
        return Act(Do.PAUSE, Step.PAUSING)
    if want.spec.access is not None and view.nics is Thing.ABSENT:
        return Act(Do.MAKE_NICS, Step.NETWORK)  # who may reach it has changed: it is let in or kept out now
    if want.power is Power.SUSPENDED:
        return Act(Do.SAVE, Step.SAVING)
    return _capture(want, view) or Rest()


def _drop_copies(want: Want, view: View) -> Decision | None:
    """What is left of an image that nobody waits for goes."""
    left = not want.capture and view.copies is Thing.PRESENT
    return Act(Do.DROP_COPIES, Step.CAPTURING) if left else None


def _capture(want: Want, view: View) -> Decision | None:
    """An image of the disk, as it is in one moment. A guest that runs goes on meanwhile."""
    if not want.capture:
        return _drop_copies(want, view)
    match view.copy:
        case None:
            return Act(Do.CAPTURE, Step.CAPTURING)
        case Copying() | Delivered():
            return Hold(Step.CAPTURING, 1.0)
        case CopyFailed(reason, final, tries):
            if final or tries >= COPY_BUDGET:
                trouble = Trouble(IMAGE_FAILED, f"no image could be made: {reason}", "ask for one again")
                return Hold(Step.CAPTURING, 5.0, trouble)
            remedy = "none: it is tried again by itself"
            trouble = Trouble("effect-failed", f"the image cannot be made yet: {reason}", remedy)
            wait = backoff(tries, 1.0, FETCH_BACKOFF)
            return Act(Do.CAPTURE, Step.CAPTURING, then=wait, trouble=trouble)
        case _ as never:
            assert_never(never)


def _standing(want: Want, view: View, reason: str) -> Decision:
    """While a saved memory is there that could be loaded, no CPU runs: else the guest's disk would move on,
    and the old memory could come back over it. So it goes first; the guest in its process has it all."""
    if (dropped := _drop_copies(want, view)) is not None:
        return dropped
    if want.power is Power.SUSPENDED:
        saved = view.memory is Thing.PRESENT
        return Act(Do.QUIT, Step.SAVING) if saved else Act(Do.SAVE, Step.SAVING)
    if view.memory is Thing.PRESENT:
        return Act(Do.DROP_MEMORY, Step.STARTING)
    return _continue(reason) if want.power is Power.ON else _capture(want, view) or Rest()


def _suspended(want: Want, view: View) -> Decision:
    if view.memory is Thing.PRESENT:
        return _capture(want, view) or Rest()
    trouble = Trouble(
        "memory-lost",
        "the guest ended before its memory was saved",
        "reboot it hard: it boots from its disk, as after a crash",
        final=True,
    )
    return Hold(Step.WAITING, 30.0, trouble)


def after_failure(reason: str, remedy: str, lasting: int) -> Trouble:
    """What an effect that failed means for its server.

    ``lasting`` counts failures in a row to make its disk for which nothing on the host was short. A disk that
    was never made holds no data: giving up loses nothing, and a build that never ends helps nobody (law 8).
    """
    if lasting < DISK_BUDGET:
        return Trouble("effect-failed", reason, remedy)
    told = f"the root disk could not be made in {lasting} tries: {reason}"
    return Trouble("disk-impossible", told, "delete the server and use another image", final=True)


def _unclear(reason: str) -> Hold:
    remedy = "none: it is looked at again until it can be seen"
    return Hold(Step.WAITING, 1.0, Trouble("guest-unknown", f"{_GUEST_UNCLEAR}: {reason}", remedy))


NEEDS_RESET = frozenset({"internal-error", "guest-panicked"})
"""Reasons from which no CPU goes on."""
_WHY_PAUSED = {
    "io-error": (
        "the guest stands still since a write to its disk found no room",
        "make room on the host; it is continued by itself",
    ),
    "internal-error": ("the guest's CPU met an error that QEMU cannot go on from", "reboot it hard"),
    "guest-panicked": ("the guest's kernel panicked", "reboot it hard"),
}


def _continue(reason: str) -> Act | Hold:
    """Nobody wants it to stand still. Who continues it does so ever more seldom while that does not last."""
    said, remedy = _WHY_PAUSED.get(reason, (f"the guest stands still: {reason}", "it is continued by itself"))
    trouble = Trouble(f"guest-{reason}", said, remedy) if reason else None
    if reason in NEEDS_RESET:
        return Hold(Step.WAITING, 5.0, trouble)
    return Act(Do.RESUME, Step.STARTING, trouble=trouble)


def _record(want: Want, view: View) -> Decision | None:
    """A disk that is there and not recorded yet is recorded before anything else happens (law 3)."""
    if not want.disk_recorded and view.disk is Thing.PRESENT:
        return Act(Do.RECORD_DISK, Step.DISK)
    return None


def _take_down(want: Want, view: View) -> Decision:
    """Ask first where there is patience left and somebody to ask; then end the process."""
    asks_first = want.power is Power.OFF or want.soft
    if isinstance(view.guest, Running) and asks_first and want.patience > 0:
        return Act(Do.POWER_DOWN, Step.STOPPING, then=min(want.patience, 1.0))
    return Act(Do.QUIT, Step.STOPPING)


def _raise(want: Want, view: View) -> Decision:
    """The guest is certainly not there: bring it up, step by step, if it should be."""
    if want.power is Power.OFF:
        made = _rebuild_off(want, view) or _record(want, view) or _grow_off(want, view)
        return made or _capture(want, view) or Rest()
    if want.power is Power.SUSPENDED:
        return _record(want, view) or _suspended(want, view)
    return _images_and_disk(want, view) or _network(view) or _start(view)


def _rebuild_off(want: Want, view: View) -> Decision | None:
    """A rebuild of a server that is off makes its disk too, and then leaves it off."""
    if not want.replaced:
        return None
    return _images_and_disk(want, view) if not want.disk_recorded else _drop_replaced(want, view)


def _grow_off(want: Want, view: View) -> Decision | None:
    """A resize of what is off is over when its disk has grown, and what that stands on is needed for it."""
    return _images_and_disk(want, view) if view.short else None


def _drop_replaced(want: Want, view: View) -> Decision | None:
    """The new disk is there and recorded: only now what it replaces goes."""
    if not (want.replaced and want.disk_recorded and view.disk is Thing.PRESENT):
        return None
    return Act(Do.DROP_DISKS, Step.DISK) if view.replaced is not Thing.ABSENT else None


def _images_and_disk(want: Want, view: View) -> Decision | None:
    if view.disk is Thing.UNKNOWN:
        reason = (
            f"the state folder cannot be read: {view.reason}"
            if view.reason
            else "the state folder cannot be read"
        )
        return Hold(Step.WAITING, 2.0, Trouble("disk-unknown", reason, "mount the host's state folder"))
    if view.disk is Thing.ABSENT and want.disk_recorded:
        trouble = Trouble(
            "disk-missing",
            "the root disk was made on this host and is not there any more",
            "bring the disk back, rebuild the server, or delete it",
            final=True,
        )
        return Hold(Step.WAITING, 30.0, trouble)
    match view.images:
        case Missing():
            return Act(Do.FETCH, Step.FETCHING)
        case Fetching():
            return Hold(Step.FETCHING, 0.5)
        case FetchFailed(reason, final, tries, remedy):
            if final:
                trouble = Trouble(
                    "image-unusable",
                    reason,
                    "rebuild the server from another image, or delete it",
                    final=True,
                )
                return Hold(Step.WAITING, 30.0, trouble)
            trouble = Trouble("effect-failed", f"the image cannot be fetched: {reason}", remedy)
            return Act(Do.FETCH, Step.FETCHING, then=backoff(tries, 2.0, FETCH_BACKOFF), trouble=trouble)
        case Ready():
            if view.disk is Thing.ABSENT:
                return Act(Do.MAKE_DISK, Step.DISK)
            return _record(want, view) or _drop_replaced(want, view) or _grow(view)
        case _ as never:
            assert_never(never)


def _grow(view: View) -> Decision | None:
    """A disk only ever grows: the data on it stays, and a guest that asks for less is none the worse."""
    return Act(Do.GROW_DISK, Step.DISK) if view.short else None


def _network(view: View) -> Decision | None:
    if view.nics is Thing.UNKNOWN:
        why = f": {view.reason}" if view.reason else ""
        remedy = view.remedy or DOCTOR
        trouble = Trouble("network-unknown", f"the host's network cannot be read{why}", remedy)
        return Hold(Step.WAITING, 2.0, trouble)
    if view.nics is Thing.ABSENT:
        return Act(Do.MAKE_NICS, Step.NETWORK)
    return None


def _start(view: View) -> Decision:
    assert isinstance(view.guest, Gone)
    if view.guest.starts >= START_BUDGET:
        last = f" (last: {view.guest.last_error})" if view.guest.last_error else ""
        trouble = Trouble(
            "guest-keeps-failing",
            f"the guest was started {view.guest.starts} times in ten minutes and did not stay up{last}",
            "look at its console log; reboot it hard to try again",
            final=True,
        )
        return Hold(Step.WAITING, 30.0, trouble)
    return Act(Do.START, Step.STARTING)


def _remove(view: View) -> Decision:
    """Delete: the guest first, then its ports, then its folder with the disk; each seen to be absent."""
    match view.guest:
        case Unclear(reason):
            return _unclear(reason)
        case Running() | Paused() | Off() | Mute():
            return Act(Do.QUIT, Step.REMOVING)
        case Gone():
            pass
        case _ as never:
            assert_never(never)
    for thing, do in ((view.nics, Do.REMOVE_NICS), (view.folder, Do.REMOVE_FOLDER)):
        if thing is Thing.UNKNOWN:
            reason = f"cannot see what is left: {view.reason}"
            trouble = Trouble("removal-unknown", reason, view.remedy or DOCTOR)
            return Hold(Step.REMOVING, 2.0, trouble)
        if thing is Thing.PRESENT:
            return Act(do, Step.REMOVING)
    return Rest(Step.REMOVED)
