"""What a host agent needs of a hypervisor: look, and a handful of idempotent effects.

Every call has a deadline of its own inside the driver and raises :class:`DriverError` when it did not
get its way; nothing is assumed from an error, the agent just looks again. Names of all that a driver
makes are derived from the server's id and its grant (law 3), so that whoever comes next finds them.
"""

from __future__ import annotations

import errno
from typing import Protocol

from unstuck.core.agents import Holding
from unstuck.core.server.data import View, Want


class DriverError(Exception):
    """An effect failed, or may have failed; message and remedy are fit for the user's eyes.

    ``lasting``: nothing is short on the host, so the next try may well end the same way. Such tries have
    a budget (``core.server.host.DISK_BUDGET``).
    """

    def __init__(
        self, message: str, *, remedy: str = "none: it is tried again by itself", lasting: bool = False
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.lasting = lasting


_SHORTAGES = {
    errno.ENOSPC: ("the host's disk is full", "make room on the host, or delete servers or images"),
    errno.EDQUOT: ("the host's disk quota is used up", "raise the quota of the state folder's file system"),
    errno.EMFILE: ("the agent has no free file descriptor", "raise the agent's limit of open files"),
    errno.ENFILE: ("the host has no free file descriptor", "raise fs.file-max on the host"),
    errno.ENOMEM: ("the host has no free memory", "stop or delete servers on the host, or add memory"),
    errno.EAGAIN: ("the host starts no further process", "raise the limit of processes of the agent's user"),
    errno.EROFS: (
        "the state folder's file system is read-only",
        "look at the host's disk, and mount it anew",
    ),
    errno.EIO: ("the host's disk gives errors", "look at the host's disk"),
}


def words(error: OSError) -> str:
    """What the operating system refused, in words for people; never a path of the host."""
    return _SHORTAGES[error.errno][0] if error.errno in _SHORTAGES else (error.strerror or str(error))


def shortage(error: OSError) -> DriverError:
    """An effect that the operating system refused: what is short, and what helps."""
    _, remedy = _SHORTAGES.get(error.errno or 0, ("", "see the host agent's log"))
    return DriverError(words(error), remedy=f"{remedy}; it is tried again by itself")


class Driver(Protocol):
    """The effects of one host, per server."""

    async def look(self, want: Want) -> View:
        """All that is there of this server. Never raises: what cannot be seen is unknown (law 4)."""
        ...

    async def fetch(self, want: Want) -> None:
        """Begin to bring the images into the cache unless that is under way; waits a second at most."""
        ...

    async def make_disk(self, want: Want) -> None:
        """Make the root disk: temporary name, fsync, rename. Never over one that is there."""
        ...

    async def drop_disks(self, want: Want) -> None:
        """Remove the disks that the wanted one has replaced; refused unless that is there."""
        ...

    async def grow_disk(self, want: Want) -> None:
        """Make the root disk as large as the flavor asks for, with everything on it; it never shrinks.
        No guest runs on it. Harmless when repeated."""
        ...

    async def capture(self, want: Want) -> None:
        """Begin to make the wanted image of the root disk, and to deliver it, unless that is under way."""
        ...

    async def drop_copies(self, want: Want) -> None:
        """End what is under way, and remove every image of the disk that is here."""
        ...

    async def make_nics(self, want: Want) -> None:
        """Make bridge, tap and filter rules of every port, where they are not there yet."""
        ...

    async def start(self, want: Want) -> None:
        """Start the guest process with ``want.edge``; returns once it runs or has failed."""
        ...

    async def pause(self, want: Want) -> None:
        """Let the guest's CPUs stand still. Harmless when repeated."""
        ...

    async def resume(self, want: Want) -> None:
        """Let the guest's CPUs go on. Harmless when repeated."""
        ...

    async def save(self, want: Want) -> None:
        """The guest's memory to the disk, whole or not at all; its CPUs stand still then. When it fails,
        they go on."""
        ...

    async def drop_memory(self, want: Want) -> None:
        """Remove the saved memory of this edge."""
        ...

    async def power_down(self, want: Want) -> None:
        """Ask the guest to power itself off. Harmless when repeated."""
        ...

    async def quit(self, want: Want) -> None:
        """End the guest process, by force if it does not answer, and see it gone."""
        ...

    async def remove_nics(self, want: Want) -> None:
        """Remove the taps of this server."""
        ...

    async def remove_folder(self, want: Want) -> None:
        """Remove the server's folder with its disk. Only ever called for a server that is wanted gone."""
        ...

    async def found(self) -> frozenset[str]:
        """The ids of all servers of which anything is on this host; raises :class:`DriverError`."""
        ...

    async def holdings(self) -> tuple[Holding, ...]:
        """Everything that is here, from this host's own records; raises :class:`DriverError` unless that is
        certainly all."""
        ...

    async def console(self, server_id: str, lines: int | None) -> str:
        """The end of the guest's console log: ``lines`` lines, or all that is kept."""
        ...
