"""How a guest's log went on, as its host saw it: what is told of it, until the store has taken it.

A word that arrives now may have waited for long, in a socket or in a guest that stood still. So a position
counts as known to hold only up to when its guest cannot have looked earlier: the host's answer that it had
heard before it looked.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from unstuck.core.archive.data import LogSeen, LogView
from unstuck.core.archive.ledger import SLACK

MOST: Final = 256
"""Positions that are remembered while no report is taken; of more, every second one stays."""
ANSWERS: Final = 16
"""Of one process of a guest's agent that are remembered: a look is not older than a few of its words."""
_LONG: Final = 1e9
"""Seconds of an age that nobody knows."""


class _Position(msgspec.Struct):
    """Times by this process's clock."""

    timeline: int
    position: str
    first: float
    last: float


class LogBook:
    """Of one guest. Lost with its host's agent, which the store allows for."""

    def __init__(self) -> None:
        self._found: list[_Position] = []
        self._answered: dict[int, float] = {}
        self._number = 0

    def greet(self, now: float, *, anew: bool) -> None:
        """A hello is answered. ``anew``: another process counts from the beginning."""
        if anew:
            self._number, self._answered = 0, {}
        self._answered.setdefault(0, now)

    def is_late(self, number: int) -> bool:
        """Whether a newer word of the same process was heard before this one."""
        return 0 < number <= self._number

    def see(self, log: LogView | None, *, stands: bool, number: int, after: int, now: float) -> None:
        """A word has come. ``stands``: the server is seen not to run, so that its log stands still."""
        looked = self._answered.get(after, -math.inf) if number else now
        if number:
            self._number = number
            self._answered[number] = now
            while len(self._answered) > ANSWERS:
                del self._answered[min(self._answered)]
        last = self._found[-1] if self._found else None
        if log is None:
            if stands and last is not None and looked <= last.last + SLACK:
                last.last = max(last.last, looked)
        elif last is not None and (last.timeline, last.position) == (log.timeline, log.position):
            last.last = max(last.last, looked)
        else:
            self._found.append(_Position(log.timeline, log.position, now, looked))
            if len(self._found) > MOST:
                self._thin()

    def _thin(self) -> None:
        """Each that stays answers for the one behind it as well."""
        kept = self._found[::2]
        for position, gone in zip(kept, self._found[1::2], strict=False):
            position.last = max(position.last, gone.last)
        newest = self._found[-1]
        self._found = kept if kept[-1] is newest else [*kept, newest]

    def is_stale(self, now: float) -> bool:
        """Whether it is unknown for too long how far the log is."""
        return bool(self._found) and now - self._found[-1].last >= SLACK

    def word(self, now: float) -> tuple[LogSeen, ...]:
        """For a report."""
        return tuple(
            LogSeen(one.timeline, one.position, now - one.first, min(now - one.last, _LONG))
            for one in self._found
        )

    def taken(self, word: tuple[LogSeen, ...]) -> None:
        """The store has it; only where it went on from is told again."""
        if not word:
            return
        newest = (word[-1].timeline, word[-1].position)
        for index in reversed(range(len(self._found))):
            if (self._found[index].timeline, self._found[index].position) == newest:
                del self._found[:index]
                return
