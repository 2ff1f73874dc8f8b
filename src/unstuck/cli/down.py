"""``unstuck down``: end control plane and agent, by verified identity; guests only when asked to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from unstuck.cli.cloud import state_of
from unstuck.cli.errors import CliError
from unstuck.cli.up import end_supervisor
from unstuck.cli.words import counted
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import end_for_sure
from unstuck.runtime.state import State


def down(
    *,
    guests: Annotated[bool, Parameter(negative="")] = False,
    patience: float = 30.0,
    state: Path | None = None,
) -> None:
    """Stop the control plane and the agent; guests go on running.

    Parameters
    ----------
    guests
        Power down the guests too. `unstuck up` starts them again: what is wanted of them does not change.
    patience
        Seconds that a guest has to power itself down.
    state
        The state folder.
    """
    if patience < 0:
        raise CliError(f"--patience {patience:g}: it is a number of seconds, 0 or more.", 2)
    found = state_of(state)
    ended = end_supervisor(found)
    for lock, what in ((found.host_lock, "host agent"), (found.control_lock, "control plane")):
        process = holder(lock)
        if process is not None:
            ended = True
            if not end_for_sure(process, 10.0):
                raise CliError(f"The {what} (process {process.pid}) does not end; it may hang in the kernel.")
    print("Stopped the control plane and the agent." if ended else "Unstuck was not running.")
    if guests:
        print(_end_guests(found.root, patience))
    _sweep(found)
    if guests:
        return
    if ended:
        print("Guests go on running; `unstuck up` adopts them.")


def _sweep(state: State) -> None:
    """Take away the links that no guest uses any more; `unstuck up` makes what is needed anew."""
    import asyncio

    from unstuck.cli import boxes
    from unstuck.cli.guests import running
    from unstuck.cli.reality import bridges
    from unstuck.host.driver import DriverError

    if os.geteuid() != 0 or not state.prepared():
        return
    alive = frozenset(guest.server_id for guest in (*running(state), *boxes.running(state)))
    try:
        asyncio.run(bridges(state).sweep(alive))
    except (DriverError, OSError, msgspec.DecodeError) as error:
        print(f"Bridges that nothing uses may be left: {error}.")


def _end_guests(root: Path, patience: float) -> str:
    import asyncio

    from unstuck.cli import boxes
    from unstuck.cli.guests import end_all, running
    from unstuck.host.driver import DriverError

    state = State(root)
    for marker in state.host.glob("servers/*/guest.json"):  # guests of the instant driver
        marker.unlink(missing_ok=True)
    try:
        count = asyncio.run(end_all(state, patience)) + asyncio.run(boxes.end_all(state, patience))
    except DriverError as error:
        raise CliError(f"A container does not end: {error}.") from None
    left = [*running(state), *boxes.running(state)]
    if left:
        raise CliError(f"Guests that do not end: {', '.join(guest.server_id for guest in left)}.")
    return f"Ended {counted(count, 'guest')}."
