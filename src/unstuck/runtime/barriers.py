"""Barriers: ``UNSTUCK_STOP_AT`` stops the process at an effect, so that it can be killed just there.

``name`` stops before the effect, ``name+`` when it is done and its answer not used yet; ``name#3`` and
``name+#3`` at the third time. Only the first match stops: a process that goes on (SIGCONT) stays up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from unstuck.runtime.files import write_whole

VARIABLE = "UNSTUCK_STOP_AT"


def stop_myself() -> None:
    """Stop the process, and this thread at once: a signal to the whole process may be taken by another
    thread, and this one would run on for a moment, past its barrier (a commit did)."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Barriers:
    """The barrier of this process, if it was given one."""

    def __init__(self, spec: str, run_dir: Path, stop: Callable[[], None] = stop_myself) -> None:
        name, _, count = spec.partition("#")
        self._point = name
        self._left = int(count) if count.isdigit() and int(count) > 0 else 1
        self._run_dir = run_dir
        self._stop = stop

    @classmethod
    def from_environment(cls, run_dir: Path) -> Barriers:
        return cls(os.environ.get(VARIABLE, ""), run_dir)

    def check(self, point: str) -> None:
        """Stop here if this is the point (and the time) that was asked for."""
        if not self._point or point != self._point:
            return
        self._left -= 1
        if self._left:
            return
        self._point = ""
        # Whoever waits for this line sends the next signal: it must be readable before we stop.
        print(f"stopped at {point}", file=sys.stderr, flush=True)
        marker = self._run_dir / f"stopped-{os.getpid()}"
        write_whole(marker, f"{point}\n".encode(), durable=False)
        self._stop()

    async def reach(self, name: str) -> None:
        """The same as a coroutine, for drivers that name points inside their effects."""
        self.check(name)
