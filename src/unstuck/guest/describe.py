"""The agent's own process, and what its guest has, as the kernel says it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from unstuck import __version__
from unstuck.core.instance.requests import AgentProcess

_CGROUP = Path("/sys/fs/cgroup")


def describe(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> AgentProcess:
    """Sizes in KiB. What is limited by its container counts, not what the machine has. Raises OSError."""
    status = _numbers(proc / "self" / "status")
    memory = _numbers(proc / "meminfo").get("MemTotal", 0)
    limit = _first(cgroup / "memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit) // 1024)
    return AgentProcess(
        version=__version__, threads=status.get("Threads", 0), fd_size=status.get("FDSize", 0),
        vm_size=status.get("VmSize", 0), vm_peak=status.get("VmPeak", 0), vm_rss=status.get("VmRSS", 0),
        vm_hwm=status.get("VmHWM", 0), mem_total=memory, cpus=_cpus(cgroup),
    )  # fmt: skip


def _numbers(path: Path) -> dict[str, int]:
    """Lines like ``VmRSS:   1234 kB``."""
    found = {}
    for line in path.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _first(path: Path) -> str:
    """The first word of a file that may not be there."""
    try:
        words = path.read_text().split()
    except OSError:
        return ""
    return words[0] if words else ""


def _cpus(cgroup: Path) -> int:
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        limit = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return count
    return max(1, min(count, limit))
