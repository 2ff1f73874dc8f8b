"""The podman command: found, set up so that nothing of the machine's own settings counts, and asked.

Every call has a deadline. A container's state as podman tells it is never the whole truth (of 76 killed
starts, 13 left processes that it does not list), hence ``cgroups.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec

from unstuck.host.driver import DriverError
from unstuck.host.drivers.podman import cgroups
from unstuck.host.drivers.podman.places import Places
from unstuck.host.drivers.process import run
from unstuck.runtime.files import write_whole

ASK_DEADLINE = 20.0
START_DEADLINE = 60.0
_LOCK_AT = 3
"""Where the client gets the lock: what it hands to conmon lies at the same number over there, so that conmon,
which lives as long as the container, does not inherit it."""
_NOT_THERE = "no such container"
_SETTINGS = """[containers]
default_sysctls = []
default_ulimits = []
http_proxy = false
[engine]
events_logger = "none"
cgroup_manager = "cgroupfs"
"""
_STORAGE = """[storage]
driver = "vfs"
graphroot = "{0}/root"
runroot = "{0}/runroot"
"""


class Inspected(msgspec.Struct, frozen=True):
    """What podman says of a container."""

    id: str
    status: str
    pid: int
    exit_code: int
    edge: int


class Abilities(msgspec.Struct, frozen=True):
    """What containers can have on this machine; ``runtime`` is the name of the one that makes them."""

    runtime: str
    users: bool
    memory: bool
    pids: bool
    cpu: bool

    @property
    def missing(self) -> str:
        """What they have to do without, in words; empty when nothing."""
        lacks = [
            word
            for word, there in (
                ("users of their own (user namespaces)", self.users),
                ("a limit of memory", self.memory),
                ("a limit of processes", self.pids),
                ("a limit of CPU time", self.cpu),
            )
            if not there
        ]
        return ", ".join(lacks)


def unfit(root: bool | None = None) -> str:
    """Why this machine runs no containers, with the remedy; empty where it does."""
    if not (os.geteuid() == 0 if root is None else root):
        return "containers need root: start Unstuck as root on the host"
    tools = ("podman", "conmon", "mount", "umount", "losetup", "mke2fs", "e2fsck", "resize2fs", "ip", "nft")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if _runtime() is None:
        missing.append("runc")
    if missing:
        return (
            f"{', '.join(missing)} missing: apt-get install podman runc netavark iproute2 nftables e2fsprogs"
        )
    with contextlib.suppress(OSError):
        if cgroups.hierarchies():
            return "" if Path("/dev/loop-control").exists() else "no loop devices: modprobe loop"
    return "control groups are not mounted: mount /sys/fs/cgroup"


def _runtime() -> str | None:
    """crun, podman's own choice, refuses control groups of both versions side by side."""
    names = ("crun", "runc") if cgroups.unified() else ("runc",)
    return next((name for name in names if shutil.which(name)), None)


def abilities() -> Abilities:
    """By trying, not by version. Blocks for a moment."""
    try:
        probe = ["unshare", "--user", "--map-root-user", "--mount", "true"]
        done = subprocess.run(probe, capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
        users = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        users = False
    limits = {name: cgroups.has_limit(name) for name in ("memory", "pids", "cpu")}
    return Abilities(_runtime() or "runc", users, limits["memory"], limits["pids"], limits["cpu"])


class Engine:
    """One host's podman. Nothing is kept here; another engine of the same host sees the same."""

    def __init__(self, places: Places, abilities: Abilities) -> None:
        self.places = places
        self.abilities = abilities
        self._environment = {
            "PATH": f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
            "HOME": "/root",
            "LC_ALL": "C",
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
            "CONTAINERS_CONF": str(places.settings),
            "CONTAINERS_STORAGE_CONF": str(places.storage),
        }

    def _podman(self, *words: str) -> list[str]:
        base = self.places.podman
        return [
            *("podman", "--root", f"{base}/root", "--runroot", f"{base}/runroot", "--tmpdir", f"{base}/temp"),
            *("--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"),
            *("--runtime", self.abilities.runtime, "--runtime-flag", f"root={base}/runtime", *words),
        ]

    def prepare(self) -> None:
        """Folders and settings. Blocks."""
        self.places.ensure()
        for path, text in (
            (self.places.settings, _SETTINGS),
            (self.places.storage, _STORAGE.format(self.places.podman)),
        ):
            if not path.exists() or path.read_text() != text:
                write_whole(path, text.encode(), durable=False)

    async def _ask(self, *words: str, deadline: float = ASK_DEADLINE) -> bytes:
        await asyncio.to_thread(self.prepare)
        return await run(self._podman(*words), deadline, env=self._environment)

    async def inspect(self, name: str) -> Inspected | None:
        """None: podman knows no container of this name, for certain; raises :class:`DriverError`."""
        fields = ("{{.Id}}", "{{.State.Status}}", "{{.State.Pid}}", "{{.State.ExitCode}}")
        form = "|".join([*fields, '{{index .Config.Labels "unstuck.edge"}}'])
        try:
            out = await self._ask("container", "inspect", "--format", form, name)
        except DriverError as error:
            if _NOT_THERE in str(error).lower():
                return None
            raise
        words = out.decode(errors="replace").strip().split("|")
        try:
            return Inspected(words[0], words[1], int(words[2]), int(words[3]), int(words[4] or -1))
        except (IndexError, ValueError):
            raise DriverError(f"podman's answer cannot be read: {words}") from None

    async def pause(self, name: str) -> None:
        await self._ask("pause", name)

    async def unpause(self, name: str) -> None:
        await self._ask("unpause", name)

    async def remove(self, name: str) -> None:
        """All that podman has under this name, also where only its storage knows it."""
        await self._ask("rm", "-f", "-t", "0", "--ignore", name, deadline=40.0)

    async def runtime_delete(self, container: str) -> None:
        """What the runtime still has of a container; there may be nothing."""
        runtime, root = self.abilities.runtime, f"{self.places.podman}/runtime"
        with contextlib.suppress(DriverError):
            await run([runtime, "--root", root, "delete", "-f", container], ASK_DEADLINE)

    def run_container(self, words: list[str], output: Path, lock: int) -> int:
        """``podman run``, to the end of the client, which holds ``lock``; returns its exit status. Blocks.

        Its output is a file, never a pipe: what the client starts inherits it and outlives it.
        """
        self.prepare()
        argv = self._podman("run", *words)
        command = shutil.which(argv[0], path=self._environment["PATH"])
        if command is None:
            raise DriverError("podman is not installed")
        writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), writing, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, lock, _LOCK_AT),
        ]
        pid = os.posix_spawn(command, argv, self._environment, file_actions=files, setsid=True)
        return _wait(pid, START_DEADLINE)


def _wait(pid: int, seconds: float) -> int:
    handle = os.pidfd_open(pid)
    try:
        if select.select([handle], [], [], seconds)[0]:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(handle)
    raise DriverError(f"podman run did not end within {seconds:g} s")
