"""How often a server was started lately and did not last, and whether its volume has room for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from unstuck.core.instance.want import DatabaseWant
from unstuck.guest.volume import Volume

LATELY: Final = 600.0
ROOM: Final = 32 << 20
"""Bytes without which a server cannot be expected to come up: recovery writes log and a checkpoint."""
ANEW: Final = 60.0
"""Seconds between two times that room which came back lets starts be counted from nothing."""


class Starts:
    """Of one server. In memory: the next agent counts from nothing."""

    def __init__(self, volume: Volume, clock: Callable[[], float]) -> None:
        self._volume = volume
        self._clock = clock
        self._at: list[float] = []
        self._of = -1
        self._full = False
        self._anew_at = float("-inf")

    def lately(self, want: DatabaseWant | None) -> int:
        """Starts that did not last. Another restart number is somebody's wish: it counts from nothing."""
        if want is None or want.restart != self._of:
            return 0
        return len([at for at in self._at if at > self._clock() - LATELY])

    def look(self) -> bool:
        """Whether the volume has no room. A server that could not live without room was not at fault, so that
        starts are counted from nothing when there is some again."""
        try:
            free, _ = self._volume.space()
        except OSError:
            return self._full
        if free < ROOM:
            self._full = True
        elif self._full and self._clock() >= self._anew_at + ANEW:
            self._full, self._anew_at, self._at = False, self._clock(), []
        return self._full

    def note(self, want: DatabaseWant) -> None:
        """It is about to be started."""
        if want.restart != self._of:
            self._at, self._of = [], want.restart
        self._at = [*self._at[-20:], self._clock()]
