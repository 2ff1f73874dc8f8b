"""Guests in containers on this machine, as the kernel knows them, and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path

import msgspec

from unstuck.cli.guests import GuestProcess
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.podman import cgroups, mounts
from unstuck.host.drivers.podman.places import Places
from unstuck.runtime.state import HostFile, State

_POLL = 0.1


def places(state: State) -> Places | None:
    """Where this host's containers are; None where this folder is no host's."""
    try:
        host = msgspec.json.decode((state.host / "host.json").read_bytes(), type=HostFile)
    except (OSError, msgspec.DecodeError):
        return None
    return Places(host.host_id)


def running(state: State) -> list[GuestProcess]:
    """Process 1 of each container of this host that lives."""
    mine = places(state)
    if mine is None:
        return []
    found = []
    with contextlib.suppress(OSError):
        for server_id in cgroups.servers(mine.group):
            for pid in cgroups.living(mine.guest_group(server_id)):
                home = cgroups.home(pid)
                if home is not None and cgroups.first(pid):
                    found.append(GuestProcess(server_id, pid, home.edge, cgroups.stopped(pid)))
    return sorted(found, key=lambda guest: (guest.server_id, guest.pid))


def left(state: State) -> frozenset[str]:
    """Servers of this host that something is mounted for."""
    mine = places(state)
    if mine is None:
        return frozenset()
    depth = len(mine.guests.parts)
    with contextlib.suppress(OSError):
        points = [point.parts for point in mounts.mounted_below(mine.guests)]
        return frozenset(parts[depth] for parts in points if len(parts) > depth)
    return frozenset()


def _forget(mine: Places) -> None:
    """What podman has of a host with no container is nothing that anybody needs; the next start makes it."""
    if cgroups.living(mine.group):
        return
    shutil.rmtree(mine.path, ignore_errors=True)
    cgroups.remove(mine.group)


def _tell(guest: GuestProcess) -> None:
    """SIGTERM by a descriptor that cannot come to mean another process."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(guest.pid)
        try:
            home = cgroups.home(guest.pid)
            if home is not None and home.server_id == guest.server_id:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)


async def end_all(state: State, patience: float) -> int:
    """Tell process 1 of each to end in order, wait, and wipe what is left; returns how many there were."""
    from unstuck.host.drivers.podman.containers import Containers
    from unstuck.host.drivers.podman.engine import Engine, abilities
    from unstuck.host.images import FolderSource, ImageCache, no_barrier

    mine, guests = places(state), running(state)
    if mine is None or not mine.path.is_dir():
        return 0
    servers = {guest.server_id for guest in guests} | left(state)
    for guest in guests:
        _tell(guest)
    for _ in range(int(patience / _POLL)):
        if not running(state):
            break
        await asyncio.sleep(_POLL)
    cache = ImageCache(state.host, FolderSource(Path("/nonexistent")))
    containers = Containers(Engine(mine, abilities()), cache, no_barrier, lambda _: None)
    for server_id in sorted(servers):
        await containers.wipe(ServerFolder(state.host, server_id))
    await asyncio.to_thread(_forget, mine)
    return len(guests)
