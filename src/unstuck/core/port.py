"""The port: the only way in which loops touch the world.

Controllers and agents are plain coroutines over a port, so that the simulator can drive the very same
loops and kill them before, in the middle of and after any effect. In production an effect awaits real
work; ``UNSTUCK_STOP_AT=<effect>`` stops the process there (``<effect>+`` just behind it), which is how
the real-fault tests and the demo get their kill points: same names, same places.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Port(Protocol):
    """Effects, time and tasks of one process."""

    async def effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, one effect on the world with a name; raises what the work raises."""
        ...

    async def pause(self, seconds: float, wake: str) -> None:
        """Wait for ``seconds``, or until :meth:`wake` is called with that key (also since the last pause)."""
        ...

    def wake(self, key: str) -> None:
        """End the pauses on ``key``. Only ever makes things faster; losing it loses nothing."""
        ...

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the caller, until it ends or the process does."""
        ...

    def clock(self) -> float:
        """Seconds of a monotone clock of this process: good for durations only (law 9)."""
        ...

    def nonce(self) -> str:
        """A random name that nobody has used before."""
        ...
