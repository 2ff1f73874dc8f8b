"""Starting the datastore and its tools: under their own user, and so that nothing is left behind.

A tool is on a leash (``leash.py``): killing the agent ends it. The server is not: killing the agent harms no
database. In a container PID 1 starts them for the agent (``init.py``); elsewhere the agent does it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from unstuck.runtime.processes import ProcessId, handle

ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
PIPE: Final = 1 << 20
_F_SETPIPE_SZ: Final = 1031
WORDS: Final = 4096
"""Bytes of a tool's last words that are read."""


class ToolFailed(Exception):
    """A tool did not do it; its last words."""


class Child(Protocol):
    """A program that was started. ``pid`` is its leash's, where it has one."""

    pid: int

    async def wait(self) -> int:
        """Its exit code; 128 and more for a signal."""
        ...

    def cut(self) -> None:
        """End it now, with all that it started. It may have ended."""
        ...


class Tools(Protocol):
    """Who starts programs under the datastore's user ``user``. Descriptors are copied; None is /dev/null."""

    user: str

    async def start(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None,
        stderr: int | None = None, kept: bool = False,
    ) -> Child:  # fmt: skip
        """Start it, on a leash unless it is to be ``kept``. Raises :class:`ToolFailed`."""
        ...

    async def signal(self, process: ProcessId, number: signal.Signals) -> None:
        """Send it, unless the process is gone."""
        ...


def leash(descriptor: int, command: Sequence[str]) -> list[str]:
    """By its text: the datastore's user may not be able to read where this package lies."""
    text = Path(__file__).with_name("leash.py").read_text()
    return [sys.executable, "-I", "-S", "-c", text, str(descriptor), *command]


async def run(tools: Tools, command: Sequence[str], seconds: float) -> str:
    """Run a tool to its end within a deadline; what it printed. Raises :class:`ToolFailed`."""
    with tempfile.TemporaryFile() as out:
        child = await tools.start(command, stdout=out.fileno(), stderr=out.fileno())
        try:
            async with asyncio.timeout(seconds):
                code = await child.wait()
        except TimeoutError:
            raise ToolFailed(f"{Path(command[0]).name} did not end within {seconds:.0f} s") from None
        finally:
            child.cut()
        said = last_words(out.fileno())
    if code != 0:
        raise ToolFailed(f"{Path(command[0]).name} ended with {code}: {said or 'no word of why'}")
    return said


def enlarge(pipe: int) -> None:
    """Let more lie in a pipe: whoever writes into it and whoever reads it wait less for each other."""
    with contextlib.suppress(OSError):  # a user's pipes have a limit, and it works without
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, PIPE)


def last_words(descriptor: int) -> str:
    """The end of a file."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, WORDS, max(0, size - WORDS)).decode(errors="replace").strip()


class DirectTools:
    """Starts them itself. As root under ``user``, else under its own user."""

    def __init__(self, user: str | None = None) -> None:
        self._other = user if user is not None and os.geteuid() == 0 else None
        self.user = self._other or pwd.getpwuid(os.geteuid()).pw_name

    async def start(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None,
        stderr: int | None = None, kept: bool = False,
    ) -> Child:  # fmt: skip
        reading, writing = (-1, -1) if kept else os.pipe2(os.O_CLOEXEC)
        nothing = subprocess.DEVNULL
        entry = None if self._other is None else pwd.getpwnam(self._other)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 (a fork, as quick as the thread it would need)
                command if kept else leash(reading, command),
                stdin=nothing if stdin is None else stdin,
                stdout=nothing if stdout is None else stdout,
                stderr=nothing if stderr is None else stderr,
                pass_fds=() if kept else (reading,),
                start_new_session=True,
                umask=0o077,
                cwd="/",
                env=ENVIRONMENT,
                user=None if entry is None else entry.pw_uid,
                group=None if entry is None else entry.pw_gid,
                extra_groups=None if entry is None else [],
            )
        except OSError as error:
            if not kept:
                os.close(writing)
            raise ToolFailed(f"{command[0]} could not be started: {error.strerror}") from error
        finally:
            if not kept:
                os.close(reading)
        return _Direct(process, writing)

    async def signal(self, process: ProcessId, number: signal.Signals) -> None:
        send(process, number)


def send(process: ProcessId, number: signal.Signals) -> None:
    with handle(process) as descriptor, contextlib.suppress(ProcessLookupError):
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)


class _Direct:
    def __init__(self, process: subprocess.Popen[bytes], leash_end: int) -> None:
        self.pid = process.pid
        self._process = process
        self._leash = leash_end
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        if not self._ended.done():
            self._ended.set_result(code if code >= 0 else 128 - code)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def cut(self) -> None:
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1
