"""What a host agent needs of a hypervisor: look, and a handful of idempotent effects.

Every call has a deadline of its own inside the driver and raises :class:`DriverError` when it did not
get its way; nothing is assumed from an error, the agent just looks again. Names of all that a driver
makes are derived from the server's id and its grant (law 3), so that whoever comes next finds them.
"""

from __future__ import annotations

from typing import Protocol

from unstuck.core.server.data import View, Want


class DriverError(Exception):
    """An effect failed, or may have failed; the message is fit for the user's eyes."""


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

    async def make_nics(self, want: Want) -> None:
        """Make bridge, tap and filter rules of every port, where they are not there yet."""
        ...

    async def start(self, want: Want) -> None:
        """Start the guest process with ``want.edge``; returns once it runs or has failed."""
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

    async def console(self, server_id: str, lines: int | None) -> str:
        """The end of the guest's console log: ``lines`` lines, or all that is kept."""
        ...
