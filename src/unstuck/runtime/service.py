"""Telling the service manager that started us how we are: ready, alive, ending (systemd's socket for it).

Where there is none, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from unstuck.core.port import Port


class Service:
    """The manager's socket. The variables are taken out of the environment: guests inherit what is left."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        micros = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(micros) / 1e6 if micros.isdigit() and meant else 0.0
        """Seconds of silence after which the manager replaces us; 0: it does not watch."""

    @classmethod
    def of_this_process(cls) -> Service:
        return cls(os.environ)

    def say(self, *lines: str) -> None:
        """Send some assignments (``READY=1``). It only informs: that nobody listens is no error."""
        if not self._address:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), name)

    async def watch(self, port: Port) -> None:
        """Say that the loop goes round, three times in the manager's patience; a frozen one is replaced."""
        while self.watchdog:
            self.say("WATCHDOG=1")
            await port.pause(self.watchdog / 3, "watchdog")
