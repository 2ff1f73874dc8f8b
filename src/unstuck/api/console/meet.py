"""Where the two ends of a console meet: the user's connection, and the stream that a host's agent brings.

Hosts are not reachable from here, so the agent comes: it is asked as for anything else, and goes to the
control planes that it knows until one says that this console is waiting there. So no control plane has to
know an address of its own, and none passes bytes to another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from unstuck.api.errors import ApiError
from unstuck.api.sockets import Socket

CONSOLES_MAX: Final = 64
"""Of one control plane at a time."""
PER_PROJECT: Final = 16


class Meeting:
    """One console that waits for its host, or is open."""

    def __init__(self, host_id: str) -> None:
        self.host_id = host_id
        self.host: Socket | None = None
        self.over = asyncio.Event()


class Consoles:
    """All consoles of this process. ``close`` ends them, so that the process can end."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self._meetings: dict[str, Meeting] = {}
        self._projects: Counter[str] = Counter()

    def check_room(self, project_id: str | None = None) -> None:
        """503 where there is no room for a further one (of this project)."""
        if self.ending.is_set():
            raise _busy("The control plane is about to end.")
        if self._projects.total() >= CONSOLES_MAX:
            raise _busy(f"{CONSOLES_MAX} consoles are open here, which is all that there may be.")
        if project_id is not None and self._projects[project_id] >= PER_PROJECT:
            raise _busy(f"{PER_PROJECT} consoles of this project are open, which is all that there may be.")

    @contextlib.contextmanager
    def meeting(self, ask_id: str, host_id: str, project_id: str) -> Iterator[Meeting]:
        """Expect this host's stream under this name, as long as the block runs."""
        self.check_room(project_id)
        made = self._meetings[ask_id] = Meeting(host_id)
        self._projects[project_id] += 1
        try:
            yield made
        finally:
            made.over.set()
            del self._meetings[ask_id]
            self._projects[project_id] -= 1
            self._projects += Counter()  # drops what is zero

    def waiting(self, ask_id: str, host_id: str) -> Meeting | None:
        """The console of this name that waits for just this host."""
        found = self._meetings.get(ask_id)
        if found is None or found.host_id != host_id or found.host is not None:
            return None
        return found

    def close(self) -> None:
        self.ending.set()


def _busy(why: str) -> ApiError:
    return ApiError(503, f"{why} Close one, and ask for a new URL.", headers={"retry-after": "30"})


def consoles(extra: dict[str, Any]) -> Consoles:
    """Those of this process."""
    found: Consoles = extra.setdefault("consoles", Consoles())
    return found
