"""Guests of this machine as the kernel knows them, and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from pathlib import Path

import msgspec

from unstuck.host.drivers import process
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.qmp import Monitors, QmpError
from unstuck.runtime.state import State

_GUEST = re.compile(rb"guest=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.\d+")


class GuestProcess(msgspec.Struct, frozen=True):
    server_id: str
    pid: int
    edge: int
    stopped: bool


def running(state: State) -> list[GuestProcess]:
    """All QEMU processes whose folder lies in this state folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            match = _GUEST.search(entry.joinpath("cmdline").read_bytes())
            if match is not None:
                server_id = match[1].decode()
                folder = ServerFolder(state.host, server_id)
                seen = process.identify(int(entry.name), server_id, folder.path)
                if seen is not None:
                    found.append(GuestProcess(server_id, seen.pid, seen.edge, seen.stopped))
    return sorted(found, key=lambda guest: (guest.server_id, guest.pid))


async def end_all(state: State, patience: float) -> int:
    """Ask every guest to power itself off, wait, then quit the rest; returns how many there were."""
    monitors = Monitors(2.0, lambda _server, _event: None)
    guests = running(state)
    try:
        await asyncio.gather(*(_end(monitors, state, guest, patience) for guest in guests))
    finally:
        await monitors.close()
    return len(guests)


async def _end(monitors: Monitors, state: State, guest: GuestProcess, patience: float) -> None:
    folder = ServerFolder(state.host, guest.server_id)
    deadline = time.monotonic() + patience

    async def ask(command: str) -> str:
        with contextlib.suppress(QmpError):
            answers = await monitors.ask(guest.server_id, folder.sockets, command)
            return str(answers[0].get("status", "")) if isinstance(answers[0], dict) else ""
        return "mute"

    await ask("system_powerdown")
    while time.monotonic() < deadline:
        # "shutdown": it has powered itself off and waits to be looked at.
        if await ask("query-status") in ("shutdown", "mute"):
            break
        await asyncio.sleep(0.25)
    await ask("quit")
    for _ in range(20):
        if process.identify(guest.pid, guest.server_id, folder.path) is None:
            return
        await asyncio.sleep(0.1)
    seen = process.identify(guest.pid, guest.server_id, folder.path)
    if seen is not None:
        process.kill(seen, guest.server_id, folder.path)
