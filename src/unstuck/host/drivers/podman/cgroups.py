"""Control groups: what the kernel itself knows of who lives in which container. Blocking."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

ROOT = Path("/sys/fs/cgroup")
_V1 = ("pids", "freezer", "memory")
_LIBPOD = re.compile(r"libpod-([0-9a-f]{64})\Z")
_MINE = re.compile(r"/unstuck/([0-9a-f]{12})/([0-9a-f-]{36})/(\d+)/libpod-([0-9a-f]{64})")


class Home(msgspec.Struct, frozen=True):
    """Which container a process is in: of which host, server and start."""

    key: str
    server_id: str
    edge: int
    container: str


def unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The tops of all trees that containers have groups in; the first one is asked who is in there."""
    if unified():
        return [ROOT]
    first = [ROOT / name for name in _V1 if (ROOT / name / "cgroup.procs").exists()]
    with contextlib.suppress(OSError):
        trees = [path for path in ROOT.iterdir() if not path.is_symlink() and path not in first]
        return [*first, *(path for path in trees if (path / "cgroup.procs").exists())]
    return first


def has_limit(controller: str) -> bool:
    if unified():
        return controller in (ROOT / "cgroup.controllers").read_text().split()
    return (ROOT / controller / "cgroup.procs").exists()


def living(group: str) -> list[int]:
    """All processes in a group and below it; raises OSError where that cannot be said."""
    found: list[int] = []
    top = hierarchies()[0] / group
    for folder, _, files in os.walk(top, onerror=_unless_gone):
        if "cgroup.procs" in files:
            with contextlib.suppress(FileNotFoundError):
                words = (Path(folder) / "cgroup.procs").read_text().split()
                found += [int(word) for word in words]
    return found


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def servers(group: str) -> frozenset[str]:
    """The names of the groups right below one."""
    with contextlib.suppress(FileNotFoundError):
        return frozenset(path.name for path in (hierarchies()[0] / group).iterdir() if path.is_dir())
    return frozenset()


def containers(group: str) -> frozenset[str]:
    """The ids of all containers that have, or had, a group below one."""
    top = hierarchies()[0] / group
    names = (path.name for path in top.glob("*/libpod-*"))
    return frozenset(found[1] for name in names if (found := _LIBPOD.match(name)) is not None)


def home(pid: int) -> Home | None:
    """Which container of ours a process is in, if in any; a zombie is in none."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = _MINE.search(text)
    if found is None or state in "ZX":
        return None
    return Home(found[1], found[2], int(found[3]), found[4])


def started(pid: int) -> int | None:
    """When a process began, in ticks since the boot: with its number, it names one process for ever."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return None


def stopped(pid: int) -> bool:
    """Somebody sent it SIGSTOP."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def first(pid: int) -> bool:
    """Whether it is process 1 of a container."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                words = line.split()
                return len(words) > 2 and words[-1] == "1"
    return False


def frozen(pid: int) -> bool:
    """Whether its container is frozen. Raises OSError."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    groups = {line.split(":", 2)[1]: line.split(":", 2)[2].lstrip("/") for line in lines}
    if unified():
        # What is frozen above counts too, which the group's own order does not say.
        return "frozen 1" in (ROOT / groups[""] / "cgroup.events").read_text().splitlines()
    return (ROOT / "freezer" / groups["freezer"] / "freezer.state").read_text().strip() != "THAWED"


def thaw(group: str) -> None:
    """Let go on what is frozen below a group: frozen processes take no signal, not even SIGKILL under v1."""
    name, word = ("cgroup.freeze", "0") if unified() else ("freezer.state", "THAWED")
    top = (ROOT if unified() else ROOT / "freezer") / group
    for folder, _, files in os.walk(top):
        if name in files:
            with contextlib.suppress(OSError):
                (Path(folder) / name).write_text(word)


def remove(group: str) -> None:
    """Remove a group and all below it, in every tree; those with a living process in them stay."""
    for top in hierarchies():
        for folder, _, _ in os.walk(top / group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
