"""One agent per host on a machine, whatever folder it was started in; and no guest out of two folders.

The folder's lock stands against two agents in one folder. A folder that was copied on the same machine has
a lock of its own, the same identity, and copies of the disks: two agents would fight over the incarnation,
and the second one would start each guest a second time. Both is seen here, before anything is done.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import time
from pathlib import Path

import msgspec

from unstuck.host.drivers.folder import server_ids
from unstuck.runtime.state import StateError

PATIENCE = 2.0
"""Seconds for a predecessor that was just killed to let go of the name."""
_GUEST = re.compile(rb"guest=([0-9a-f-]{36})\.\d+")


class MachineLock:
    """A name in the kernel (of one network namespace) that goes with its process: an abstract socket."""

    def __init__(self, host_id: str) -> None:
        self._name = f"\0unstuck-host-{host_id}"
        self._socket: socket.socket | None = None

    def acquire(self, patience: float = PATIENCE) -> None:
        """Raises :class:`StateError` when another process has this host's name."""
        end = time.monotonic() + patience
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                made.bind(self._name)
                made.listen(8)
            except OSError as error:
                made.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._socket = made
                return
            if time.monotonic() > end:
                raise StateError(self._refusal())
            time.sleep(0.02)

    def _refusal(self) -> str:
        who = _owner(self._name)
        other = f"process {who}" if who else "another process"
        return (
            f"{other} on this machine runs the agent of this very host out of another state folder: one of "
            "the two folders is a copy. Each host needs a folder of its own (`unstuck up --state FOLDER` "
            f"makes a new one); if this folder is the one to keep, end {other} first. Guests run on."
        )

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _owner(name: str) -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asker:
        asker.settimeout(1.0)
        try:
            asker.connect(name)
            data = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    pid, _, _ = struct.unpack("3i", data)
    return int(pid) or None


class Elsewhere(msgspec.Struct, frozen=True):
    """A living guest of one of our servers, in a folder that is not ours."""

    pid: int
    server_id: str
    folder: str


def guests_elsewhere(host_dir: Path) -> list[Elsewhere]:
    """Guests of the servers in this folder that run out of another one. One walk through /proc."""
    ours, found = server_ids(host_dir), []
    servers = os.path.realpath(host_dir / "servers")
    for entry in Path("/proc").iterdir() if ours else ():
        if not entry.name.isdigit():
            continue
        try:
            match = _GUEST.search(entry.joinpath("cmdline").read_bytes())
            if match is None or (server_id := match[1].decode()) not in ours:
                continue
            folder = str(entry.joinpath("cwd").readlink()).removesuffix(" (deleted)")
        except OSError:
            continue  # it has just ended, or is another user's: certainly not started by us
        if folder != f"{servers}/{server_id}":
            found.append(Elsewhere(int(entry.name), server_id, folder))
    return found


def refuse_a_copy(host_dir: Path) -> None:
    """Raises :class:`StateError` where guests of this folder's servers run out of another folder."""
    found = guests_elsewhere(host_dir)
    if not found:
        return
    one = found[0]
    raise StateError(
        f"{len(found)} guests of the servers in {host_dir} run out of another folder (server "
        f"{one.server_id}: process {one.pid} in {one.folder}): this folder is a copy, and its agent would "
        "start them a second time on copies of their disks. Use the folder they run in; if this one is to "
        "take over, power them down first (`unstuck down --guests --state FOLDER`)."
    )
