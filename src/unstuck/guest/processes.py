"""Processes of a datastore, as /proc shows them: whose they are, and whether they work."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from unstuck.runtime.processes import ProcessId, boot_id, lives, start_time


async def gone(process: ProcessId, seconds: float) -> bool:
    """Wait for its end."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while lives(process):
        if loop.time() >= end:
            return False
        await asyncio.sleep(0.02)
    return True


def offspring(pid: int) -> list[ProcessId]:
    """All processes below this one, by one look at /proc."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                below.setdefault(parent, []).append(int(entry.name))
    found: list[ProcessId] = []
    todo = [pid]
    while todo:
        for child in below.get(todo.pop(), ()):
            todo.append(child)
            if (start := start_time(child)) is not None:
                found.append(ProcessId(child, start, boot_id()))
    return found


def parent_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def ticks(pids: list[int]) -> int:
    """CPU time that these have used, in ticks; who is gone counts no more."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total
