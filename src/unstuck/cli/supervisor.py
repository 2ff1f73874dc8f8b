"""Keeps the control plane and the host agent running: a process that died is started again, with back-off.

``unstuck up`` runs it in itself, ``unstuck up --detach`` as a process of its own. It holds nothing that
matters: a new supervisor adopts what runs and starts what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from unstuck.core.time import backoff
from unstuck.runtime.barriers import VARIABLE
from unstuck.runtime.files import write_whole
from unstuck.runtime.locks import FileLock, Held, holder
from unstuck.runtime.processes import ProcessId, end_for_sure, handle, lives
from unstuck.runtime.state import State

BACKOFF_MAX = 30.0
STEADY = 30.0
"""A process that ran for so many seconds has recovered: its next failure is a first one again."""
LOG_MAX = 16 << 20
HOPELESS = frozenset({76, 78})
"""Exit codes that say what is wrong with the surroundings; `up` reports the reason at once."""
PATIENCE = 10.0


class Role:
    """One process to keep running."""

    def __init__(self, name: str, command: Sequence[str], lock: Path) -> None:
        self.name = name
        self.command = list(command)
        self.lock = lock
        self.process: ProcessId | None = None
        self.popen: subprocess.Popen[bytes] | None = None
        self.since = 0.0
        self.failures = 0
        self.next_start = 0.0
        self.said = 0
        """Where its log began when it was started: what is before that is of others."""


def roles(state: State, driver: str) -> list[Role]:
    """What a machine needs: one control plane and one agent."""
    python = [sys.executable, "-m"]
    where = ["--state", str(state.root)]
    return [
        Role("control", [*python, "unstuck.control.main", *where, "--take-over"], state.control_lock),
        Role("host", [*python, "unstuck.host.main", *where, "--driver", driver], state.host_lock),
    ]


def failed_file(state: State, role: str) -> Path:
    """Why a process could not start, for whoever waits for it."""
    return state.run / f"{role}.failed"


class Supervisor:
    """``run`` until ``stop`` (which may be called from a signal handler or another thread)."""

    def __init__(self, state: State, driver: str) -> None:
        self._state = state
        self._roles = roles(state, driver)
        self._stopping = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = FileLock(state.supervisor_lock)

    def acquire(self) -> None:
        """Become the one supervisor of this state folder. Raises :class:`Held`."""
        self._lock.acquire()
        for marker in [*self._state.run.glob("stopped-*"), *self._state.run.glob("*.failed")]:
            marker.unlink(missing_ok=True)

    def stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")

    def run(self) -> None:
        try:
            while not self._stopping:
                for role in self._roles:
                    self._tend_safely(role)
                self._wait()
        finally:
            self._end_all()
            self._lock.release()

    def _tend_safely(self, role: Role) -> None:
        """What goes wrong with one process, and be it for want of disk, ends neither us nor the other."""
        try:
            self._tend(role)
        except Exception as error:
            role.failures += 1
            delay = backoff(role.failures, 0.2, BACKOFF_MAX)
            role.next_start = time.monotonic() + delay
            self._say(role, f"{type(error).__name__}: {error}; trying again in {delay:.1f} s")

    def _tend(self, role: Role) -> None:
        if role.process is not None and not lives(role.process):
            self._ended(role)
        if role.process is None and time.monotonic() >= role.next_start and not self._stopping:
            found = holder(role.lock)
            if found is not None:
                self._say(role, f"adopted process {found.pid}")
                role.process, role.since = found, time.monotonic()
            else:
                self._start(role)

    def _ended(self, role: Role) -> None:
        code = role.popen.wait() if role.popen is not None else None
        role.process, role.popen = None, None
        ran = time.monotonic() - role.since
        role.failures = 1 if ran > STEADY else role.failures + 1
        delay = backoff(role.failures, 0.2, BACKOFF_MAX)
        role.next_start = time.monotonic() + delay
        self._say(role, f"ended with {code} after {ran:.1f} s; starting again in {delay:.1f} s")
        if code in HOPELESS:
            reason = last_reason(self._state.logs / f"{role.name}.log", role.said)
            with contextlib.suppress(OSError):  # it only tells `up` sooner
                write_whole(failed_file(self._state, role.name), reason.encode(), durable=False)

    def _start(self, role: Role) -> None:
        environment = dict(os.environ)
        if role.since or any(self._state.run.glob("stopped-*")):
            # A barrier is for one stop: the process that takes over from the killed one must get by it.
            environment.pop(VARIABLE, None)
        if role.name == "control":
            # What uploads took goes back to the system: 60 instead of 100 MiB (measured). Not for the
            # agent, whose environment guests inherit.
            environment.setdefault("MALLOC_ARENA_MAX", "2")
            environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(256 * 1024))
        descriptor = open_log(self._state.logs / f"{role.name}.log")
        role.said = os.fstat(descriptor).st_size
        try:
            role.popen = subprocess.Popen(
                role.command, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor,
                start_new_session=True, env=environment, cwd="/",
            )  # fmt: skip
        finally:
            os.close(descriptor)
        role.since = time.monotonic()
        role.process = identity_of(role.popen.pid)
        self._say(role, f"started as process {role.popen.pid}")

    def _wait(self) -> None:
        """Until a process ends, somebody stops us, or it is time to start one."""
        now = time.monotonic()
        timeout = min([5.0, *(role.next_start - now for role in self._roles if role.process is None)])
        waiter = select.poll()
        waiter.register(self._reader, select.POLLIN)
        with contextlib.ExitStack() as stack:
            for role in self._roles:
                if role.process is not None:
                    try:
                        descriptor = stack.enter_context(handle(role.process))
                    except OSError:  # no descriptor is left: look again by ourselves
                        timeout = min(timeout, 1.0)
                        continue
                    if descriptor is None:
                        return
                    waiter.register(descriptor, select.POLLIN)
            waiter.poll(max(timeout, 0.0) * 1000)

    def _end_all(self) -> None:
        """Control plane and agent; never a guest. The agent goes first: it is a client of the other."""
        for role in reversed(self._roles):
            try:
                self._end(role)
            except Exception as error:  # the other is ended all the same
                self._say(role, f"could not be ended: {type(error).__name__}: {error}")

    def _end(self, role: Role) -> None:
        found = role.process or holder(role.lock)
        if found is not None:
            end_for_sure(found, PATIENCE)
        if role.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                role.popen.wait(5.0)
        self._say(role, "stopped")

    def _say(self, role: Role, what: str) -> None:
        """Into our own log. Where that cannot be written it is lost: we hold nothing that matters."""
        path = self._state.logs / "supervisor.log"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line: dict[str, Any] = {"timestamp": stamp, "process": role.name, "event": what}
        with contextlib.suppress(OSError), path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def open_log(path: Path) -> int:
    """Where a process writes to. One without a log is better than none, so at worst it is lost."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_MAX:
            path.rename(path.with_suffix(".log.1"))
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def identity_of(pid: int) -> ProcessId | None:
    """A child of ours, which cannot have been replaced before we have waited for it."""
    from unstuck.runtime.processes import boot_id, start_time

    start = start_time(pid)
    return ProcessId(pid, start if start is not None else -1, boot_id())


def size_of(log: Path) -> int:
    """Bytes in a log now; 0 where there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_reason(log: Path, since: int) -> str:
    """The newest reason in a log behind byte ``since``, for people: an old one explains nothing."""
    with contextlib.suppress(OSError):
        data = log.read_bytes()
        fresh = data[since:] if since <= len(data) else data  # a new file was begun meanwhile
        for line in reversed(fresh[-65536:].splitlines()):
            with contextlib.suppress(msgspec.DecodeError):
                found = msgspec.json.decode(line, type=dict[str, Any])
                if "reason" in found:
                    return str(found["reason"])
    return f"see {log}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="unstuck supervisor")
    parser.add_argument("--state", type=Path, required=True)
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    state = State(arguments.state)
    supervisor = Supervisor(state, state.read().driver)
    try:
        supervisor.acquire()
    except Held as error:
        print(f"unstuck: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
